"""Network namespaces joined by bridges: machines of their own on this one, whose cables can be
moved.

Each node gets a namespace with one veth, 10.77.x.y. All begin on one bridge; partition() moves
cables to a second one, heal() back. rate() narrows a cable (tbf), refuse_calls() makes a machine
one that can only dial out, swallow_large() a cable that carries small packets only. Needs
CAP_NET_ADMIN and iproute2; unavailable() says what is missing.
"""

import json
import os
import subprocess


def _run(*arguments):
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip()}")


def unavailable():
    """Why there can be no switchboard here; None if there can."""
    probe = f"gp{os.getpid()}p"
    try:
        _run("ip", "netns", "add", probe)
        _run("ip", "link", "add", probe, "type", "bridge")
    except (RuntimeError, OSError) as error:
        return f"network namespaces: {error}"
    finally:
        subprocess.run(["ip", "link", "del", probe], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return None


class Switchboard:
    def __init__(self):
        self.tag = f"gp{os.getpid()}"
        self.cables = {}  # name → (namespace, its cable's end at the bridge, its end inside)
        self.bridges = [f"{self.tag}a", f"{self.tag}b"]
        for bridge in self.bridges:
            _run("ip", "link", "add", bridge, "type", "bridge")
            _run("ip", "link", "set", bridge, "up")

    def plug(self, name):
        """A namespace for `name` on the first bridge; returns its address."""
        number = len(self.cables) + 1
        space, outer, inner = f"{self.tag}n{number}", f"{self.tag}v{number}", f"{self.tag}i{number}"
        address = f"10.77.{os.getpid() % 250}.{number}"
        _run("ip", "netns", "add", space)
        self.cables[name] = (space, outer, inner)
        _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
        _run("ip", "link", "set", outer, "master", self.bridges[0], "up")
        for command in (
            ["addr", "add", f"{address}/24", "dev", inner],
            ["link", "set", inner, "up"],
            ["link", "set", "lo", "up"],
        ):
            _run("ip", "-n", space, *command)
        return address

    def prefix(self, name):
        """What runs a command as `name`."""
        return ["ip", "netns", "exec", self.cables[name][0]]

    def partition(self, names):
        """From now on `names` reach each other, and the rest each other."""
        for name in names:
            _run("ip", "link", "set", self.cables[name][1], "master", self.bridges[1])

    def heal(self):
        for _, outer, _ in self.cables.values():
            _run("ip", "link", "set", outer, "master", self.bridges[0])

    def unplug(self, name):
        _run("ip", "link", "set", self.cables[name][1], "down")

    def replug(self, name):
        _run("ip", "link", "set", self.cables[name][1], "up")

    def rate(self, name, mbit):
        """What `name` sends, at most."""
        space, _, inner = self.cables[name]
        _run(
            "ip",
            "netns",
            "exec",
            space,
            "tc",
            "qdisc",
            "replace",
            "dev",
            inner,
            "root",
            "tbf",
            "rate",
            f"{mbit}mbit",
            "burst",
            "16kb",
            "latency",
            "400ms",
        )

    def mute(self, name):
        """What `name` sends is lost; it hears the others."""
        self._tc(name, "qdisc", "replace", "root", "bfifo", "limit", "1")  # no packet finds room

    def unmute(self, name):
        self._tc(name, "qdisc", "del", "root")

    def lose_an_eighth(self, name):
        """Of what `name` sends over TCP, by the number that IP gives each packet."""
        self._tc(name, "qdisc", "add", "root", "handle", "1:", "htb", "default", "1")
        self._tc(name, "class", "add", "parent", "1:", "classid", "1:1", "htb", "rate", "10gbit")
        self._tc(name, "class", "add", "parent", "1:", "classid", "1:2", "htb", "rate", "8kbit")
        self._tc(name, "qdisc", "add", "parent", "1:2", "handle", "2:", "bfifo", "limit", "1")
        self._tc(
            name,
            "filter",
            "add",
            "parent",
            "1:",
            "protocol",
            "ip",
            "u32",
            "match",
            "ip",
            "protocol",
            "6",
            "0xff",
            "match",
            "u8",
            "0x00",
            "0x07",
            "at",
            "5",
            "flowid",
            "1:2",
        )

    def lost(self, name):
        """Packets so far."""
        space, _, inner = self.cables[name]
        command = ["tc", "-n", space, "-s", "-j", "qdisc", "show", "dev", inner]
        queues = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        return sum(queue["drops"] for queue in queues if queue["kind"] == "bfifo")

    def _tc(self, name, what, action, *arguments):
        space, _, inner = self.cables[name]
        _run("tc", "-n", space, what, action, "dev", inner, *arguments)

    def refuse_calls(self, name):
        """Nobody can connect to `name` any more, as to a machine behind NAT; it can dial out."""
        _, outer, _ = self.cables[name]
        _run("tc", "qdisc", "add", "dev", outer, "root", "handle", "1:", "htb", "default", "1")
        _run(
            "tc",
            "class",
            "add",
            "dev",
            outer,
            "parent",
            "1:",
            "classid",
            "1:1",
            "htb",
            "rate",
            "10gbit",
        )
        _run(
            "tc",
            "class",
            "add",
            "dev",
            outer,
            "parent",
            "1:",
            "classid",
            "1:2",
            "htb",
            "rate",
            "8kbit",
        )
        _run(
            "tc", "qdisc", "add", "dev", outer, "parent", "1:2", "bfifo", "limit", "1"
        )  # a queue in which no packet finds room
        # Byte 33 of a packet without IP options: TCP's flags; SYN without ACK begins a connection.
        _run(
            "tc",
            "filter",
            "add",
            "dev",
            outer,
            "parent",
            "1:",
            "protocol",
            "ip",
            "u32",
            "match",
            "ip",
            "protocol",
            "6",
            "0xff",
            "match",
            "u8",
            "0x02",
            "0x12",
            "at",
            "33",
            "flowid",
            "1:2",
        )

    def swallow_large(self, name):
        """From now on packets of 1280 bytes and more vanish on their way to and from `name`, and
        nobody is told: a tunnel with a smaller MTU.
        """
        space, outer, inner = self.cables[name]
        # Bytes 2 and 3 of a packet: its length. One of these masks is in every number from 1280 on,
        # and in none below.
        masks = [0x8000, 0x4000, 0x2000, 0x1000, 0x0800, 0x0600, 0x0500]
        for where, device in (([], outer), (["ip", "netns", "exec", space], inner)):
            _run(
                *where,
                "tc",
                "qdisc",
                "replace",
                "dev",
                device,
                "root",
                "handle",
                "1:",
                "htb",
                "default",
                "1",
            )
            _run(
                *where,
                "tc",
                "class",
                "add",
                "dev",
                device,
                "parent",
                "1:",
                "classid",
                "1:1",
                "htb",
                "rate",
                "10gbit",
            )
            _run(
                *where,
                "tc",
                "class",
                "add",
                "dev",
                device,
                "parent",
                "1:",
                "classid",
                "1:2",
                "htb",
                "rate",
                "8kbit",
            )
            _run(
                *where, "tc", "qdisc", "add", "dev", device, "parent", "1:2", "bfifo", "limit", "1"
            )
            for mask in masks:
                _run(
                    *where,
                    "tc",
                    "filter",
                    "add",
                    "dev",
                    device,
                    "parent",
                    "1:",
                    "protocol",
                    "ip",
                    "u32",
                    "match",
                    "u16",
                    hex(mask),
                    hex(mask),
                    "at",
                    "2",
                    "flowid",
                    "1:2",
                )

    def spare_large(self, name):
        """The tunnel is mended."""
        space, outer, inner = self.cables[name]
        _run("tc", "qdisc", "del", "dev", outer, "root")
        _run("ip", "netns", "exec", space, "tc", "qdisc", "del", "dev", inner, "root")

    def destroy(self):
        for space, outer, _ in self.cables.values():
            subprocess.run(["ip", "link", "del", outer], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        for bridge in self.bridges:
            subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)
