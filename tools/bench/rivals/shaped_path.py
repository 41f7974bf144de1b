"""The lines between the nodes: cables that have a rate, and paths that have a delay."""

import json
import os
import subprocess
import sys

from rivals import ROOT, read_text

sys.path.append(os.path.join(ROOT, "tests/e2e"))

from switchboard import Switchboard, _run, _tc  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


class Cables(Switchboard):
    """Each end of each cable sends at most `mbit` megabits a second. With a delay, the cables end
    in a process that holds every frame for that long, and without one in a bridge.
    """

    def __init__(self, mbit, delay_ms=0):
        super().__init__()
        self.mbit, self.delay_ms = mbit, delay_ms
        self.switch = None

    def plug(self, name):
        address = super().plug(name)
        space, outer, inner = self.cables[name]
        burst = max(16_000, self.mbit * 1_000_000 // 8 // 250)  # what a tick of 4 ms lets through
        limit = f"qdisc replace DEV root tbf rate {self.mbit}mbit burst {burst} latency 400ms"
        _tc(limit, inner, space)
        _tc(limit, outer)
        return address

    def connect(self):
        """Begins to delay; call it when all nodes are plugged in."""
        if not self.delay_ms:
            return
        outers = [outer for _, outer, _ in self.cables.values()]
        for outer in outers:
            _run("ip", "link", "set", outer, "nomaster")
        line = [sys.executable, os.path.join(HERE, "shaped_delay.py"), str(self.delay_ms), *outers]
        self.switch = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self.switch.stdout.readline() != "ready\n":
            raise RuntimeError("the switch that delays frames does not start")

    def disconnect(self):
        """Ends the delay and the connection; returns what the switch saw."""
        if self.switch is None:
            return {}
        text, _ = self.switch.communicate()  # closes its input
        self.switch = None
        return json.loads(text) if text else {}

    def device(self, name):
        """The end of the cable in `name`'s namespace."""
        return self.cables[name][2]

    def sent_bytes(self):
        """What all nodes have sent, as the outer ends of the cables count it."""
        return sum(
            int(read_text(f"/sys/class/net/{outer}/statistics/rx_bytes"))
            for _, outer, _ in self.cables.values()
        )

    def destroy(self):
        self.disconnect()
        super().destroy()
