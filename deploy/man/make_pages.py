#!/usr/bin/env python3
"""deploy/man/make_pages.py - manual pages from what the programs say of themselves.

    deploy/man/make_pages.py build/release/bin build/release/man/man1 [gossipctl ...]

Writes gossipd.1, gossipd-core.1, gossipctl.1 and gossip-lab.1, of those programs that the first
folder has, or only the pages named.
Commands and options are those of --help, so a page cannot tell of others; what --help does not say
(exit codes, files, examples) is here. `man -l build/release/man/man1/gossipctl.1` shows one.
"""

import os
import re
import subprocess
import sys

DATE = "November 24, 2026"

EXIT_GOSSIPD = [
    ("0", "stopped on request; with --until finished only: the job is finished"),
    ("1", "failed; a restart may help"),
    ("3", "with --until finished: the job has failed"),
    ("78", "configuration, job or data are wrong; a restart does not help"),
    ("134", "no memory was left, or a fault of gossipd; a restart may help"),
    (
        "130, 143",
        "with --until finished: stopped by SIGINT or SIGTERM before the job's end; else a second"
        " one: ended at once, and nothing more was written",
    ),
]
EXIT_GOSSIPCTL = [
    ("0", "ok"),
    ("1", "failed; the message says why"),
    ("2", "usage: the words, or the file that they name, were refused; nothing has changed"),
    ("3", "no daemon answers at the REST address"),
    ("4", "not found"),
    ("5", "unauthorised: the token is missing or wrong, or the certificate is not trusted"),
    ("6", "refused by the state of the node"),
    ("7", "timeout"),
    ("8", "unhealthy: the training of the node is broken, or a check of doctor fails"),
]
PAGES = {
    "gossipd": {
        "what": "train one neural network on several machines, with nobody in charge",
        "text": [
            "is one node of a cluster. It trains on its own data and tells a few neighbours how"
            " its model has changed. One node founds a cluster with a job file; others join it"
            " with an invite, which the founder and `gossipctl invite` print. A restart needs"
            " neither.",
            "SIGTERM and SIGINT stop it cleanly, and a second one at once. SIGHUP takes the level"
            " of the log and the seeds anew from the node file and rereads certificates.",
            "`gossipd init --data DIR` writes a job file for a directory of data. Every setting is"
            " also a key of the node file (--config, or GOSSIPD_CONFIG), a variable"
            " (GOSSIPD_EXCHANGE_CODEC for exchange.codec) and --set KEY=VALUE.",
        ],
        "modes": ["init"],
        "files": [
            ("/var/lib/gossipd", "state of a node that runs as root: identity, job, key, models"),
            ("~/.local/state/gossipd", "the same of another user"),
        ],
        "exit": EXIT_GOSSIPD,
        "examples": [
            ("found a cluster", "gossipd --job fashion-mnist.toml --data DIR"),
            ("join it", "gossipd --join gossip1... --data DIR"),
            ("start again", "gossipd --data DIR"),
        ],
        "see": ["gossip-lab", "gossipctl"],
    },
    "gossipd-core": {
        "what": "be a node of a training cluster for a training loop of your own",
        "text": [
            "is the daemon gossipd without LibTorch: it exchanges a model with a few neighbours,"
            " while a process of the same box, which attaches at its socket, trains it. The"
            ' cluster\'s job has kind = "external".',
            "SIGTERM and SIGINT stop it cleanly, and a second one at once.",
        ],
        "files": [
            ("/run/gossipd-core/trainer.sock", "where trainers attach to the system's service"),
            ("STATE/trainer.sock", "where they attach to one that was started by hand"),
        ],
        "exit": EXIT_GOSSIPD,
        "examples": [
            ("found a cluster", "gossipd-core --job mine.toml"),
            ("join it", "gossipd-core --join gossip1..."),
            ("with the Python package", "gossipd run --job mine.toml -- python train.py"),
        ],
        "see": ["gossipctl"],
    },
    "gossipctl": {
        "what": "inspect and control a gossipd",
        "text": [
            "asks one gossipd by REST. Data goes to standard output, messages to standard error.",
            "Lists fit the terminal: where it is narrow, the least important columns are left out."
            " With -o tsv, and where standard output is no terminal, they are whole.",
        ],
        "files": [],
        "exit": EXIT_GOSSIPCTL,
        "examples": [
            ("wait until the node trains", "gossipctl wait --for ready"),
            ("names of all members", "gossipctl members -o tsv --no-headers | cut -f1"),
            ("a line with which another box joins", "gossipctl invite"),
        ],
        "see": ["gossipd"],
    },
    "gossip-lab": {
        "what": "train with a cluster that exists in virtual time",
        "text": [
            "runs scenarios of machines, lines and faults with the core of gossipd and with real"
            " gradients, and compares methods of training."
        ],
        "files": [],
        "exit": [("0", "ok"), ("1", "failed"), ("2", "usage")],
        "examples": [],
        "see": ["gossipd"],
    },
}


def help_of(program, *words):
    done = subprocess.run(
        [program, *words, "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def sections(text):
    """Entries (name, meaning) of each section of a help, by the section's title."""
    found, title = {}, None
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z][A-Za-z]+:", line):
            title = line[:-1]
            found[title] = []
        elif not line.strip():
            title = None
        elif title and line.startswith("  ") and line[2] != " ":
            name, _, meaning = line.strip().partition("  ")
            found[title].append([name, meaning.strip()])
        elif title and found[title]:
            found[title][-1][1] = f"{found[title][-1][1]} {line.strip()}".strip()
    return found


def escape(text):
    """Lines of text that are no requests, a sentence on each."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"(?<=[.:;?!]) (?=[A-Z])", "\n", text)
    return re.sub(r"(?m)^(?=[.'])", r"\\&", text)


def words(text):
    """An argument of a request."""
    return '"' + escape(text).replace('"', '""') + '"'


def items(entries, flag=False):
    lines = [".Bl -tag -width Ds"]
    for name, meaning in entries:
        lines += [f".It Sy {words(name)}"]
        lines += [escape(meaning)] if meaning else []
    return lines + [".El"]


def untyped(name):
    """FILE of "FILE TEXT REQUIRED", FILE=x of "FILE TEXT=x", SHELL {a,b} of "SHELL TEXT:{a,b}"."""
    name = re.sub(r" (TEXT|UINT):", " ", name)
    return re.sub(r" (TEXT|UINT|REQUIRED)\b", "", name)


def commands(program, path=()):
    """A subsection for each command, those within it after it."""
    lines = []
    for name, meaning in sections(help_of(program, *path)).get("Subcommands", []):
        here = (*path, name)
        parts = sections(help_of(program, *here))
        wanted = " ".join(entry[0].split()[0] for entry in parts.get("Positionals", []))
        lines += [f".Ss {' '.join(here)} {wanted}".rstrip(), escape(meaning) + "."]
        options = [e for e in parts.get("Options", []) if not e[0].startswith("-h,")]
        entries = [[untyped(name), text] for name, text in parts.get("Positionals", [])]
        if entries + options:
            lines += items(entries + options)
        lines += commands(program, here)
    return lines


def page(name, program):
    about = PAGES[name]
    lines = [
        f".Dd {DATE}",
        f".Dt {name.upper()} 1",
        ".Os",
        ".Sh NAME",
        f".Nm {name}",
        f".Nd {about['what']}",
        ".Sh SYNOPSIS",
        f".Nm {name}",
    ]
    top = sections(help_of(program))
    lines += [".Op Ar options"] + ([".Ar command"] if "Subcommands" in top else [])
    lines += [".Sh DESCRIPTION", ".Nm", escape(about["text"][0])]
    for text in about["text"][1:]:
        lines += [".Pp", escape(text)]
    lines += [".Sh OPTIONS"] + items(top["Options"])
    if "Subcommands" in top:
        lines += [".Sh COMMANDS"] + commands(program)
    for mode in about.get("modes", []):
        options = sections(help_of(program, mode))["Options"]
        lines += [f".Sh OPTIONS OF {mode.upper()}"] + items(options)
    if about["files"]:
        lines += [".Sh FILES"] + items(about["files"])
    lines += [".Sh EXIT STATUS"] + items(about["exit"])
    if about["examples"]:
        lines += [".Sh EXAMPLES", ".Bl -tag -width Ds"]
        for what, command in about["examples"]:
            lines += [f".It {what}", f".Dl {escape(command)}"]
        lines += [".El"]
    lines += [".Sh SEE ALSO"]
    lines += [f".Xr {other} 1" + " ," * (other != about["see"][-1]) for other in about["see"]]
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) < 3 or not set(sys.argv[3:]) <= set(PAGES):
        sys.exit(__doc__)
    bin_dir, out_dir, *names = sys.argv[1:]
    os.makedirs(out_dir, exist_ok=True)
    for name in names or PAGES:
        program = os.path.join(bin_dir, name)
        if os.access(program, os.X_OK):
            with open(os.path.join(out_dir, f"{name}.1"), "w", encoding="utf-8") as out:
                out.write(page(name, program))


if __name__ == "__main__":
    main()
