"""What the daemon of ``gossipd run`` takes for a setting, read as it reads it."""

from __future__ import annotations

import os
import re
import sys
from typing import Any, Dict, Optional, Sequence

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PATHS = (  # of a node file: relative to it
    "job",
    "key_file",
    "state_dir",
    "trainer.socket",
    "rest.token_file",
    "rest.certificate",
)
LOOPBACK = re.compile(r"(localhost|127\.[0-9.]+|\[::1\])(:\d+)?")
EVERYWHERE = {"*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


class Usage(ValueError):
    """What is wrong with the command line."""


def from_node_file(options: Sequence[str], key: str) -> Optional[str]:
    """What the file of --config says; one that cannot be read is for the daemon to tell of."""
    path = given(options, "--config", "config")
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            found: Any = tomllib.load(file)
        for part in key.split("."):
            found = found[part]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(found, str) or not found:
        return None
    mark = "unix:" if found.startswith("unix:") else ""
    if (key in PATHS or mark) and found != "none":
        return mark + os.path.join(os.path.dirname(os.path.abspath(path)), found[len(mark) :])
    return found


def on_the_line(options: Sequence[str], name: str, key: str) -> Optional[str]:
    """What the last `--name VALUE` or `--name=VALUE` says, else the last `--set key=VALUE`."""
    flag = override = None
    for word, following in zip(options, [*options[1:], ""]):
        if word == name:
            flag = following
        elif word.startswith(name + "="):
            flag = word[len(name) + 1 :]
        elif word == "--set" and following.startswith(key + "="):
            override = following[len(key) + 1 :]
        elif word.startswith(f"--set={key}="):
            override = word[len(f"--set={key}=") :]
    return flag or override


def variable_of(key: str) -> str:
    """The environment's name for a setting."""
    return "GOSSIPD_" + key.upper().replace(".", "_")


def given(options: Sequence[str], name: str, key: str) -> Optional[str]:
    """What the command line says, else the environment."""
    return on_the_line(options, name, key) or os.environ.get(variable_of(key))


def source_of(options: Sequence[str], name: str, key: str) -> str:
    """In words, where `value_of` has found its value."""
    if on_the_line(options, name, key):
        return "the command line"
    if given(options, name, key):
        return f"the environment ({variable_of(key)})"
    return f"the node file {given(options, '--config', 'config')}"


def value_of(options: Sequence[str], name: str, key: str) -> Optional[str]:
    """The value that the daemon takes for a setting, where it is not its default."""
    return given(options, name, key) or from_node_file(options, key)


def client_of(options: Sequence[str], rest: str, state_dir: str) -> Dict[str, str]:
    """What `Client` takes to ask, on this machine, the daemon whose rest.listen is `rest`. Empty:
    it has none.
    """
    if rest == "none":
        return {}
    if rest.startswith("unix:"):
        return {"address": rest}
    found = {}
    host, _, port = rest.rpartition(":")
    address = f"{EVERYWHERE[host]}:{port}" if host in EVERYWHERE else EVERYWHERE.get(rest, rest)
    token = value_of(options, "--rest-token-file", "rest.token_file")
    if token:
        found["token_file"] = os.path.abspath(token)
    if not LOOPBACK.fullmatch(rest) or value_of(options, "--set rest.tls", "rest.tls") == "on":
        address = "https://" + address
        own = os.path.join(state_dir, "rest-certificate.pem")
        named = value_of(options, "--set rest.certificate", "rest.certificate")
        found["ca_file"] = os.path.abspath(named or own)
    return {"address": address, **found}
