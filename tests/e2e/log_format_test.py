"""The log in its three formats while strangers write into it, and what SIGHUP takes anew."""

import json
import os
import re
import signal
import socket
import unittest

from cluster import ClusterTest, Unexpected, free_port, gossipctl, wait_for
from hostile_test import control_frame, host_and_port

EVIL = 'x" event=forged \\ y=1 \n\r\t\x1b[2J} {"a":1,'
LOGFMT = re.compile(r'([\w.-]+)=("(?:[^"\\]|\\.)*"|[^\s"=]\S*)(?: |$)')
TEXT = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d (?P<level>debug|info|warning|error)"
    r" node=(?P<node>\S+) (?P<rest>.*)"
)


def cbor(value):
    """The few kinds of CBOR that a control message needs."""

    def head(major, number):
        for size, mark in ((1, 24), (2, 25), (4, 26), (8, 27)):
            if number < 24:
                return bytes([major << 5 | number])
            if number < 1 << 8 * size:
                return bytes([major << 5 | mark]) + number.to_bytes(size, "big")
        raise ValueError(number)

    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, int):
        return head(0, value)
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    return head(5, len(value)) + b"".join(cbor(k) + cbor(v) for k, v in value.items())


def parse_logfmt(line):
    pairs, at = {}, 0
    while at < len(line):
        match = LOGFMT.match(line, at)
        if not match:
            raise ValueError(f"no logfmt at column {at}: {line!r}")
        value = match[2]
        pairs[match[1]] = re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] == '"' else value
        at = match.end()
    return pairs


def parse_text(line):
    match = TEXT.fullmatch(line)
    if not match:
        raise ValueError(f"no line of the log: {line!r}")
    return {**match.groupdict(), **parse_logfmt(match["rest"].replace(" (", "_("))}


class LogFormat(ClusterTest):
    def speak(self, node, *messages):
        """As a member of a cluster in plain, until the node hangs up."""
        with socket.create_connection(host_and_port(node.address), timeout=20) as peer:
            peer.sendall(b"gossipd\x01")
            for message in messages:
                peer.sendall(control_frame(cbor(message)))
            while peer.recv(65536):
                pass

    def be_hostile(self, node):
        hello = {
            "kind": "hello",
            "protocol": 3,
            "newest": 3,
            "cluster": 0,
            "id": 5,
            "inc": 1,
            "name": EVIL,
            "host": EVIL,
            "port": 1,
            "job": 0,
            "instance": 9,
        }
        self.speak(node, hello, {"kind": "bye", "why": EVIL})
        self.speak(node, {**hello, "id": 6}, {"kind": "refuse", "code": EVIL, "text": EVIL})
        self.speak(node, {**hello, "cluster": 77})
        with socket.create_connection(host_and_port(node.address), timeout=20) as stranger:
            stranger.sendall(EVIL.encode())

    def test_every_line_of_a_hostile_sessions_log_parses_in_every_format(self):
        node = self.cluster.founder(
            self.cluster.job(), "--log-level", "debug", key="none", shard="1/1"
        )
        node.state_dir = os.path.join(node.directory, 'my "state" = x')
        parsers = {"text": parse_text, "logfmt": parse_logfmt, "json": json.loads}
        for kind, parse in parsers.items():
            with self.subTest(kind):
                path = os.path.join(node.directory, f"log.{kind}")
                node.start(["--log-format", kind, "--log-file", path])
                node.wait("it trains", lambda s: s["ready"])
                self.be_hostile(node)

                def events():
                    with open(path, encoding="utf-8") as log:
                        return [parse(line) for line in log.read().split("\n")[:-1]]

                wanted = {"start", "link-up", "bye", "refused-by", "refuse", "turned-away"}

                def told():
                    missing = wanted - {e["event"] for e in events()}
                    if missing:
                        raise Unexpected(f"not in the log: {missing}")
                    return True

                wait_for("all is told", told)
                self.assertEqual(0, node.terminate())
                seen = events()
                self.assertEqual("stopped", seen[-1]["event"])
                self.assertNotIn("forged", {e["event"] for e in seen})
                if kind == "text":
                    continue
                self.assertEqual({node.name}, {e["node"] for e in seen})
                self.assertLessEqual({"time", "level", "node", "event"}, set(seen[0]))
                start = next(e for e in seen if e["event"] == "start")
                self.assertEqual(node.state_dir, start["state"])
                told = next(e for e in seen if e["event"] == "refused-by")
                self.assertTrue(told["reason"].startswith('x" event=forged \\ y=1 '), told)

    def test_the_last_word_of_a_node_that_refuses_to_start_parses_as_well(self):
        node = self.cluster.node("box1", "--log-format", "json")
        node.start()
        self.assertEqual(78, node.exit_code())
        lines = [json.loads(line) for line in node.log().splitlines()]
        self.assertEqual("failed", lines[-1]["event"])
        self.assertIn("nothing to do", lines[-1]["reason"])

    def test_sighup_takes_level_and_seeds_from_the_node_file(self):
        first = self.cluster.found(self.cluster.job(), shard="1/2", trainer__min_step_ms=20)
        path = os.path.join(self.cluster.directory, "node.toml")

        def write(seed, level):
            with open(path, "w", encoding="utf-8") as file:
                file.write(f'join = ["{seed}"]\n[log]\nlevel = "{level}"\n')

        write(f"127.0.0.1:{free_port()}", "warning")
        node = self.cluster.node("box2", "--config", path, "--shard", "2/2").start()
        node.wait_log("event=dial-failed")
        self.assertNotIn(" info ", node.log())

        with open(path, "w", encoding="utf-8") as file:
            file.write('log = "loud"\n')
        node.signal(signal.SIGHUP)
        node.wait_log("event=warning .*level of the log and seeds are as they were: .*node.toml")
        self.assertEqual("joining", node.status()["phase"])

        write(first.address, "info")
        node.signal(signal.SIGHUP)
        node.wait_log(f'info .*event=reloaded level=info join="{first.address}"')
        node.wait_linked(1)
        self.assertEqual(0, gossipctl("--rest", node.rest, "wait", "--for", "ready").returncode)


if __name__ == "__main__":
    unittest.main()
