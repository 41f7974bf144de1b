"""The command ``gossipd`` of the Python package.

gossipd run [OPTION of the daemon]... -- COMMAND...   a daemon, and a script attached to it
gossipd export | tensorboard | wandb ...              see --help of each
gossipd ...                                           anything else: the daemon itself
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import List, Optional, Sequence

HERE = os.path.dirname(os.path.abspath(__file__))
CARRIED = os.path.join(HERE, "bin")
ELF = b"\x7fELF"
OURS = frozenset(("GOSSIPD_BIN_DIR", "GOSSIPD_SOCKET"))  # the daemon knows no such settings

EXIT_USAGE = 2
EXIT_MISSING = 127


def is_program(path: str) -> bool:
    """Whether `path` is a compiled program: a script of this package has the daemon's name, too."""
    try:
        with open(path, "rb") as file:
            return file.read(len(ELF)) == ELF and os.access(path, os.X_OK)
    except OSError:
        return False


def find_program(name: str) -> Optional[str]:
    """The program `name` (gossipd, gossipctl): of GOSSIPD_BIN_DIR, of this package, or on PATH."""
    folders = [os.environ.get("GOSSIPD_BIN_DIR"), CARRIED, *os.get_exec_path()]
    candidates = [os.path.join(folder, name) for folder in folders if folder]
    return next(filter(is_program, candidates), None) or _named_core(candidates)


def _named_core(candidates: Sequence[str]) -> Optional[str]:
    """The daemon without LibTorch has a name of its own where both are installed."""
    names = [path + "-core" for path in candidates if path.endswith("gossipd")]
    return next(filter(is_program, names), None)


def missing(name: str) -> int:
    """Says that the program is nowhere."""
    print(
        f"gossipd: found no program {name} in the package or on PATH; install the platform wheel"
        " or gossipd itself, or set GOSSIPD_BIN_DIR to where it was built",
        file=sys.stderr,
    )
    return EXIT_MISSING


def become(name: str, arguments: Sequence[str]) -> int:
    """Replaces this process by the program; returns only when it cannot."""
    program = find_program(name)
    if program is None:
        return missing(name)
    environment = {key: value for key, value in os.environ.items() if key not in OURS}
    os.execve(program, [name, *arguments], environment)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The console script; returns the exit code."""
    arguments: List[str] = list(sys.argv[1:] if argv is None else argv)
    kind = arguments[0] if arguments else "--help"
    if kind == "run":
        from .run import main as run

        return run(arguments[1:])
    if kind == "export":
        from .export import main as export

        return export(arguments[1:])
    if kind in ("tensorboard", "wandb"):
        from .bridges import main as bridge

        return bridge(kind, arguments[1:])
    if kind in ("-h", "--help"):
        print(__doc__.strip())
        if find_program("gossipd") is None:
            return 0
        print("\nThe daemon:\n", flush=True)
    return become("gossipd", arguments or ["--help"])


def control(argv: Optional[Sequence[str]] = None) -> int:
    """The console script ``gossipctl``: the program that the wheel carries."""
    return become("gossipctl", list(sys.argv[1:] if argv is None else argv))


def programs_on_path() -> str:
    """PATH with the carried programs first, for a script that calls gossipctl."""
    path = os.environ.get("PATH", os.defpath)
    return CARRIED + os.pathsep + path if shutil.which("gossipctl", path=CARRIED) else path


if __name__ == "__main__":
    sys.exit(main())
