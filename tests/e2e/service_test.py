"""A daemon under a service manager: its notifications, its metrics listener, and what of a node
lasts over its restarts (history, name).
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import unittest

from cluster import ClusterTest, free_port, wait_for

EXTERNAL_JOB = """
name = "mine"
batch = 32
budget_samples = 10000
[model]
kind = "external"
"""


class Manager:
    """The socket that NOTIFY_SOCKET names, read at once: what finds it full is lost."""

    def __init__(self, path):
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.lines = []
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        while words := self.socket.recv(4096):
            self.lines += words.decode().split("\n")

    def close(self):
        if self.reader.is_alive():
            self.socket.shutdown(socket.SHUT_RD)
            self.reader.join()
        self.socket.close()

    def said(self, start):
        return [line for line in list(self.lines) if line.startswith(start)]


class Service(ClusterTest):
    def founder(self, *arguments, **settings):
        return self.cluster.founder(self.cluster.job(), *arguments, shard="1/1", **settings)

    def with_manager(self, watchdog_us):
        manager = Manager(os.path.join(self.cluster.directory, "notify"))
        self.addCleanup(manager.close)
        variables = {"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": watchdog_us}
        for name, value in variables.items():
            os.environ[name] = value
            self.addCleanup(os.environ.pop, name, None)
        return manager

    def test_a_service_manager_hears_ready_status_watchdog_and_stopping(self):
        manager = self.with_manager("400000")
        node = self.founder().start()
        wait_for("READY=1", lambda: manager.said("READY=1"))
        self.assertEqual("READY=1", manager.lines[0])
        wait_for("the phase", lambda: manager.said("STATUS=training, "))
        wait_for("the watchdog's beats", lambda: len(manager.said("WATCHDOG=1")) > 3)
        self.assertEqual([], manager.said("STOPPING=1"))
        self.assertEqual(0, node.terminate())
        self.assertEqual(1, len(manager.said("STOPPING=1")))
        self.assertEqual(1, len(manager.said("READY=1")))

    def test_a_node_that_goes_on_to_the_next_job_does_not_stop_for_its_manager(self):
        """A manager kills what says STOPPING=1 and lives on."""
        manager = self.with_manager("400000")
        short = {"budget_samples": 2_000, "warmup_samples": 100}
        node = self.cluster.founder(self.cluster.job(**short), shard="1/1").start()
        node.wait_phase("finished")
        following = self.cluster.job(file="next.toml", name="second", **short)
        done = node.ctl("job", "start", following)
        self.assertEqual(0, done.returncode, done.stderr)
        wait_for("READY=1 of the next job", lambda: len(manager.said("READY=1")) == 2)
        self.assertEqual([], manager.said("STOPPING=1"))
        periods = ["WATCHDOG_USEC=400000", "WATCHDOG_USEC=900000000", "WATCHDOG_USEC=400000"]
        self.assertEqual(periods, manager.said("WATCHDOG_USEC="))
        self.assertEqual(0, node.terminate())
        self.assertEqual(1, len(manager.said("STOPPING=1")))

    def test_a_founder_that_waits_for_its_first_trainer_has_started_for_its_manager(self):
        manager = self.with_manager("400000")
        path = os.path.join(self.cluster.directory, "mine.toml")
        with open(path, "w", encoding="utf-8") as out:
            out.write(EXTERNAL_JOB)
        node = self.cluster.founder(path, shard="auto", data=None)
        node.start()
        wait_for("READY=1", lambda: manager.said("READY=1"))
        said = ["READY=1", f"STATUS=waiting for a trainer at {node.state_dir}/trainer.sock"]
        self.assertEqual([*said, "WATCHDOG_USEC=0"], manager.lines)
        self.assertEqual(-signal.SIGTERM, node.terminate())

    def test_as_a_container_s_first_process_it_can_be_stopped_before_it_runs(self):
        """The kernel withholds a signal's default from such a process."""
        within = ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child"]
        if subprocess.run([*within, "true"], check=False).returncode != 0:
            self.skipTest("no namespace of processes can be made here")
        path = os.path.join(self.cluster.directory, "mine.toml")
        with open(path, "w", encoding="utf-8") as out:
            out.write(EXTERNAL_JOB)
        node = self.cluster.founder(path, shard="auto", data=None)
        node.prefix = within
        for number in (signal.SIGTERM, signal.SIGINT):
            node.start().wait_log("event=waiting-for-trainer")
            outside = node.process.pid
            with open(f"/proc/{outside}/task/{outside}/children", encoding="ascii") as file:
                os.kill(int(file.read()), number)
            self.assertEqual(128 + number, node.exit_code())

    def test_no_watchdog_and_no_manager_are_no_trouble(self):
        manager = self.with_manager("nonsense")
        node = self.founder().start()
        wait_for("the phase", lambda: manager.said("STATUS=training, "))
        self.assertEqual([], manager.said("WATCHDOG=1"))
        manager.close()
        os.unlink(manager.path)
        node.wait_step(50)
        self.assertEqual(0, node.terminate())

    def get(self, address, path, method="GET", host=None, origin=None):
        connection = http.client.HTTPConnection(address, timeout=10)
        headers = {"Host": host} if host else {}
        if origin:
            headers["Origin"] = origin
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def test_the_metrics_listener_serves_its_three_paths_and_nothing_else(self):
        port = free_port()
        node = self.founder("--metrics-listen", f"0.0.0.0:{port}").start()
        node.wait_phase("training")
        here = f"127.0.0.1:{port}"
        status, text = self.get(here, "/metrics", host="box1.example:9464")
        self.assertEqual(200, status)
        self.assertIn("\ngossipd_", text)
        self.assertEqual(200, self.get(here, "/livez")[0])
        self.assertEqual(200, self.get(here, "/readyz")[0])
        for path in ("/", "/v1/status", "/v1/members", "/v1/keys", "/v1/events", "/metrics/"):
            self.assertEqual(404, self.get(here, path)[0], path)
        self.assertEqual(404, self.get(here, "/v1/cluster/leave", method="POST")[0])
        self.assertEqual(405, self.get(here, "/metrics", method="POST")[0])
        self.assertEqual(403, self.get(here, "/metrics", origin="http://evil.example")[0])
        # Any number of idle connections leaves room for one that asks.
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(64)]
        self.assertEqual(200, self.get(here, "/livez")[0])
        for connection in idle:
            connection.close()
        self.assertEqual(0, node.terminate())
        taken = self.founder("--metrics-listen", node.address, name="box2")
        taken.address = node.address
        taken.start()
        self.assertNotEqual(0, taken.exit_code())
        self.assertIn("metrics.listen", taken.log())

    def points(self, node):
        return node.get("/v1/history")["points"]

    def test_history_lasts_over_restarts_and_a_damaged_file_is_set_aside(self):
        node = self.founder().start()
        wait_for("two points", lambda: len(self.points(node)) >= 2)
        before = self.points(node)
        self.assertEqual(0, node.terminate())
        node.start()
        node.wait_phase("training")
        after = self.points(node)
        self.assertEqual(before, after[: len(before)])
        wait_for("one more", lambda: len(self.points(node)) > len(after))
        times = [p["time_s"] for p in self.points(node)]
        self.assertEqual(sorted(times), times)
        sent = [p["bytes_sent"] for p in self.points(node)]
        self.assertEqual(sorted(sent), sent)
        self.assertEqual(0, node.terminate())

        path = os.path.join(node.state_dir, "history.jsonl")
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        # A crash cuts the last line off; the rest is as it was.
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines)[:-5])
        node.start().wait_phase("training")
        self.assertEqual([], node.status()["warnings"])
        self.assertEqual([json.loads(x)["step"] for x in lines[1:-1]],
                         [p["step"] for p in self.points(node)][: len(lines) - 2])
        self.assertEqual(0, node.terminate())
        lines[2] = "nonsense"
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        node.start().wait_phase("training")
        warnings = [w["text"] for w in node.status()["warnings"]]
        self.assertRegex(warnings[0], "history.jsonl: is damaged after 1 points.*corrupt.jsonl")
        self.assertTrue(os.path.exists(os.path.join(node.state_dir, "history.corrupt.jsonl")))
        self.assertEqual(0, node.terminate())

    def test_signals_at_once_are_one_request_to_stop(self):
        node = self.founder().start()
        node.wait_step(20)
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            node.signal(number)
        self.assertEqual(0, node.exit_code())
        self.assertIn("event=stopped", node.log())

    def test_a_name_that_was_once_given_is_kept(self):
        node = self.founder().start()
        node.wait_phase("training")
        self.assertEqual(0, node.terminate())
        line = node.command_line()
        del line[line.index("--name") : line.index("--name") + 2]
        node.command_line = lambda extra=(): [*line, *extra]
        node.start().wait_phase("training")
        self.assertEqual("box1", node.status()["name"])
        self.assertIn(" node=box1 ", node.log())
        self.assertEqual(0, node.terminate())
        node.start(extra=["--name", "other"]).wait_phase("training")
        self.assertEqual(0, node.terminate())
        node.start().wait_phase("training")
        self.assertEqual("other", node.status()["name"])


if __name__ == "__main__":
    unittest.main()
