"""Idle connections from many addresses, reopened as soon as they are cut, and how soon a joiner
gets in beside them.

    python3 tests/e2e/flood.py [--sockets 64,1000,10000] [--addresses 1,4,64] [--words silent|hello]

Prints one JSON object with a row for each case: the seconds from the joiner's start to its link
with the seed, with `sockets` idle connections from `addresses` loopback addresses at the seed's
port, and the cost of the flood to the seed. The first row is without a flood.
"""

import argparse
import errno
import json
import os
import resource
import selectors
import socket
import threading
import time

from cluster import wait_for, with_cluster

TICK_S = 0.2
JOIN_LIMIT_S = 300
WORDS = {
    "silent": b"",
    "hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),  # the beginning of a TLS hello
}


def descriptors(count):
    """Lets this process open `count` sockets, and returns how many it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 200
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    return min(count, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)


class Flood:
    """`sockets` connections from 127.1.0.1, 127.1.0.2, … to `address`, held by a thread until
    close().
    """

    def __init__(self, address, sockets, addresses, words=b""):
        host, port = address.rsplit(":", 1)
        self.target, self.words = (host, int(port)), words
        self.addresses = [f"127.1.{i // 250}.{i % 250 + 1}" for i in range(addresses)]
        self.wanted = descriptors(sockets)
        self.connected = self.cut = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self):
        self._stop.set()
        self._thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _run(self):
        with selectors.DefaultSelector() as selector:
            waiting = list(range(self.wanted))  # indices that are not connecting yet
            while not self._stop.is_set():
                waiting = [i for i in waiting if not self._connect(selector, i)]
                for key, events in selector.select(TICK_S):
                    if events & selectors.EVENT_WRITE and self._connected(selector, key):
                        continue
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                    self.cut += 1
                    waiting.append(key.data)
            for key in list(selector.get_map().values()):
                key.fileobj.close()

    def _connect(self, selector, number):
        one = socket.socket()
        one.setblocking(False)
        # Closing resets the connection, so its port is free at once.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        one.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
        try:
            one.bind((self.addresses[number % len(self.addresses)], 0))
            error = one.connect_ex(self.target)
        except OSError as failed:
            error = failed.errno
        if error not in (0, errno.EINPROGRESS):
            one.close()
            return False
        selector.register(one, selectors.EVENT_WRITE, number)
        return True

    def _connected(self, selector, key):
        if key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0:
            return False
        try:
            key.fileobj.send(self.words)
        except OSError:
            return False
        self.connected += 1
        selector.modify(key.fileobj, selectors.EVENT_READ, key.data)
        return True


def processor_s(node):
    with open(f"/proc/{node.process.pid}/stat", encoding="utf-8") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def join_beside(cluster, seed, name, sockets, addresses, words):
    """Runs one joiner from its start to its link; only its member record remains."""
    flood = Flood(seed.address, sockets, addresses, words) if sockets else None
    try:
        if flood:  # wait until every place is taken or all sockets are open
            wait_for(
                "the flood", lambda: flood.cut > 2 * sockets or flood.connected >= flood.wanted, 120
            )
        before, busy, began, steps = (
            (flood.cut if flood else 0),
            processor_s(seed),
            time.monotonic(),
            seed.status()["step"],
        )
        joiner = cluster.joiner(name, seed, shard="1/1", trainer__min_step_ms=50).start()
        joiner.wait("its link", lambda s: s["links_open"] >= 1, JOIN_LIMIT_S)
        took = time.monotonic() - began
        row = {
            "sockets": sockets,
            "addresses": addresses if sockets else 0,
            "joined_s": round(took, 2),
            "reconnects_per_s": round(((flood.cut if flood else 0) - before) / took),
            "seed_processor_percent": round(100 * (processor_s(seed) - busy) / took),
            "seed_steps_per_s": round((seed.status()["step"] - steps) / took, 1),
        }
        joiner.terminate()
        return row
    finally:
        if flood:
            flood.close()


def measure(cluster, sockets, addresses, words):
    seed = cluster.found(cluster.job(), shard="1/1", trainer__min_step_ms=50)
    cases = [(0, 0)] + [(s, a) for s in sockets for a in addresses]
    return [join_beside(cluster, seed, f"joiner{i}", s, a, words) for i, (s, a) in enumerate(cases)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    numbers = lambda text: [int(word) for word in text.split(",")]
    parser.add_argument("--sockets", type=numbers, default=[64, 1000, 10000])
    parser.add_argument("--addresses", type=numbers, default=[1, 4, 64])
    parser.add_argument("--words", choices=sorted(WORDS), default="silent")
    given = parser.parse_args()
    print(
        json.dumps(
            {
                "words": given.words,
                "rows": with_cluster(
                    "flood", measure, given.sockets, given.addresses, WORDS[given.words]
                ),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
