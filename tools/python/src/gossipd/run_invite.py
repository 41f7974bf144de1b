"""Where `gossipd run` puts an invite, which is a secret."""

from __future__ import annotations

import os
import re
import sys
from typing import List, Sequence, Tuple

from .run_options import Usage

STDIN = 0
LINE_BYTES_MAX = 4096  # as the daemon has it
INVITE = re.compile("gossip[0-9]", re.IGNORECASE)  # within quotes or a whole command, too


def joins_of(options: Sequence[str]) -> Tuple[List[str], List[str], List[str]]:
    """The values of --join, those of --set join=, and the other options."""
    joins: List[str] = []
    overrides: List[str] = []
    rest: List[str] = []
    words = iter(options)
    for word in words:  # a state directory may be called like an invite, so only these count
        name, equals, value = word.partition("=")
        following = value if equals else next(words, None) if name in ("--join", "--set") else None
        if name == "--join" and following is not None:
            joins.append(following)
        elif name == "--set" and following is not None and following.startswith("join="):
            overrides.append(following[len("join=") :])
        else:
            rest += [word] if equals or following is None else [word, following]
    return joins, overrides, rest


def hide_invite(options: Sequence[str], command: Sequence[str]) -> List[str]:
    """The options without an invite, which is a secret: it goes from where `ps` shows it to the
    environment, where only this user can see it. Where one stands on the command line this program
    starts once more, without it. The other values of --join go along: the daemon takes the
    environment's only where the command line has none.
    """
    joins, overrides, rest = joins_of(options)
    shown = any(INVITE.search(value) for value in (*joins, *overrides))
    meant = [part for value in joins or overrides[-1:] for part in value.split(",")]
    if not shown and "-" not in meant:
        return list(options)
    os.environ["GOSSIPD_JOIN"] = ",".join(
        ask_for_invite() if part == "-" else part for part in meant
    )
    if shown:
        sys.stdout.flush()
        line = [sys.executable, "-c", again(), "run", *rest, "--", *command]
        os.execv(sys.executable, line)
    return rest


def again() -> str:
    """The program that this one is. `-m` would look for modules where we were started first."""
    return (
        f"import sys; sys.path[0] = {sys.path[0]!r}; from gossipd.command import main;"
        " sys.exit(main())"
    )


def ask_for_invite() -> str:
    """From the terminal, or the next line of standard input that has something in it."""
    if os.isatty(STDIN):
        import getpass

        invite = getpass.getpass("invite: ").strip()
    else:
        invite = read_line(STDIN)
    if not invite:
        raise Usage("--join - has read no invite; `gossipctl invite` on a member prints one")
    return invite


def read_line(file: int) -> str:
    """As the daemon reads it; what follows the line is the script's, so nothing of it is taken."""
    line = b""
    while len(line) < LINE_BYTES_MAX:
        byte = os.read(file, 1)
        if byte not in (b"", b"\n", b"\r"):
            line += byte
        elif not byte or line.strip():
            break
        else:
            line = b""
    return line.decode("utf-8", "replace").strip()
