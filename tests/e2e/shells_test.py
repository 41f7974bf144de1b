"""What a person has at hand at the prompt: completion in three shells, and manual pages."""

import os
import re
import subprocess
import tempfile
import unittest

from cluster import BIN, ClusterTest, gossipctl

PAGES = os.path.join(os.path.dirname(__file__), "../../deploy/man/make_pages.py")


def words_of(help_text, title):
    """First words of the entries of one section of a help."""
    section = re.search(rf"(?ms)^{title}:\n(.*?)(?:\n\n|\Z)", help_text)
    return re.findall(r"(?m)^  (\S+)", section[1]) if section else []


def all_commands(*path):
    """Each command as words, as the help of gossipctl knows them."""
    for name in words_of(gossipctl(*path, "--help").stdout, "Subcommands"):
        yield (*path, name)
        yield from all_commands(*path, name)


def long_options(*path):
    names = words_of(gossipctl(*path, "--help").stdout, "Options")
    return {re.sub(r"^-\w,", "", name) for name in names}


def run(*words, script=None, cwd=None):
    with tempfile.TemporaryDirectory() as home:  # shells write there
        environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": home}
        done = subprocess.run(
            words,
            input=script,
            capture_output=True,
            text=True,
            env=environment,
            cwd=cwd,
            timeout=60,
        )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout.splitlines()


# Each prints what the shell offers for the last of its words, a line each.
BASH = """
source <(gossipctl completion bash)
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_gossipctl
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
compdef() { : }
compadd() {
  [[ $1 == -- ]] && shift
  for one in "$@"; do [[ $one == $words[CURRENT]* ]] && print -r -- $one; done
  true
}
_files() { print -l -- *(N) }
source =(gossipctl completion zsh)
words=("$@") CURRENT=$#
_gossipctl
"""
FISH = """
gossipctl completion fish | source
complete -C "$argv" | string split -f 1 \\t
true
"""


class Completion(ClusterTest):
    def offers(self, shell, *words, cwd=None):
        if shell == "bash":
            lines = run("bash", "--norc", "-c", BASH, "bash", *words, cwd=cwd)
        elif shell == "zsh":
            lines = run("zsh", "-f", "-c", ZSH, "zsh", *words, cwd=cwd)
        else:
            lines = run("fish", "--no-config", "-c", FISH, " ".join(words), cwd=cwd)
        return {line for line in lines if line}

    def test_each_command_and_option_is_offered_in_each_shell(self):
        commands = list(all_commands())
        self.assertIn(("job", "extend"), commands)
        places = {()} | {path[:-1] for path in commands}
        for shell in ("bash", "zsh", "fish"):
            for place in places:
                expected = {path[-1] for path in commands if path[:-1] == place}
                with self.subTest(shell=shell, place=place):
                    self.assertLessEqual(expected, self.offers(shell, "gossipctl", *place, ""))
            for place in ((), ("checkpoint", "export"), ("invite",)):
                with self.subTest(shell=shell, options_of=place):
                    expected = long_options() | long_options(*place)
                    offered = self.offers(shell, "gossipctl", *place, "--")
                    self.assertLessEqual(expected - {"--help"}, offered)

    def test_values_files_and_members_are_offered(self):
        node = self.cluster.founder(self.cluster.job(), shard="1/1").start()
        self.assertEqual(0, node.ctl("wait", "--for", "ready").returncode)
        os.environ["GOSSIPCTL_REST"] = node.rest
        self.addCleanup(os.environ.pop, "GOSSIPCTL_REST")
        with tempfile.TemporaryDirectory() as directory:
            with open(os.path.join(directory, "some.key"), "w", encoding="utf-8"):
                pass
            for shell in ("bash", "zsh", "fish"):
                with self.subTest(shell=shell):
                    self.assertEqual(
                        {"table", "tsv", "json"}, self.offers(shell, "gossipctl", "-o", "")
                    )
                    self.assertIn("json", self.offers(shell, "gossipctl", "status", "-o", ""))
                    conditions = self.offers(shell, "gossipctl", "wait", "--for", "")
                    self.assertLessEqual({"ready", "finished", "left"}, conditions)
                    self.assertIn(
                        "extend", self.offers(shell, "gossipctl", "-o", "json", "job", "ex")
                    )
                    self.assertEqual(
                        {"members"}, self.offers(shell, "gossipctl", "--rest", "job", "mem")
                    )
                    self.assertEqual({node.name}, self.offers(shell, "gossipctl", "forget", "b"))
                    files = self.offers(shell, "gossipctl", "key", "install", "", cwd=directory)
                    self.assertIn("some.key", files)


    def test_a_member_s_name_is_a_word_that_no_shell_runs(self):
        name = "$(touch${IFS}run)`touch<run`*"
        node = self.cluster.founder(self.cluster.job(), shard="1/1", name=name).start()
        self.assertEqual(0, node.ctl("wait", "--for", "ready").returncode)
        os.environ["GOSSIPCTL_REST"] = node.rest
        self.addCleanup(os.environ.pop, "GOSSIPCTL_REST")
        offered = {"bash": re.sub(r"([^\w])", r"\\\1", name), "zsh": name, "fish": name}
        with tempfile.TemporaryDirectory() as directory:
            for shell, word in offered.items():
                with self.subTest(shell=shell):
                    words = self.offers(shell, "gossipctl", "forget", "", cwd=directory)
                    self.assertIn(word, words)
                    self.assertEqual([], os.listdir(directory))

    def test_bash_offers_a_file_with_spaces_as_one(self):
        with tempfile.TemporaryDirectory() as directory:
            with open(os.path.join(directory, "my new * key"), "w", encoding="utf-8"):
                pass
            files = self.offers("bash", "gossipctl", "key", "install", "my", cwd=directory)
            self.assertEqual({"my new * key"}, files)


class ManPages(unittest.TestCase):
    def test_pages_are_clean_and_name_each_command_and_option(self):
        with tempfile.TemporaryDirectory() as directory:
            run("python3", PAGES, BIN, directory)
            pages = sorted(os.listdir(directory))
            self.assertLessEqual({"gossipctl.1", "gossipd.1"}, set(pages))
            for page in pages:
                path = os.path.join(directory, page)
                program = os.path.join(BIN, page.removesuffix(".1"))
                lint = subprocess.run(
                    ["mandoc", "-Tlint", "-Wwarning", path], capture_output=True, text=True
                )
                self.assertEqual("", lint.stdout + lint.stderr)
                shown = "\n".join(run("mandoc", "-Tascii", "-Owidth=200", path))
                shown = re.sub(".\b", "", shown)
                text = subprocess.run([program, "--help"], capture_output=True, text=True).stdout
                for option in words_of(text, "Options"):
                    self.assertIn(option.split(",")[-1], shown)
            with open(os.path.join(directory, "gossipctl.1"), encoding="utf-8") as file:
                text = file.read()
            self.assertIn("{bash,zsh,fish}=bash", text)
            with open(os.path.join(directory, "gossipd.1"), encoding="utf-8") as file:
                self.assertIn("\\-\\-model FILE", file.read())  # of gossipd init
            for path in all_commands():
                self.assertRegex(text, rf"(?m)^\.Ss {' '.join(path)}\b")


if __name__ == "__main__":
    unittest.main()
