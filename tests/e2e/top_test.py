"""gossipctl top on a terminal of its own, and what takes its place where there is none."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
import unittest

from cluster import GOSSIPCTL, ClusterTest, clean_environment, read_ready, wait_for
from cluster import _die_with_the_test as die_with_the_test

RESTORED = b"\x1b[?1049l"  # xterm leaves the second screen


class Terminal:
    """A program on a pseudo-terminal, and all that it has written."""

    def __init__(self, *arguments, program=GOSSIPCTL, rows=30, columns=110, **environment):
        self.outer, self.inner = pty.openpty()
        self.process = None
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.inner)
        self.seen = b""
        terminal = {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **environment}
        self.process = subprocess.Popen(
            [program, *arguments],
            stdin=self.inner,
            stdout=self.inner,
            stderr=self.inner,
            env={**clean_environment(), **terminal},
            start_new_session=True,
            preexec_fn=die_with_the_test,
        )

    def resize(self, rows, columns):
        fcntl.ioctl(self.outer, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if self.process:  # whose controlling terminal is another
            self.process.send_signal(signal.SIGWINCH)

    def press(self, keys):
        os.write(self.outer, keys)

    def read(self):
        self.seen += read_ready(self.outer)
        return self.seen

    def wait_text(self, text, since=0):
        wait_for(f"{text!r} on the terminal", lambda: text in self.read()[since:])

    def end(self):
        """The exit code, once everything is written."""
        wait_for("its end", lambda: self.read() and self.process.poll() is not None)
        self.read()
        return self.process.returncode

    def is_as_before(self):
        return termios.tcgetattr(self.inner) == self.before and RESTORED in self.seen

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.outer)
        os.close(self.inner)


class Top(ClusterTest):
    def terminal(self, node, *arguments, **options):
        made = Terminal("--rest", node.rest, "top", *arguments, **options)
        self.addCleanup(made.close)
        return made

    def test_on_a_terminal(self):
        job = self.cluster.job(name="top-test")
        first = self.cluster.found(job, shard="1/2", trainer__min_step_ms=20)
        second = self.cluster.joiner("box2", first, shard="2/2", trainer__min_step_ms=20).start()
        first.wait_linked(1)
        screen = self.terminal(first)
        for text in (b"top-test", b"box1", b"box2", b"this node", b"MEMBER", b"LINK", b"EVENTS"):
            screen.wait_text(text)
        self.assertIn("░".encode(), screen.read())

        # It follows the terminal's size, and the cluster.
        at = len(screen.read())
        screen.resize(16, 60)
        screen.wait_text(b"MEMBER", since=at)
        screen.resize(40, 120)
        second.kill()
        screen.wait_text(b"failed")
        screen.wait_text(b"member failed")
        for keys in (b"\x1b[C", b"\x1b[D", b"\x1b[A", b"\x1b[B", b"r", b"x", b"\xff"):
            screen.press(keys)

        # A frozen daemon holds up no key.
        first.signal(signal.SIGSTOP)
        screen.wait_text(b"no answer")
        screen.press(b"q")
        self.assertEqual(0, screen.end())
        self.assertTrue(screen.is_as_before())
        first.signal(signal.SIGCONT)
        self.by_signals(first)
        self.refusals(first)

    def by_signals(self, node):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            screen = self.terminal(node)
            screen.wait_text(b"box1")
            screen.process.send_signal(number)
            self.assertEqual(-number, screen.end())
            self.assertTrue(screen.is_as_before(), number)

    def refusals(self, node):
        # A terminal that nobody knows gets lines; one without UTF-8 gets ASCII.
        plain = self.terminal(node, TERM="no-such-terminal")
        plain.wait_text(b"is unknown here")
        plain.wait_text(b"alive, sent")
        plain.process.send_signal(signal.SIGINT)
        self.assertEqual(-signal.SIGINT, plain.end())
        ascii_only = self.terminal(node, LC_ALL="C")
        ascii_only.wait_text(b"box1")
        ascii_only.press(b"q")
        self.assertEqual(0, ascii_only.end())
        self.assertTrue(ascii_only.seen.isascii())
        nobody = Terminal("--rest", "127.0.0.1:9", "top")
        self.addCleanup(nobody.close)
        self.assertEqual(3, nobody.end())
        self.assertNotIn(RESTORED, nobody.seen)  # it never left the first screen

    def test_without_a_terminal(self):
        job = self.cluster.job(budget_samples=20_000)
        node = self.cluster.found(job, shard="1/1", trainer__min_step_ms=2)
        done = node.ctl("top", "--until", "finished")
        self.assertEqual((0, ""), (done.returncode, done.stderr))
        self.assertRegex(done.stdout, r"\A[\d.]+ %, .*step .* alive, sent [\d.]+ .?B\n")
        self.assertNotIn("\x1b", done.stdout)
        self.assertEqual(2, node.ctl("top", "--until", "never").returncode)

    def test_of_json_standard_output_has_nothing_else_whoever_fails(self):
        node = self.cluster.found(self.cluster.job(), shard="1/1", trainer__min_step_ms=20)
        top = subprocess.Popen(
            [GOSSIPCTL, "--rest", node.rest, "-o", "json", "top"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_the_test,
        )
        self.addCleanup(top.communicate)
        self.addCleanup(top.kill)
        self.assertEqual("training", json.loads(top.stdout.readline())["phase"])
        node.kill()
        self.assertEqual(f"no answer from {node.rest}\n", top.stderr.readline())
        top.kill()
        for line in top.stdout:
            json.loads(line)

    def test_a_plain_terminal_gets_a_line_of_progress_from_daemon_and_wait(self):
        node = self.cluster.found(self.cluster.job(), shard="1/1", trainer__min_step_ms=20)
        waiting = Terminal("--rest", node.rest, "--timeout", "300", "wait", "--for", "finished")
        self.addCleanup(waiting.close)
        waiting.wait_text(b" alive, sent ")
        self.assertRegex(waiting.seen.decode(), r"(?m)^[\d.]+ %, .*step [\d ]+, loss [\d.]+, ")
        self.assertNotIn("event=progress", node.log())  # a file has curves and metrics instead
        node.terminate()
        program, *words = node.command_line()
        daemon = Terminal(*words, program=program)
        self.addCleanup(daemon.close)
        daemon.wait_text(b"event=progress percent=")
        daemon.wait_text(b" members=1 bytes_sent=")


if __name__ == "__main__":
    unittest.main()
