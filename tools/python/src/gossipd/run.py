"""Starts a daemon and a training script beside it, as torchrun starts workers.

    gossipd run --job mine.toml -- python train.py          founds a cluster
    gossipd run --join gossip1... -- python train.py        joins it; --join - asks for the invite
    gossipd run -- torchrun --nproc-per-node 2 train.py     goes on, with two processes on this box

What stands before -- goes to the daemon, but for these:
    --socket-wait SECONDS   how long the daemon may take to start (default 60)
    --linger SECONDS        how long it may go on after the script, for others (default 30)
    --daemon-log FILE       appends what the daemon says to a file

The job is one of kind = "external"; another is refused. The script finds the daemon by
GOSSIPD_SOCKET, and gossipctl by GOSSIPCTL_REST and, where REST has them, GOSSIPCTL_TOKEN_FILE and
GOSSIPCTL_CA_FILE. Where neither an option, the environment nor the node file of --config names
--listen and --rest, free ports are taken. A daemon that dies is started again, unless it ended with
0 or 78, which is said. SIGTERM and SIGHUP go to the script; when it ends the daemon ends in order,
at once if a signal comes after the script's end and killed by a second one. The exit code is the
script's (128 + N if it died of signal N), or the daemon's if it never started. Exit codes besides:
1 the daemon does not listen within --socket-wait, 2 usage, 126 the script cannot be run, 127 no
daemon or no such script.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .client import Client, NoDaemon, Refused
from .command import EXIT_MISSING, EXIT_USAGE, OURS, find_program, missing, programs_on_path
from .run_invite import hide_invite
from .run_options import Usage, client_of, source_of, value_of
from .session import connect
from .sockets import SOCKET_NAME, default_socket

PEER_PORT, REST_PORT = 7610, 7611
PORTS_TRIED = 200
PORT_RACES = 3
LAST_WORDS_BYTES = 4096
POLL_S = 0.1
JOB_BYTES_MAX = 1 << 20
STOP_S = 30.0
RESTART_MIN_S, RESTART_MAX_S = 1.0, 30.0
STEADY_S = 60.0  # a daemon that has lived so long is started again soon
EXIT_CONFIGURATION = 78
EXIT_CANNOT_RUN = 126
PR_SET_PDEATHSIG = 1
OWN_OPTIONS = {"--socket-wait": 60.0, "--linger": 30.0}
CTL_VARIABLES = {
    "address": "GOSSIPCTL_REST",
    "token_file": "GOSSIPCTL_TOKEN_FILE",
    "ca_file": "GOSSIPCTL_CA_FILE",
}
TRAINER_SOCKET = ("--set trainer.socket", "trainer.socket")  # it has no option of its own
_PEER = struct.Struct("3i")  # process, user and group
_libc = ctypes.CDLL(None)


def split(arguments: Sequence[str]) -> Tuple[List[str], List[str]]:
    """The daemon's options and the script's command line."""
    if "--" not in arguments:
        raise Usage("write the training script behind --, such as: gossipd run -- python train.py")
    at = list(arguments).index("--")
    if at + 1 == len(arguments):
        raise Usage("there is no command behind --")
    return list(arguments[:at]), list(arguments[at + 1 :])


def take_own(options: List[str]) -> Tuple[List[str], Dict[str, float], Optional[str]]:
    """The options that are left for the daemon, ours, and the log file."""
    rest: List[str] = []
    own, log = dict(OWN_OPTIONS), None
    words = iter(options)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in own and name != "--daemon-log":
            rest.append(word)
            continue
        text = value if equals else next(words, None)
        if not text:
            raise Usage(f"{name} wants a value")
        if name == "--daemon-log":
            log = text
            continue
        try:
            own[name] = float(text)
        except ValueError as error:
            raise Usage(f"{name} wants seconds, not '{text}'") from error
        if not 0 <= own[name] < float("inf"):
            raise Usage(f"{name} wants seconds from 0 on, not '{text}'")
    return rest, own, log


def model_kind(job: str) -> Optional[str]:
    """The `kind` under [model] of a job in TOML; None: it is not written there."""
    table = ""
    for line in job.splitlines():
        header = re.match(r"\s*\[\s*([^\[\]]*?)\s*\]", line)
        kind = re.match(r"""\s*kind\s*=\s*["']([^"']+)["']""", line)
        if header:
            table = header[1]
        elif kind and table == "model":
            return kind[1]
    return None


def check_kind(name: str, job: str) -> None:
    """Raises Usage where no script can train the job of this text."""
    kind = model_kind(job)
    if kind is None and "external" in job:
        return  # written in another of TOML's ways; the daemon knows
    if kind != "external":
        found = f'kind = "{kind}"' if kind else "no kind"
        raise Usage(
            f"{name}: the daemon trains this job itself ({found} under [model]), and no script can"
            ' attach: write kind = "external", or start gossipd without a script'
        )


def check_options(options: Sequence[str]) -> None:
    """Raises Usage for what would end badly only once a cluster is founded."""
    rest = value_of(options, "--rest", "rest.listen") or ""
    if not rest.startswith("unix:") and re.search(r":0+$", rest):
        raise Usage(
            f"rest.listen (--rest) {rest}: the script is told the port before the daemon begins;"
            " name one, or leave it out and a free one is taken"
        )
    if value_of(options, *TRAINER_SOCKET) == "none":
        raise Usage(
            "trainer.socket is none, so no script can attach: take it out of "
            + source_of(options, *TRAINER_SOCKET)
        )
    job = value_of(options, "--job", "job")
    if not job:
        return
    try:
        with open(job, encoding="utf-8") as file:
            text = file.read(JOB_BYTES_MAX)
    except (OSError, ValueError):
        return  # the daemon says what is wrong with it
    check_kind(job, text)


def _unbound() -> socket.socket:
    """Of IPv6 and IPv4, as the daemon's at *; of IPv4 where there is no IPv6."""
    try:
        made = socket.socket(socket.AF_INET6)
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:
        made = socket.socket()
    # A port whose connections have only just ended is free, for the daemon too.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


def free_port(first: int, taken: Sequence[int] = ()) -> int:
    """The first port from `first` on that nobody listens on."""
    for port in range(first, first + PORTS_TRIED):
        with _unbound() as probe:
            try:
                probe.bind(("", port))
                if port not in taken:
                    return port
            except OSError:
                continue
    raise Usage(f"all ports from {first} to {first + PORTS_TRIED - 1} are taken; give --listen")


def _die_with_us() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Daemon:
    """The daemon's process, over any number of lives."""

    def __init__(self, program: str, options: List[str], log: Optional[str]) -> None:
        self._program, self._options = program, options
        self._local = value_of(options, "--key-file", "key_file") == "none"
        self._listen = value_of(options, "--listen", "listen")
        self._rest = value_of(options, "--rest", "rest.listen")
        state = value_of(options, "--state-dir", "state_dir")
        self._state = state or os.path.dirname(default_socket(None))
        said = value_of(options, *TRAINER_SOCKET)
        self.socket = said or (os.path.join(state, SOCKET_NAME) if state else default_socket(None))
        self.socket = os.path.abspath(self.socket)
        try:
            self._log = open(log, "a+b") if log else None
        except OSError as error:
            raise Usage(
                f"--daemon-log: {log}: {error.strerror}; name a file that can be written"
            ) from error
        self._restart_s, self._restart_at = RESTART_MIN_S, 0.0
        self._started_at = time.monotonic()
        self._to_end = False  # SIGTERM has been sent to it
        self._told_end = False
        self._choose_ports()
        self.process = self._start()

    def _choose_ports(self) -> None:
        peer = free_port(PEER_PORT)
        rest = free_port(REST_PORT, [peer])
        self.rest = self._rest or f"127.0.0.1:{rest}"
        self._chosen = [*([] if self._listen else [peer]), *([] if self._rest else [rest])]
        self._line = [self._program]  # what is added comes first: the last option may lack a value
        if self._listen is None:
            self._line += ["--listen", f"{'127.0.0.1' if self._local else '*'}:{peer}"]
        if self._rest is None:
            self._line += ["--rest", self.rest]
        self._line += self._options

    def access(self) -> Dict[str, str]:
        """What `Client` takes to ask it; empty where it has no REST."""
        return client_of(self._options, self.rest, self._state)

    def _lost_a_port(self) -> bool:
        """Whether another listens by now where this daemon was to."""
        return any(free_port(port) != port for port in self._chosen)

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self._line,
            env={k: v for k, v in os.environ.items() if k not in OURS},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for the script, and the daemon ends after it
            preexec_fn=_die_with_us,
        )

    def wait_listening(self, timeout_s: float) -> Optional[int]:
        """Waits until a trainer can attach; its exit code if it ended instead."""
        end, tries = time.monotonic() + timeout_s, PORT_RACES
        while time.monotonic() < end:
            code = self.process.poll()
            if code is not None:
                if tries == 0 or not self._lost_a_port():
                    return code
                tries -= 1  # another has taken a port since
                self._choose_ports()
                self.process = self._start()
            if self._listens():
                return None
            self._check_job()
            time.sleep(POLL_S)
        raise TimeoutError(
            f"the daemon has not opened {self.socket} in {timeout_s:g} s; is its job"
            ' kind = "external", and its state directory the one that is meant?'
        )

    def last_words(self) -> str:
        """Of its log, where that goes to a file: nobody has seen it."""
        if self._log is None:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LAST_WORDS_BYTES))
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        said = f': "{lines[-1].strip()}"' if lines else ", and has said nothing"
        return f"{said} (in {self._log.name})"

    def _listens(self) -> bool:
        """Whether it answers at its socket; there may be another, whose state directory this is."""
        try:
            with connect(self.socket) as made:
                peer = made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        except OSError:
            return False
        return bool(_PEER.unpack(peer)[0] == self.process.pid)

    def _check_job(self) -> None:
        """Raises Usage once the daemon knows of a job that it trains itself."""
        access = self.access()
        if not access:
            return
        try:
            job = Client(**access, timeout_s=1).job()
        except (NoDaemon, Refused, OSError, ValueError):
            return
        check_kind(f"job '{job.get('name')}' of {self.rest}", str(job["document"]))

    def keep_alive(self) -> None:
        """Starts it again unless its configuration is wrong; with growing pauses where it dies
        young.
        """
        code, now = self.process.poll(), time.monotonic()
        if code is None:
            return
        if code == EXIT_CONFIGURATION or code == 0:  # it would end again, or was meant to end
            if not self._told_end:
                print(
                    f"gossipd run: the daemon ended with {code} and is not started again; the"
                    " script goes on without it",
                    file=sys.stderr,
                )
            self._told_end = True
            return
        if not self._restart_at:
            if now - self._started_at >= STEADY_S:
                self._restart_s = RESTART_MIN_S
            print(
                f"gossipd run: the daemon ended with {code}; again in {self._restart_s:g} s",
                file=sys.stderr,
            )
            self._restart_at = now + self._restart_s
            self._restart_s = min(2 * self._restart_s, RESTART_MAX_S)
        elif now >= self._restart_at:
            self._restart_at, self._started_at = 0.0, now
            try:
                # A founder listens for peers only once it has a trainer, which may be long after.
                if self._lost_a_port():
                    self._choose_ports()
                self.process = self._start()
            except (Usage, OSError) as error:  # the script goes on meanwhile
                print(f"gossipd run: the daemon cannot be started: {error}", file=sys.stderr)

    def hurry(self) -> None:
        """Ends it without lingering; the second time at once."""
        if self.process.poll() is None:
            self.process.kill() if self._to_end else self.process.terminate()
        self._to_end = True

    def _linger(self, linger_s: float) -> None:
        """Lets it finish with the others where the job has ended. Raises where it cannot be asked
        for that.
        """
        access, end = self.access(), time.monotonic() + linger_s
        if not access:
            raise ValueError("it has no REST (rest.listen)")
        client = Client(**access, timeout_s=3)
        phase = client.status()["phase"]
        while phase == "finishing" and not self._to_end and time.monotonic() < end:
            time.sleep(POLL_S)
            if self.process.poll() is not None:  # at its address another may answer then
                return
            try:
                phase = client.status()["phase"]
            except NoDaemon:
                return  # it has finished and is on its way out

    def end(self, linger_s: float, failed: bool = False) -> None:
        """Lets it finish with the others where the job has ended, then stops it in order. Of a
        script that has `failed` it may not have begun to answer, nor to train with others.
        """
        try:
            if linger_s > 0 and self.process.poll() is None and not self._to_end:
                self._linger(linger_s)
        except (NoDaemon, Refused, OSError, ValueError) as error:
            quiet = failed and isinstance(error, NoDaemon)
            if self.process.poll() is None and not self._to_end and not quiet:
                print(
                    f"gossipd run: the daemon ends without waiting for other members: {error}",
                    file=sys.stderr,
                )
        if not self._to_end:
            self._to_end = True
            self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def terminal_reaches_the_script() -> bool:
    """Whether Ctrl-C goes to our process group, which is the script's, too."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


def train(daemon: Daemon, command: List[str]) -> int:
    """Runs the script beside the daemon; its exit code."""
    environment = {**os.environ, "GOSSIPD_SOCKET": daemon.socket, "PATH": programs_on_path()}
    for name in ("GOSSIPD_JOIN", "GOSSIPCTL_REST"):
        environment.pop(name, None)
    for name, value in daemon.access().items():
        environment[CTL_VARIABLES[name]] = value
    try:
        script = subprocess.Popen(command, env=environment, preexec_fn=_die_with_us)
    except OSError as error:
        print(f"gossipd run: {command[0]}: {error.strerror}", file=sys.stderr)
        return EXIT_CANNOT_RUN

    def forward(number: int, _: Any) -> None:
        if script.poll() is not None:
            daemon.hurry()
        # The terminal gives SIGINT to the script itself; from elsewhere it comes to us alone.
        elif number != signal.SIGINT or not terminal_reaches_the_script():
            script.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, forward)
    while True:
        try:
            code = script.wait(POLL_S)
            return code if code >= 0 else 128 - code
        except subprocess.TimeoutExpired:
            daemon.keep_alive()


def check_command(program: str) -> int:
    """0, or the exit code where there is no such program: a slip of the pen founds no cluster."""
    if shutil.which(program, path=programs_on_path()):
        return 0
    is_there = os.path.exists(program)
    reason = os.strerror(errno.EACCES if is_there else errno.ENOENT)
    print(f"gossipd run: {program}: {reason}", file=sys.stderr)
    return EXIT_CANNOT_RUN if is_there else EXIT_MISSING


def main(arguments: Sequence[str]) -> int:
    """``gossipd run``; returns the exit code."""
    if list(arguments[:1]) in (["-h"], ["--help"]):
        print((__doc__ or "").strip())
        return 0
    try:
        options, command = split(arguments)
        take_own(options)  # a mistake is told before an invite is asked for
        check_options(options)
        program = find_program("gossipd")
        if program is None:
            return missing("gossipd")
        code: Optional[int] = check_command(command[0])
        if code:
            return code
        options, own, log = take_own(hide_invite(options, command))
        daemon = Daemon(program, options, log)
    except (Usage, OSError) as error:
        print(f"gossipd run: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        try:
            code = daemon.wait_listening(own["--socket-wait"])
        except (TimeoutError, Usage) as error:
            print(f"gossipd run: {error}", file=sys.stderr)
            return EXIT_USAGE if isinstance(error, Usage) else 1
        if code is not None:
            print(
                f"gossipd run: the daemon ended with exit code {code}{daemon.last_words()}",
                file=sys.stderr,
            )
            return code
        code = train(daemon, command)
        return code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        daemon.end(own["--linger"], failed=bool(code))
