"""Prometheus with our rules scrapes real daemons: each alert that an operator needs fires on its
fault and on no healthy node, and every panel of the Grafana dashboard has something to show.
"""

import http.client
import json
import os
import re
import subprocess
import tempfile
import unittest
import urllib.parse

from cluster import ClusterTest, Unexpected, free_port, wait_for
from cluster import _die_with_the_test as die_with_the_test
from slow_disk import Disk

DEPLOY = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../deploy"))
RULES = os.path.join(DEPLOY, "prometheus/rules.yml")
RULES_TEST = os.path.join(DEPLOY, "prometheus/rules_test.yml")
DASHBOARD = os.path.join(DEPLOY, "grafana/gossipd.json")
NAME = re.compile(r"\bgossipd_\w+")
# Minutes become seconds, so that a test need not wait for them.
HURRY = (
    (r"(\bfor: \d+)m", r"\1s"),
    (r"\[(\d+)m\]", r"[\1s]"),
    (r"(_uptime_seconds > )600", r"\g<1>10"),
)
WINDOW = "10s"


def text_of(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class Prometheus:
    """One server, with the rules in a hurry, that scrapes `nodes` by name."""

    def __init__(self, directory, nodes):
        rules = text_of(RULES)
        for slow, quick in HURRY:
            rules = re.sub(slow, quick, rules)
        targets = [
            {"targets": [node.rest], "labels": {"instance": name}} for name, node in nodes.items()
        ]
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"}
            | {"evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "gossipd", "static_configs": targets}],
        }
        for name, text in (("rules.yml", rules), ("prometheus.yml", json.dumps(config))):
            with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
                file.write(text)
        self.address = f"127.0.0.1:{free_port()}"
        self.log = open(os.path.join(directory, "prometheus.log"), "wb")
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={directory}/prometheus.yml",
                f"--storage.tsdb.path={directory}/series",
                f"--web.listen-address={self.address}",
            ],
            stdout=self.log,
            stderr=self.log,
            preexec_fn=die_with_the_test,
        )

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def get(self, path, **query):
        connection = http.client.HTTPConnection(self.address, timeout=10)
        try:
            connection.request("GET", path + "?" + urllib.parse.urlencode(query))
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        if answer["status"] != "success":
            raise AssertionError(f"{query}: {answer['error']}")
        return answer["data"]

    def query(self, expression):
        return self.get("/api/v1/query", query=expression)["result"]

    def firing(self):
        """(alert, instance) of what fires now."""
        return {
            (alert["labels"]["alertname"], alert["labels"]["instance"])
            for alert in self.get("/api/v1/alerts")["alerts"]
            if alert["state"] == "firing"
        }

    def wait_firing(self, *wanted):
        def holds():
            now = self.firing()
            if set(wanted) <= now:
                return now
            raise Unexpected(f"firing: {sorted(now)}")

        return wait_for(f"alerts {wanted}", holds)


def panels():
    """The expressions of the dashboard with its variables filled in, by panel."""
    fill = {"$job": "gossipd", "$instance": ".*", "$__rate_interval": WINDOW}
    for panel in json.loads(text_of(DASHBOARD))["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            for variable, value in fill.items():
                expression = expression.replace(variable, value)
            yield panel["title"], expression


class Rules(unittest.TestCase):
    """promtool's own tests, and that none of them is idle."""

    def promtool(self, *arguments, cwd=os.path.dirname(RULES)):
        return subprocess.run(
            ["promtool", *arguments], cwd=cwd, capture_output=True, text=True, check=False
        )

    def test_the_rules_hold_in_promtools_tests_and_each_is_tested(self):
        self.assertIn("SUCCESS", self.promtool("check", "rules", RULES).stdout)
        done = self.promtool("test", "rules", RULES_TEST)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        whole = text_of(RULES)
        rules = re.findall(r"      - alert: (\w+)\n", whole)
        self.assertGreaterEqual(len(rules), 12)
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(RULES_TEST, os.path.join(folder, "rules_test.yml"))
            for rule in rules:
                with open(os.path.join(folder, "rules.yml"), "w", encoding="utf-8") as file:
                    file.write(whole.replace(f"alert: {rule}\n", f"alert: {rule}Not\n"))
                done = self.promtool("test", "rules", "rules_test.yml", cwd=folder)
                self.assertEqual(1, done.returncode, f"no test misses {rule}")

    def test_the_example_configuration_is_one(self):
        done = self.promtool("check", "config", os.path.join(DEPLOY, "prometheus/prometheus.yml"))
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)


class Alerts(ClusterTest):
    def key(self, name):
        return os.path.join(self.cluster.directory, name + ".key")

    def start(self):
        """Three healthy nodes, two whose models drift apart, and one that takes no step."""
        job = self.cluster.job(learning_rate=0.2, evaluate_every_samples=2000)
        calm = self.cluster.job("calm.toml", evaluate_every_samples=2000, learning_rate=0.02)
        apart = {"exchange__mixing": 0.001, "trainer__min_step_ms": 5, "key": self.key("apart")}
        box1 = self.cluster.founder(calm, trainer__min_step_ms=20).start()
        far1 = self.cluster.founder(job, name="far1", **apart).start()
        hour = {"trainer__min_step_ms": 3_600_000, "key": self.key("stuck")}
        stuck = self.cluster.founder(job, name="stuck", **hour).start()
        for node in (box1, far1, stuck):
            node.wait_phase("training")
        self.box2 = self.cluster.joiner("box2", box1, trainer__min_step_ms=20).start()
        box3 = self.cluster.joiner("box3", box1, trainer__min_step_ms=20)
        self.disk = Disk(box3)
        box3.start()
        far2 = self.cluster.joiner("far2", far1, shard="3/3", **apart).start()
        nodes = {node.name: node for node in (box1, self.box2, box3, far1, far2, stuck)}
        self.prometheus = Prometheus(self.cluster.directory, nodes)
        self.addCleanup(self.prometheus.stop)
        for name in ("box1", "box2", "box3"):
            nodes[name].wait_linked(2)
        far2.wait_linked(1)
        return box1

    def assert_the_dashboard_is_alive(self, node):
        asked = set(NAME.findall(text_of(RULES) + text_of(DASHBOARD)))

        def known():
            missing = asked - set(NAME.findall(node.request("GET", "/metrics")[1]))
            if missing:
                raise Unexpected(f"/metrics has no {sorted(missing)}")
            return True

        wait_for("the metrics of rules and dashboard, some from the first evaluation on", known)
        for title, expression in panels():
            wait_for(f"{title}: {expression}", lambda e=expression: self.prometheus.query(e))

    def test_each_fault_fires_its_alert_and_a_healthy_node_none(self):
        box1 = self.start()
        self.assert_the_dashboard_is_alive(box1)
        calm = {(alert, on) for alert, on in self.prometheus.firing() if on.startswith("box")}
        self.assertEqual(set(), calm)

        self.disk.takes("stuck")
        self.box2.kill()
        firing = self.prometheus.wait_firing(
            ("GossipdNodeGone", "box2"),
            ("GossipdMemberFailed", "box1"),
            ("GossipdDiskSlow", "box3"),
            ("GossipdConsensusDistanceHigh", "far1"),
            ("GossipdJobStalled", "stuck"),
        )
        self.assertEqual({"GossipdMemberFailed"}, {alert for alert, on in firing if on == "box1"})

        self.box2.settings["exchange.magnitude_max"] = 1e-6
        self.box2.start()
        self.disk.takes(0)
        self.prometheus.wait_firing(("GossipdLinkQuarantined", "box2"))
        wait_for(
            "a node that is back is not gone",
            lambda: ("GossipdNodeGone", "box2") not in self.prometheus.firing(),
        )


if __name__ == "__main__":
    unittest.main()
