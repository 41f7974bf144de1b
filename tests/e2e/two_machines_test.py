"""Two clean machines: found a cluster, paste the invite, both train.

Each machine is a network namespace with a home, a /var/lib and temporary files of its own, where
nothing has been set: the commands are those of the README, with default ports and paths.
"""

import json
import os
import pty
import re
import socket
import subprocess
import sys
import time
import unittest

from browser import Browser
from cluster import BIN, DATA, DEADLINE_S, ClusterTest, Unexpected, clean_environment, wait_for
from cluster import _die_with_the_test as die_with_the_test
from switchboard import Switchboard, unavailable

# Hands connections to a socket of the test's namespace on to a port of this one's loopback.
RELAY = """
import asyncio, socket, sys
async def copy(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()
async def both(reader, writer):
    there = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))
async def main():
    door = socket.socket(fileno=int(sys.argv[1]))
    async with await asyncio.start_server(both, sock=door) as server:
        await server.serve_forever()
asyncio.run(main())
"""
OWN = ("home", "tmp", "state")  # folders of each machine
BOTH_TRAIN = """Array.from(document.querySelectorAll('#members tbody tr')).filter(
  (row) => row.innerText.includes('training')).length === 2
"""
MASK = 'mount --bind "$0/state" /var/lib && exec "$@"'


class Machine:
    """Runs commands as a person would at this machine's terminal, and counts them."""

    def __init__(self, switchboard, name, directory):
        self.name = name
        self.address = switchboard.plug(name)
        self.root = os.path.join(directory, name)
        for path in OWN:
            os.makedirs(os.path.join(self.root, path))
        self.space = switchboard.prefix(name)
        self.commands = []
        self.terminal = None
        self.shown = ""
        self.processes = []

    def inside(self, words):
        line = [*self.space, "unshare", "--mount", "sh", "-c", MASK, self.root, *words]
        own = {"HOME": f"{self.root}/home", "TMPDIR": f"{self.root}/tmp"}
        return line, {**clean_environment(), **own, "PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin"}

    def types(self, command):
        """Starts a command that stays, on a terminal."""
        self.commands.append(command)
        self.terminal, inner = pty.openpty()
        line, environment = self.inside(["sh", "-c", "exec " + command])
        process = subprocess.Popen(
            line,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=environment,
            preexec_fn=die_with_the_test,
            start_new_session=True,
        )
        os.close(inner)
        os.set_blocking(self.terminal, False)
        self.processes.append(process)

    def reads(self, pattern):
        """What the terminal shows, once it matches."""

        def holds():
            try:
                self.shown += os.read(self.terminal, 65536).decode(errors="replace")
            except (BlockingIOError, OSError):
                pass
            return re.search(pattern, self.shown)

        try:
            return wait_for(f"{self.name} shows /{pattern}/", holds)
        except AssertionError:
            print(self.shown, flush=True)
            raise

    def asks(self, *words):
        """The answer of gossipctl, as JSON. Looking is no step of the way, so it is not counted."""
        line, environment = self.inside(["gossipctl", "-o", "json", *words])
        done = subprocess.run(
            line, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        if done.returncode != 0:
            raise Unexpected(done.stderr)
        return json.loads(done.stdout)

    def page(self):
        """The dashboard's address for a browser outside, as through `ssh -L`."""
        door = socket.socket()
        door.bind(("127.0.0.1", 0))
        door.listen()
        words = [sys.executable, "-c", RELAY, str(door.fileno()), "7611"]
        relay = subprocess.Popen(
            [*self.space, *words], pass_fds=[door.fileno()], preexec_fn=die_with_the_test
        )
        self.processes.append(relay)
        port = door.getsockname()[1]
        door.close()
        return f"http://127.0.0.1:{port}/"

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()


def found_and_join(found, join, first, second):
    """Both commands, then until each machine trains and is linked to the other. Returns the seconds
    from the first command on.
    """
    began = time.monotonic()
    first.types(found)
    invite = first.reads(r"gossipd --join (gossip1[a-z2-7]+) ")[1]
    second.types(join.replace("INVITE", invite))
    for machine in (first, second):
        wait_for(f"{machine.name} trains with the other", lambda m=machine: trains(m))
    return time.monotonic() - began


def trains(machine):
    status = machine.asks("status")
    if status["phase"] == "training" and status["links_open"] == 1 and status["step"] > 0:
        return status
    raise Unexpected({key: status[key] for key in ("phase", "waiting_for", "links_open", "step")})


class TwoMachines(ClusterTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if why := unavailable():
            raise RuntimeError(why)

    def test_two_commands_and_both_train(self):
        self.cluster.switchboard = Switchboard()
        machines = [
            Machine(self.cluster.switchboard, name, self.cluster.directory)
            for name in ("box1", "box2")
        ]
        for machine in machines:
            self.addCleanup(machine.stop)
        job = os.path.join(os.path.dirname(__file__), "../../deploy/jobs/fashion-mnist.toml")
        taken = found_and_join(
            f"gossipd --job {os.path.abspath(job)} --data {DATA}",
            f"gossipd --join INVITE --data {DATA}",
            *machines,
        )
        browser = Browser()
        self.addCleanup(browser.close)
        opened = time.monotonic()
        for machine in machines:
            browser.open(machine.page())
            browser.wait("both train", BOTH_TRAIN)
        shown = time.monotonic() - opened
        print(f"both dashboards show both within {shown:.1f} s of opening the first", flush=True)
        count = sum(len(machine.commands) for machine in machines)
        print(f"both train after {count} commands and {taken:.1f} s", flush=True)
        self.assertEqual(2, count)
        first, second = (machine.asks("status") for machine in machines)
        self.assertEqual(first["cluster_id"], second["cluster_id"])
        self.assertEqual(
            [machine.address + ":7610" for machine in machines],
            [first["address"], second["address"]],
        )
        for machine in machines:
            self.assertEqual(2, len(machine.asks("members")["members"]))
            self.assertTrue(os.listdir(machine.root + "/state/gossipd"))


if __name__ == "__main__":
    unittest.main()
