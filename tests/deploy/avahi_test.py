"""deploy/avahi, run by Debian's Avahi: two machines in network namespaces, each with a bus and an
avahi-daemon of its own. Needs root, avahi-daemon, avahi-utils and dbus.
"""

import os
import shutil
import signal
import subprocess
import unittest

from cluster import BIN, ClusterTest, Unexpected, clean_environment, wait_for
from cluster import _die_with_the_test as die_with_the_test
from install_test import ROOT
from switchboard import Switchboard, unavailable

# A /run and a folder of services of its own, then the bus and the daemon.
MACHINE = """set -e
hostname "$1"
mount -t tmpfs none /run
mkdir /run/dbus /run/avahi-daemon
mount --bind "$0" /etc/avahi/services
dbus-daemon --system --nofork --nopidfile &
until [ -S /run/dbus/system_bus_socket ]; do sleep 0.1; done
exec avahi-daemon --no-drop-root --no-chroot --no-rlimits
"""


class Machine:
    """A bus and an avahi-daemon in the namespace of `name`, which end together. They announce what
    is in the folder `services`.
    """

    def __init__(self, cluster, name):
        self.services = f"{cluster.directory}/services-{name}"
        self.output = f"{cluster.directory}/avahi-{name}"
        os.mkdir(self.services)
        apart = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"]
        with open(self.output, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen(
                [*cluster.switchboard.prefix(name), *apart, "sh", "-c", MACHINE]
                + [self.services, name],
                stdout=out,
                stderr=out,
                preexec_fn=die_with_the_test,
            )
        wait_for(f"avahi-daemon of {name}", lambda: "Server startup complete" in self.said())

    def said(self):
        with open(self.output, encoding="utf-8") as file:
            return file.read()

    def first_process(self):
        outside = self.process.pid
        with open(f"/proc/{outside}/task/{outside}/children", encoding="ascii") as file:
            return int(file.read())

    def discover(self, *words):
        inside = ["nsenter", "-t", str(self.first_process()), "--mount", "--net", "--uts"]
        return discover(inside, *words)

    def stop(self):
        os.kill(self.first_process(), signal.SIGKILL)
        self.process.wait()


def discover(prefix, *words):
    return subprocess.run(
        [*prefix, "gossipctl", "discover", *words],
        env={**clean_environment(), "PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


class Avahi(ClusterTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if why := unavailable():
            raise RuntimeError(why)

    def machine(self, node):
        machine = Machine(self.cluster, node.name)
        self.addCleanup(machine.stop)
        return machine

    def test_a_node_that_announces_itself_is_found_and_joined_at_the_address_found(self):
        self.cluster.switchboard = Switchboard()
        first = self.cluster.founder(self.cluster.job(), shard="1/2", trainer__min_step_ms=20)
        second = self.cluster.node("box2", "--shard", "2/2", trainer__min_step_ms=20)
        first.address = first.address.split(":")[0] + ":7610"
        first.start().wait_phase("training")
        here, there = self.machine(second), self.machine(first)

        nobody = here.discover()
        self.assertEqual((0, ""), (nobody.returncode, nobody.stdout), nobody.stderr)
        self.assertIn("no node announces itself", nobody.stderr)

        shutil.copy(f"{ROOT}/deploy/avahi/gossipd.service", there.services)

        def found():
            done = here.discover("-o", "tsv", "--no-headers")
            if done.returncode != 0 or not done.stdout:
                raise Unexpected(done)
            return [line.split("\t") for line in done.stdout.splitlines()]

        self.assertEqual(
            [[first.address, "gossipd_on_box1", "box1.local"]],
            wait_for("box1 is announced", found),
        )
        second.arguments += ["--join", found()[0][0]]
        second.start().wait_linked(1)
        self.assertEqual(first.status()["cluster_id"], second.status()["cluster_id"])

        os.remove(f"{there.services}/gossipd.service")
        wait_for("it is not announced any more", lambda: not here.discover().stdout)

    def test_without_an_avahi_daemon_it_says_what_to_look_at(self):
        empty_run = 'mount -t tmpfs none /run && exec "$@"'
        done = discover(["unshare", "--mount", "sh", "-c", empty_run, "sh"])
        self.assertEqual((1, ""), (done.returncode, done.stdout))
        self.assertIn("is avahi-daemon running", done.stderr)


if __name__ == "__main__":
    if not shutil.which("avahi-daemon", path="/usr/sbin:/sbin"):
        raise SystemExit("Avahi is missing: deploy/install-packages.sh --packages")
    unittest.main()
