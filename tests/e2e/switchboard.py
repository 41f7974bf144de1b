"""Network namespaces joined by bridges: separate machines on one machine, with movable cables.

Each node gets a namespace with one veth, 10.77.x.y. All begin on one bridge; partition() moves
cables to a second one and heal() moves them back. rate() narrows a cable, refuse_calls() leaves a
machine that can only dial out, swallow_large() a cable that carries only small packets. Needs
CAP_NET_ADMIN and iproute2; unavailable() says what is missing.
"""

import json
import os
import re
import subprocess


def _run(*arguments):
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip()}")


def _tc(command, device, space=None):
    """Runs `tc`; DEV stands for the device, which is in the namespace `space` if there is one."""
    inside = ["-n", space] if space else []
    _run("tc", *inside, *command.replace("DEV", f"dev {device}").split())


def unavailable():
    """Why there can be no switchboard here, or None."""
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


def _clear_after_the_dead():
    """Deletes what tests that were killed have left: names of ours with a pid that has ended."""
    for kind, list_all in (("netns", ["netns", "list"]), ("link", ["-o", "link", "show"])):
        done = subprocess.run(["ip", *list_all], capture_output=True, text=True, check=False)
        for name, pid in re.findall(r"^(?:\d+: )?(gp(\d+)[abnpv]\d*)\b", done.stdout, re.MULTILINE):
            if not os.path.exists(f"/proc/{pid}"):  # another may have been quicker
                subprocess.run(["ip", kind, "del", name], capture_output=True, check=False)


class Switchboard:
    def __init__(self):
        _clear_after_the_dead()
        self.tag = f"gp{os.getpid()}"
        self.cables = {}  # name → (namespace, its cable's end at the bridge, its end inside)
        self.bridges = [f"{self.tag}a", f"{self.tag}b"]
        for bridge in self.bridges:
            _run("ip", "link", "add", bridge, "type", "bridge")
            _run("ip", "link", "set", bridge, "up")

    def plug(self, name):
        """Adds a namespace for `name` on the first bridge and returns its address."""
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
        """The words that, put before a command, run it in `name`."""
        return ["ip", "netns", "exec", self.cables[name][0]]

    def partition(self, names):
        """Cuts `names` off from the rest; each group keeps its own connections."""
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
        """Limits what `name` sends."""
        self._tc(name, f"qdisc replace DEV root tbf rate {mbit}mbit burst 16kb latency 400ms")

    def mute(self, name):
        """Loses what `name` sends; it still hears the others."""
        self._tc(name, "qdisc replace DEV root bfifo limit 1")  # no packet finds room

    def unmute(self, name):
        self._tc(name, "qdisc del DEV root")

    def lose_an_eighth(self, name):
        """Loses an eighth of what `name` sends over TCP, by the number IP gives each packet."""
        self._add_drain(self.cables[name][2], self.cables[name][0])
        self._tc(
            name,
            "filter add DEV parent 1: protocol ip u32 match ip protocol 6 0xff"
            " match u8 0x00 0x07 at 5 flowid 1:2",
        )

    def lost(self, name):
        """Packets lost so far."""
        space, _, inner = self.cables[name]
        command = ["tc", "-n", space, "-s", "-j", "qdisc", "show", "dev", inner]
        queues = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        return sum(queue["drops"] for queue in queues if queue["kind"] == "bfifo")

    def refuse_calls(self, name):
        """Refuses connections to `name`, as a machine behind NAT does; it can still dial out."""
        outer = self.cables[name][1]
        self._add_drain(outer)
        # Byte 33 of a packet without IP options holds TCP's flags; SYN without ACK connects.
        _tc(
            "filter add DEV parent 1: protocol ip u32 match ip protocol 6 0xff"
            " match u8 0x02 0x12 at 33 flowid 1:2",
            outer,
        )

    def swallow_large(self, name):
        """Silently drops packets of 1280 bytes and more to and from `name`, like a tunnel with a
        smaller MTU.
        """
        space, outer, inner = self.cables[name]
        # Bytes 2 and 3 of a packet hold its length. Every number from 1280 on has one of these
        # masks, and no smaller one does.
        masks = [0x8000, 0x4000, 0x2000, 0x1000, 0x0800, 0x0600, 0x0500]
        for device, inside in ((outer, None), (inner, space)):
            self._add_drain(device, inside)
            for mask in masks:
                match = f"match u16 {mask:#x} {mask:#x} at 2"
                _tc(f"filter add DEV parent 1: protocol ip u32 {match} flowid 1:2", device, inside)

    def spare_large(self, name):
        """Ends swallow_large()."""
        space, outer, inner = self.cables[name]
        _tc("qdisc del DEV root", outer)
        _tc("qdisc del DEV root", inner, space)

    def _tc(self, name, command):
        """Runs tc on the end of the cable that is inside `name`."""
        space, _, inner = self.cables[name]
        _tc(command, inner, space)

    @staticmethod
    def _add_drain(device, space=None):
        """Gives `device` the class 1:2, in whose queue no packet finds room; 1:1 takes the rest."""
        for command in (
            "qdisc replace DEV root handle 1: htb default 1",
            "class add DEV parent 1: classid 1:1 htb rate 10gbit",
            "class add DEV parent 1: classid 1:2 htb rate 8kbit",
            "qdisc add DEV parent 1:2 handle 2: bfifo limit 1",
        ):
            _tc(command, device, space)

    def destroy(self):
        for space, outer, _ in self.cables.values():
            subprocess.run(["ip", "link", "del", outer], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        for bridge in self.bridges:
            subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)
