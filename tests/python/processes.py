"""Processes that outlive no test; reading from them, and waiting, but not for ever."""

import ctypes
import os
import select
import signal
import subprocess
import time

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def die_with_the_test():
    """A preexec_fn. What `gossipd run` has started ends with it."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end(process):
    """SIGTERM first, so that a launcher ends what it has started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(condition, timeout_s=60):
    """Waits until the condition holds; fails at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def read_some(file, deadline):
    """The next bytes of a file descriptor, b"" at its end; fails at that time.monotonic()."""
    left = deadline - time.monotonic()
    if left <= 0 or not select.select([file], [], [], left)[0]:
        raise AssertionError("nothing more to read in time")
    try:
        return os.read(file, 4096)
    except OSError:  # the other end of the terminal is closed
        return b""
