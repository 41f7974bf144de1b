"""Whether a node is to be found at the address that it advertises, and who says so."""

import json
import signal
import unittest

from cluster import ClusterTest, free_port, gossipctl, wait_for
from switchboard import Switchboard, unavailable

NO_NAMESPACES = unavailable()


class Advertise(ClusterTest):
    def test_a_wrong_advertise_is_noticed_named_and_told_to_all(self):
        first = self.cluster.found(self.cluster.job(), shard="1/2", trainer__min_step_ms=20)
        wrong = f"127.0.0.1:{free_port()}"
        second = self.cluster.joiner(
            "box2", first, "--advertise", wrong, shard="2/2", trainer__min_step_ms=20
        ).start()
        second.wait_log(rf"warning .*event=not-reachable address={wrong} by=box1 reason=.*refused")
        status = second.wait("it knows", lambda s: s["reachability"] == "address-silent")
        self.assertIn(f"not to be found at {wrong}", status["warnings"][-1]["text"])
        self.assertIn("--advertise", status["warnings"][-1]["text"])
        self.assertIn("advertises an address that does not answer", second.ctl("status").stdout)
        wait_for(
            "box1 shows it",
            lambda: first.members()["box2"]["reachability"] == "address-silent",
        )
        member = first.members()["box2"]
        self.assertEqual((False, True), (member["answers_us"], member["finds_us"]))
        self.assertIn("refused", member["no_answer"])
        first.wait("box2 found it", lambda s: s["reachability"] == "reachable")
        self.assertFalse([w for w in first.status()["warnings"] if "to be found" in w["text"]])
        first.wait_step(first.status()["step"] + 20)
        self.assertEqual(1, second.log().count("event=not-reachable"))
        first.wait_linked(1)  # as good as any, once box2 has prepared its training

        rows = first.ctl("reachability", "-o", "tsv", "--no-headers").stdout.splitlines()
        cells = {row.split("\t")[0]: row.split("\t")[2:5] for row in rows}
        self.assertEqual(["reachable", "-", "-"], cells["box1"])
        self.assertEqual(["address-silent", "no", "yes"], cells["box2"])

        doctor = second.ctl("doctor", "-o", "json")
        self.assertEqual(8, doctor.returncode)
        found = {c["check"]: c for c in json.loads(doctor.stdout)["checks"]}
        self.assertEqual("fail", found["reachable"]["verdict"])
        self.assertIn("--advertise", found["reachable"]["advice"])
        self.assertIn("round trip", found["link to box1"]["what"])


# A machine whose only name server never answers, as what is sent to it is lost.
SILENT_NAME_SERVER = """
ip link set lo up && ip route add 192.0.2.0/24 dev lo &&
echo "nameserver 192.0.2.1\noptions timeout:30 attempts:5" > resolv.conf &&
mount --bind resolv.conf /etc/resolv.conf && exec "$@"
"""


@unittest.skipIf(NO_NAMESPACES, NO_NAMESPACES)
class SilentNameServer(ClusterTest):
    def test_a_node_that_looks_for_its_own_address_ends_at_the_first_signal(self):
        names = "one.example:7610,two.example:7610"
        node = self.cluster.node("box1", "--join", names)
        node.address = f"*:{free_port()}"
        node.prefix = ["unshare", "--net", "--mount", "sh", "-c", SILENT_NAME_SERVER, "sh"]
        self.assertEqual(0, gossipctl("key", "generate", self.cluster.key).returncode)
        node.start()

        def asks():
            with open(f"/proc/{node.process.pid}/net/udp", encoding="ascii") as sockets:
                return ":0035 " in sockets.read()

        wait_for("it asks the name server", asks)
        self.assertEqual(-signal.SIGTERM, node.terminate())


@unittest.skipIf(NO_NAMESPACES, NO_NAMESPACES)
class DialsOut(ClusterTest):
    def test_a_node_behind_a_firewall_knows_that_it_only_dials_out(self):
        self.cluster.switchboard = Switchboard()
        first = self.cluster.found(self.cluster.job(), shard="1/2", trainer__min_step_ms=20)
        second = self.cluster.joiner("box2", first, shard="2/2", trainer__min_step_ms=20)
        self.cluster.switchboard.refuse_calls("box2")
        second.start()
        second.wait_linked(1)
        second.wait("it knows", lambda s: s["reachability"] == "dials-out")
        self.assertIn("it only dials out", second.ctl("status").stdout)
        first.wait("box2 finds it", lambda s: s["reachability"] == "reachable")
        wait_for("told", lambda: first.members()["box2"]["reachability"] == "dials-out")
        self.assertEqual("open", first.links()["box2"]["state"])


if __name__ == "__main__":
    unittest.main()
