"""gossipctl doctor as a user runs it: with a daemon, without one, and with something wrong."""

import json
import os
import re
import shutil
import struct
import subprocess
import unittest

from cluster import GOSSIPCTL, ClusterTest, free_port, gossipctl, wait_for
from switchboard import Switchboard, unavailable

NO_NAMESPACES = unavailable()
CLOCK_STEP = os.environ.get("GOSSIPD_CLOCK_STEP", "")


class Asks(ClusterTest):
    def ask(self, *arguments, rest=None):
        """Exit code, and the checks by name."""
        rest = rest or f"127.0.0.1:{free_port()}"
        done = gossipctl("--rest", rest, "doctor", "-o", "json", *arguments)
        checks = json.loads(done.stdout)["checks"]
        for check in checks:
            self.assertIn(check["verdict"], ("ok", "warn", "fail"))
            if check["verdict"] != "ok":
                self.assertTrue(check["advice"], check)
        return done.returncode, {check["check"]: check for check in checks}


class Doctor(Asks):
    def test_without_a_daemon_it_looks_at_the_machine(self):
        state = os.path.join(self.cluster.directory, "state")
        code, checks = self.ask("--state-dir", state)
        self.assertEqual(0, code, checks)
        self.assertEqual("warn", checks["daemon"]["verdict"])
        self.assertIn("start gossipd", checks["daemon"]["advice"])
        self.assertEqual("ok", checks["libtorch"]["verdict"], checks["libtorch"])
        self.assertIn("does not exist yet", checks["state"]["what"])
        for odd, why in ((__file__, "is no directory"), (state + "x" * 300, "be looked into: ")):
            code, checks = self.ask("--state-dir", odd)
            self.assertEqual((0, "warn"), (code, checks["state"]["verdict"]))
            self.assertIn(why, checks["state"]["what"])

        os.mkdir(state)
        key = os.path.join(state, "cluster.key")
        self.assertEqual(0, gossipctl("key", "generate", key).returncode)
        code, checks = self.ask("--state-dir", state)
        self.assertEqual("ok", checks["key"]["verdict"], checks["key"])
        self.assertIn("a durable write takes", checks["disk"]["what"])
        self.assertEqual(["cluster.key"], os.listdir(state), "nothing is left behind")

        os.chmod(key, 0o644)
        code, checks = self.ask("--state-dir", state)
        self.assertEqual((8, "fail"), (code, checks["key"]["verdict"]))
        os.chmod(key, 0o600)
        with open(key, "w", encoding="utf-8") as file:
            file.write("no key\n")
        code, checks = self.ask("--state-dir", state)
        self.assertEqual((8, "fail"), (code, checks["key"]["verdict"]))
        os.remove(key)

        for data, verdict in (("/nope", "fail"), (state, "fail"), (self.cluster.directory, "ok")):
            code, checks = self.ask("--state-dir", state, "--data", data)
            self.assertEqual(verdict, checks["data"]["verdict"], data)
            self.assertEqual(8 if verdict == "fail" else 0, code)

    def test_beside_gossipd_core_alone_it_looks_whether_that_starts(self):
        folder = os.path.join(self.cluster.directory, "bin")
        os.mkdir(folder)
        here = shutil.copy(GOSSIPCTL, folder)
        core = os.path.join(folder, "gossipd-core")

        def look():
            words = [here, "--rest", f"127.0.0.1:{free_port()}", "doctor", "-o", "json"]
            done = subprocess.run([*words, "--state-dir", folder], capture_output=True, text=True)
            return {check["check"]: check for check in json.loads(done.stdout)["checks"]}

        self.assertIn("no gossipd or gossipd-core", look()["program"]["what"])
        for status, verdict in ((0, "ok"), (1, "fail")):
            with open(core, "w") as file:
                file.write(f"#!/bin/sh\nexit {status}\n")
            os.chmod(core, 0o755)
            checks = look()
            self.assertNotIn("libtorch", checks)
            self.assertEqual(verdict, checks["program"]["verdict"])
            self.assertIn(core, checks["program"]["what"])

    def test_of_a_cluster_that_works_it_says_so_line_by_line(self):
        first = self.cluster.found(self.cluster.job(), shard="1/2", trainer__min_step_ms=20)
        second = self.cluster.joiner("box2", first, shard="2/2", trainer__min_step_ms=20).start()
        second.wait_linked(1)
        for node in (first, second):
            node.wait("it is found", lambda s: s["reachability"] == "reachable")
        code, checks = self.ask(rest=first.rest)
        self.assertEqual(0, code, checks)
        for name in ("daemon", "training", "reachable", "key"):
            self.assertEqual("ok", checks[name]["verdict"], checks[name])
        self.assertRegex(
            checks["link to box2"]["what"],
            "round trip .*, sends .*/s, receives .*/s, path MTU [0-9]+, "
            "an exchange of .*B takes .*s, which is too little to tell what the line carries",
        )
        self.assertIn("cpu", checks["device"]["what"])

        self.assertEqual("ok", checks["clock of box2"]["verdict"], checks["clock of box2"])

        table = first.ctl("doctor")
        self.assertEqual(0, table.returncode)
        self.assertRegex(table.stdout, r"(?m)^ok +link to box2 +round trip")
        second.kill()
        first.wait("box2 is missed", lambda s: s["members_alive"] == 1)
        code, checks = self.ask(rest=first.rest)
        self.assertEqual((0, "warn"), (code, checks["member box2"]["verdict"]))
        self.assertIn("gossipctl forget box2", checks["member box2"]["advice"])
        self.assertEqual(0, first.ctl("leave").returncode)
        _, checks = self.ask(rest=first.rest)
        self.assertEqual("gossipctl join brings it back", checks["training"]["advice"])

    def test_a_box_whose_clock_is_wrong_is_named(self):
        file = os.path.join(self.cluster.directory, "clock")
        with open(file, "wb") as out:
            out.write(struct.pack("=q", -3600))
        first = self.cluster.found(self.cluster.job(), shard="1/2", trainer__min_step_ms=20)
        late = self.cluster.joiner("box2", first, shard="2/2", trainer__min_step_ms=20)
        late.prefix = ["env", f"LD_PRELOAD={CLOCK_STEP}", f"CLOCK_STEP_FILE={file}"]
        late.start().wait_linked(1)
        for node, other, word in ((first, "box2", "behind"), (late, "box1", "ahead of")):
            wait_for("a pong", lambda n=node: list(n.links().values())[0]["clock_ahead_s"])
            code, checks = self.ask(rest=node.rest)
            found = checks[f"clock of {other}"]
            self.assertEqual((0, "warn"), (code, found["verdict"]))
            self.assertRegex(found["what"], f"it is (1 h|59 min|60 min).* {word} this box's")
            self.assertIn("NTP", found["advice"])


@unittest.skipIf(NO_NAMESPACES, NO_NAMESPACES)
class NarrowLine(Asks):
    def test_of_a_narrow_line_it_says_what_it_carries_and_what_an_exchange_takes_on_it(self):
        mbit = 2
        self.cluster.switchboard = Switchboard()
        job = self.cluster.job(
            model='kind = "mlp"\nhidden = [1024, 1024]', batch=4, learning_rate=0.01
        )
        # Half a second each: on a machine that is busy too, two steps take far less.
        settings = {"trainer__min_step_ms": 20, "exchange__period_steps": 2}
        first = self.cluster.found(job, shard="1/2", **settings)
        self.cluster.switchboard.rate(first.name, mbit)
        second = self.cluster.joiner("box2", first, shard="2/2", **settings)
        second.start().wait_linked(1)
        wait_for("exchanges", lambda: first.links()["box2"]["turns_spoken"] >= 6)
        path = first.links()["box2"]["path"]
        self.assertEqual(1500, path["mtu"])
        of_line = path["bytes_acknowledged"] * 8 / path["busy_s"] / (mbit * 1e6)
        self.assertTrue(0.7 < of_line < 1.3, path)

        code, checks = self.ask(rest=first.rest)
        found = checks["link to box2"]
        said = re.search(
            r"carries ([\d.]+) Mbit/s, an exchange of ([\d.]+) kB takes ([\d.]+) ms", found["what"]
        )
        self.assertTrue(said, found)
        rate, kilobytes, milliseconds = (float(number) for number in said.groups())
        self.assertTrue(0.7 < rate / mbit < 1.3, found)
        self.assertAlmostEqual(1, kilobytes * 8 / rate / milliseconds, delta=0.1)
        self.assertEqual((0, "warn"), (code, found["verdict"]), found)
        self.assertRegex(
            found["advice"], r"that is \d+ steps, and one is due every 2: use a faster"
        )


if __name__ == "__main__":
    unittest.main()
