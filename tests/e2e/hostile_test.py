"""Strangers who reach the ports are refused, counted and logged, and achieve nothing else."""

import ctypes
import re
import socket
import ssl
import struct
import unittest

from cluster import ClusterTest, Unexpected, wait_for
from flood import Flood, WORDS, descriptors

IDLE_CONNECTIONS = 10_000
FLOODS = (
    (64, 4, "silent"),
    (1_000, 64, "silent"),
    (1_000, 64, "hello"),
)  # sockets, addresses, first bytes; flood.py measures more
PROBES_IN_TURN = 300
SCANS = 200
# The first words of port scanners that probe for services.
PROBES = {
    "an empty line": b"\r\n\r\n",
    "a web browser": b"GET / HTTP/1.0\r\n\r\n",
    "a media player": b"OPTIONS / RTSP/1.0\r\n\r\n",
    "a telephone": b"OPTIONS sip:nm SIP/2.0\r\nMax-Forwards: 70\r\n\r\n",
    "a resolver": (
        b"\x00\x1e\x00\x06\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
        b"\x07version\x04bind\x00\x00\x10\x00\x03"
    ),
    "a file sharer": b"\x00\x00\x00\x2f\xffSMB\x72" + bytes(43),
    "a directory": b"\x30\x0c\x02\x01\x01\x60\x07\x02\x01\x02\x04\x00\x80\x00",
    "an X server's client": b"l\x00\x0b\x00" + bytes(8),
}


XXHASH = ctypes.CDLL("libxxhash.so.0")
XXHASH.XXH3_64bits.restype = ctypes.c_uint64
XXHASH.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def control_frame(payload):
    """A frame as net/peer/FRAME.md defines it."""
    head = struct.pack("<2sBBII", b"gP", 0, 1, len(payload), len(payload))
    checksum = XXHASH.XXH3_64bits(head, len(head)) ^ XXHASH.XXH3_64bits(payload, len(payload))
    return head + struct.pack("<I", checksum & 0xFFFFFFFF) + payload


def host_and_port(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


class Hostile(ClusterTest):
    def setUp(self):
        self.first = self.cluster.found(self.cluster.job(), shard="1/2", trainer__min_step_ms=20)
        self.second = self.cluster.joiner(
            "box2", self.first, shard="2/2", trainer__min_step_ms=20
        ).start()
        for node in (self.first, self.second):
            node.wait_linked(1)

    def rejected(self):
        """Rejections by reason."""
        status, text = self.first.request("GET", "/metrics")
        if status != 200:
            raise Unexpected(text)
        return {
            m[1]: int(float(m[2]))
            for m in re.finditer(r'gossipd_inbound_rejected_total\{reason="([^"]+)"\} (\S+)', text)
        }

    def assert_unchanged_service(self, link_before):
        for node in (self.first, self.second):
            node.wait_step(node.status()["step"] + 50)
            self.assertEqual(2, node.status()["members_alive"])
        link = self.first.links()["box2"]
        self.assertEqual("open", link["state"])
        self.assertEqual(0, link["deltas_refused"])
        wait_for(
            "the two still exchange",
            lambda: self.first.links()["box2"]["deltas_applied"] > link_before["deltas_applied"],
        )

    def connect(self, address):
        return socket.create_connection(host_and_port(address), timeout=20)

    def until_closed(self, peer):
        """Everything the other end sends before it hangs up."""
        said = b""
        try:
            while more := peer.recv(4096):
                said += more
        except ConnectionError:
            pass
        return said

    def assert_turned_away(self, what, code, before):
        """One more refusal is counted under its reason, and the status and the log show it."""
        wait_for(
            f"{what} is counted as {code}",
            lambda: self.rejected() == {**before, code: before.get(code, 0) + 1},
        )
        said = [
            r
            for r in self.first.status()["refusals"]
            if r["code"] == code and r["peer"] == "127.0.0.1"
        ]
        self.assertTrue(said, what)
        line = f'event=turned-away peer=127.0.0.1 code={code} reason="{said[-1]["reason"]}"'
        wait_for(f"the log has: {line}", lambda: line in self.first.log())

    def test_garbage_plain_text_and_strangers_with_tls(self):
        link = self.first.links()["box2"]
        cases = {
            "zeros": (bytes(4096), "not-a-peer"),
            "plain HTTP": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "not-a-peer"),
            "SSH": (b"SSH-2.0-OpenSSH_9.2\r\n", "not-a-peer"),
            "gossipd in plain": (b"gossipd\x01" + bytes(100), "peer-speaks-plain"),
            "a TLS record of 4 GiB that is none": (
                b"\x16\x03\x01" + struct.pack(">I", 0xFFFFFFFF) * 64,
                "tls",
            ),
            "half a hello": (
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
                "handshake-cut",
            ),
        }
        for name, (what, code) in cases.items():
            before = self.rejected()
            with self.connect(self.first.address) as peer:
                peer.sendall(what)
                peer.shutdown(socket.SHUT_WR)
                self.until_closed(peer)
            self.assert_turned_away(name, code, before)
        before = self.rejected()
        with self.subTest("TLS without the key"), self.connect(self.first.address) as peer:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with self.assertRaises((ssl.SSLError, ConnectionError)):
                with context.wrap_socket(peer) as wrapped:
                    wrapped.recv(1)
        self.assert_turned_away("TLS without the key", "wrong-key", before)
        self.assert_unchanged_service(link)

    def test_a_port_scan(self):
        link = self.first.links()["box2"]
        for name, what in PROBES.items():
            before = self.rejected()
            for port in (self.first.address, self.first.rest):
                with self.connect(port) as peer:
                    peer.sendall(what)
                    peer.shutdown(socket.SHUT_WR)
                    self.until_closed(peer)
            self.assert_turned_away(name, "not-a-peer", before)
        # Connections that are reset at once: some are gone before gossipd looks at them, which is
        # no refusal.
        for port in (self.first.address, self.first.rest) * SCANS:
            peer = self.connect(port)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
        self.assert_unchanged_service(link)

    def test_a_frame_of_4_gib_in_a_cluster_without_a_key(self):
        plain = self.cluster.found(
            self.cluster.job("plain.toml"),
            key="none",
            name="plain",
            shard="1/1",
            trainer__min_step_ms=20,
        )
        header = struct.pack("<2sBBIII", b"gP", 1, 1, 0xFFFFFFFF, 0xFFFFFFFF, 0)
        before_kib = self.address_space_kib(plain)
        with self.connect(plain.address) as peer:
            peer.sendall(b"gossipd\x01" + header)
            self.assertIn(b"frame-too-long", self.until_closed(peer))  # its goodbye
        plain.wait_log("event=session-broken peer=127.0.0.1 code=frame-too-long reason=")
        wait_for(
            "the status says so",
            lambda: [r for r in plain.status()["refusals"] if "longer than allowed" in r["reason"]],
        )
        self.assertRegex(
            plain.request("GET", "/metrics")[1],
            r'gossipd_sessions_closed_total\{reason="frame-too-long"\} 1',
        )
        plain.wait_step(plain.status()["step"] + 50)
        self.assertLess(self.address_space_kib(plain), before_kib + 1024 * 1024)

    def test_deeply_nested_control_messages_in_a_cluster_without_a_key(self):
        plain = self.cluster.found(
            self.cluster.job("plain.toml"),
            key="none",
            name="plain",
            shard="1/1",
            trainer__min_step_ms=20,
        )
        for first, words in (
            (0x7F, "an item of unknown length"),  # text within text …
            (0x5F, "an item of unknown length"),  # … bytes within bytes …
            (0x9F, "an item of unknown length"),  # … arrays within arrays …
            (0x81, "more than 4 levels"),  # … of one item each …
            (0xD9, "a tag"),
        ):
            with self.subTest(f"65,536 bytes 0x{first:02x}"), self.connect(plain.address) as peer:
                peer.sendall(b"gossipd\x01" + control_frame(bytes([first]) * 65_536))
                self.assertIn(words.encode(), self.until_closed(peer))  # its reason for the refusal
                plain.wait_log(f'code=malformed reason="a control message with {words}"')
                self.assertTrue(
                    [
                        r
                        for r in plain.status()["refusals"]
                        if r["code"] == "malformed" and words in r["reason"]
                    ]
                )
        plain.wait_step(plain.status()["step"] + 50)

    @staticmethod
    def address_space_kib(node):
        """The process's peak of address space."""
        with open(f"/proc/{node.process.pid}/status", encoding="utf-8") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmPeak"))

    def test_ten_thousand_idle_connections(self):
        link = self.first.links()["box2"]
        count = descriptors(IDLE_CONNECTIONS)
        self.assertGreaterEqual(count, 1000, "raise the limit of open files (ulimit -n)")
        idle = []
        try:
            for _ in range(count):
                idle.append(self.connect(self.first.address))
            wait_for(
                "most are refused at once", lambda: self.rejected().get("too-many", 0) > count / 2
            )
            self.assert_unchanged_service(link)
            wait_for(
                "the others when they have said nothing for too long",
                lambda: sum(self.rejected().values()) == count,
            )
            for code in ("too-many", "handshake-timeout"):
                self.first.wait_log(f"event=turned-away peer=127.0.0.1 code={code} reason=")
            # A joiner with the key gets in as soon as the handshakes of the idle ones have timed
            # out.
            third = self.cluster.joiner("box3", self.first, trainer__min_step_ms=20).start()
            third.wait(
                "it is in", lambda s: s["phase"] == "training" and s["members_alive"] == 3, 120
            )
        finally:
            for peer in idle:
                peer.close()
        print(f"{count} idle connections: {self.rejected()}")

    def test_joiners_get_in_beside_sockets_that_reconnect_as_soon_as_they_are_cut(self):
        for i, (sockets, addresses, words) in enumerate(FLOODS):
            with self.subTest(sockets=sockets, addresses=addresses, words=words), Flood(
                self.first.address, sockets, addresses, WORDS[words]
            ) as flood:
                wait_for("the flood", lambda: flood.cut > sockets)
                before = flood.cut
                joiner = self.cluster.joiner(
                    f"joiner{i}", self.first, trainer__min_step_ms=50
                ).start()
                joiner.wait(
                    "it is in", lambda s: s["phase"] == "training" and s["links_open"] >= 1, 120
                )
                wait_for("the flood lasts", lambda: flood.cut > before)
                self.assertEqual("open", self.first.links()["box2"]["state"])
                joiner.terminate()

    def test_two_probes_in_turn_leave_a_few_lines_and_a_count(self):
        for _ in range(PROBES_IN_TURN):
            for words in (b"GET / HTTP/1.0\r\n\r\n", b"gossipd\x01"):
                with self.connect(self.first.address) as peer:
                    peer.sendall(words)
                    peer.shutdown(socket.SHUT_WR)
                    self.until_closed(peer)
        wait_for(
            "all are counted",
            lambda: all(
                self.rejected().get(code, 0) == PROBES_IN_TURN
                for code in ("not-a-peer", "peer-speaks-plain")
            ),
        )
        counts = {
            r["code"]: r["count"]
            for r in self.first.status()["refusals"]
            if r["peer"] == "127.0.0.1"
        }
        self.assertEqual(
            {"not-a-peer": PROBES_IN_TURN, "peer-speaks-plain": PROBES_IN_TURN}, counts
        )
        self.first.wait_log(
            r"event=repeated of=turned-away peer=127.0.0.1 code=not-a-peer times=\d+ within_s=60",
            150,
        )
        told = [
            int(n)
            for n in re.findall(
                r"event=repeated of=turned-away peer=127.0.0.1 code=\S+ times=(\d+)",
                self.first.log(),
            )
        ]
        self.assertLess(
            self.first.log().count("event=turned-away"), 40 * len(told) + 1
        )  # twenty of each in each period

    def test_slow_and_endless_requests_to_rest(self):
        slow = [self.connect(self.first.rest) for _ in range(30)]
        for peer in slow:
            peer.sendall(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        self.assertEqual("training", self.first.status()["phase"])
        for peer in slow:
            self.until_closed(peer)  # within read_timeout, whatever the client sends
            peer.close()
        with self.connect(self.first.rest) as peer:
            peer.sendall(
                b"POST /v1/checkpoint HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Length: 4294967296\r\n\r\n"
            )
            self.assertIn(b"413", self.until_closed(peer).split(b"\r\n")[0])
        with self.connect(self.first.rest) as peer:
            peer.sendall(b"GET /v1/status HTTP/1.1\r\nHost: evil.example\r\n\r\n")
            peer.shutdown(socket.SHUT_WR)
            self.assertIn(b" 421 ", self.until_closed(peer).split(b"\r\n")[0])
        self.assert_unchanged_service(self.first.links()["box2"])


if __name__ == "__main__":
    unittest.main()
