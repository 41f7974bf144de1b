"""`gossipctl job start`: a cluster goes on to its next job, whoever dies or is away meanwhile."""

import concurrent.futures
import ctypes
import glob
import json
import os
import re
import signal
import threading
import time
import unittest

from cluster import BIN, FASHION_MNIST, ClusterTest, wait_for
from slow_disk import Disk

EXIT_TIMEOUT = 7
PTRACE_SEIZE = 0x4206  # of <sys/ptrace.h>
WALL = 0x40000000  # of <sys/wait.h>
SHORT = {"budget_samples": 6_000, "warmup_samples": 500}


class NextJob(ClusterTest):
    def two_that_finished(self, prepare=lambda first: None):
        first = self.cluster.founder(self.cluster.job(**SHORT), trainer__min_step_ms=5)
        prepare(first)
        first.start()
        first.wait_phase("training")
        second = self.cluster.joiner("box2", first, shard="2/3", trainer__min_step_ms=5).start()
        for node in (first, second):
            node.wait_phase("finished")
        return first, second

    def next_job(self, **values):
        return self.cluster.job(file="next.toml", name="second", **{**SHORT, **values})

    def wait_number(self, node, number, phase="finished"):
        """Until the node is in this phase of the cluster's job of that number."""

        def holds():
            job = node.get("/v1/job")
            status = node.status()
            return (job["number"], status["phase"]) == (number, phase) and status

        return wait_for(f"{node.name}: {phase} with job {number}", holds)

    def test_members_train_the_next_job_and_one_that_was_down_follows(self):
        disks = []
        first, second = self.two_that_finished(lambda node: disks.append(Disk(node)))
        disk = disks[0]
        third = self.cluster.joiner("box3", first, shard="3/3").start()
        third.wait_phase("finished")
        final = third.checkpoint_path("final")
        wait_for(f"{third.name} writes {final}", lambda: os.path.exists(final))
        self.assertEqual(0, third.terminate())
        before = first.status()
        job = self.next_job(hidden=16)
        disk.takes("stuck")
        started = second.ctl("job", "start", job)
        self.assertEqual(0, started.returncode, started.stderr)
        waiting = first.wait("its disk is named", lambda s: "next job" in s["waiting_for"])
        self.assertEqual("the disk to take the cluster's next job", waiting["waiting_for"])
        first.wait_log("goes on to its next job, and this node waits for the disk of")
        disk.takes(0)
        for node in (first, second):
            status = self.wait_number(node, 2)
            self.assertEqual("second", node.get("/v1/job")["name"])
            self.assertEqual(before["cluster_id"], status["cluster_id"])
            self.assertGreaterEqual(status["cluster_samples"], SHORT["budget_samples"])
            self.assertLess(status["cluster_samples"], 2 * SHORT["budget_samples"])
        self.assertEqual(before["id"], first.status()["id"])
        third.start()
        status = self.wait_number(third, 2)
        self.assertLess(status["cluster_samples"], 2 * SHORT["budget_samples"])
        for node in (first, second, third):
            former = os.path.join(node.state_dir, "jobs", f"1-{before['job_hash']}")
            for name in ("job.toml", "history.jsonl", "checkpoints/final.safetensors"):
                self.assertTrue(os.path.exists(os.path.join(former, name)), (node.name, name))
            final = node.checkpoint_path("final")
            wait_for(f"{node.name} writes {final}", lambda path=final: os.path.exists(path))
        # Restarts keep to it, also with a command line that names the first job.
        self.assertEqual(0, first.terminate())
        first.start()
        self.wait_number(first, 2)
        self.assertRegex(first.log(), r"the cluster has gone on to job \w{16,} \(second\)")

    def test_who_started_it_dies_right_after_the_answer_and_nobody_waits_for_it(self):
        first, second = self.two_that_finished()
        status, text = first.request(
            "POST", "/v1/job/start", json.dumps({"file": self.next_job()}), timeout_s=60
        )  # once a process has tried the job
        first.kill()
        self.assertEqual((202, 2), (status, json.loads(text).get("number")), text)
        self.wait_number(second, 2)
        # It knows the job as well, and takes the model of those that went on.
        first.start()
        self.assertLess(
            self.wait_number(first, 2)["cluster_samples"], 2 * SHORT["budget_samples"]
        )

    def test_a_node_told_to_stop_while_it_goes_on_to_the_next_job_ends(self):
        disks = []
        first = self.alone(lambda node: disks.append(Disk(node)))
        stops = threading.Event()
        disks[0].takes(1)

        def write_checkpoints():  # so that the stop has to wait for one
            while not stops.is_set():
                first.ctl("checkpoint")

        with concurrent.futures.ThreadPoolExecutor() as pool:
            writes = [pool.submit(write_checkpoints) for _ in range(2)]
            self.addCleanup(stops.set)
            started = pool.submit(first.ctl, "job", "start", self.next_job())
            first.wait_log("event=stopping why=.starting again with the next job")
            disks[0].takes("stuck")
            stops.set()
            first.signal(signal.SIGTERM)
            first.wait_log("event=stopping why=.?SIGTERM.* does not start again")
            disks[0].takes(0)
            self.assertEqual(0, started.result().returncode, started.result())
        self.assertEqual(0, first.exit_code())
        self.assertEqual(1, first.log().count("event=start "))
        first.start()
        self.wait_number(first, 2)

    def test_sighup_while_it_starts_again_with_the_next_job_does_not_end_a_node(self):
        first = self.alone()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            started = pool.submit(first.ctl, "job", "start", self.next_job())
            self.addCleanup(started.cancel)
            first.wait_log("event=stopping why=.starting again with the next job")
            until = time.monotonic() + 120
            while first.log().count("event=start ") < 2:
                self.assertLess(time.monotonic(), until, first.log())
                first.signal(signal.SIGHUP)
                self.assertIsNone(first.process.poll(), first.log())
                time.sleep(0.01)
            self.assertEqual(0, started.result().returncode, started.result())
        self.wait_number(first, 2)

    def test_sigterm_just_before_it_starts_again_with_the_next_job_ends_a_node(self):
        control = self.path("exec")
        library = os.path.join(BIN, "slow_exec_preload.so")

        def prepare(node):
            node.prefix = ["env", f"LD_PRELOAD={library}", f"SLOW_EXEC_CONTROL={control}"]

        first = self.alone(prepare)
        with open(control, "w", encoding="ascii"):
            pass
        with concurrent.futures.ThreadPoolExecutor() as pool:
            started = pool.submit(first.ctl, "job", "start", self.next_job())
            wait_for("execv()", lambda: not os.path.exists(control))
            self.assertEqual(-signal.SIGTERM, first.terminate())
            self.assertEqual(0, started.result().returncode, started.result())
        first.start()
        self.wait_number(first, 2)

    def test_seeds_of_the_node_file_stay_there_over_a_next_job(self):
        config = self.path("node.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write('join = ["127.0.0.1:9"]\n')
        first = self.alone()
        self.assertEqual(0, first.terminate())
        first.start(["--config", config]).wait_phase("finished")
        started = first.ctl("job", "start", self.next_job())
        self.assertEqual(0, started.returncode, started.stderr)
        waited = first.ctl("wait", "--for", "ready")
        self.assertEqual(0, waited.returncode, waited.stderr)
        self.assertEqual(2, first.get("/v1/job")["number"])
        self.wait_number(first, 2)
        with open(f"/proc/{first.process.pid}/cmdline", encoding="utf-8") as file:
            self.assertNotIn("--join", file.read().split("\0"))

    def test_a_member_whose_invite_was_deleted_goes_on_to_the_next_job(self):
        first = self.cluster.founder(self.cluster.job(**SHORT), trainer__min_step_ms=5).start()
        first.wait_phase("training")
        invite, config = self.path("invite"), self.path("node.toml")
        self.assertEqual(0, first.ctl("invite", "--file", invite).returncode)
        with open(config, "w", encoding="utf-8") as file:
            file.write(f'join = ["@{invite}"]\n')
        second = self.cluster.node("box2", "--config", config, "--shard", "1/1", key="").start()
        for node in (first, second):
            node.wait_phase("finished")
        os.remove(invite)
        started = first.ctl("job", "start", self.next_job())
        self.assertEqual(0, started.returncode, started.stderr)
        for node in (first, second):
            self.wait_number(node, 2)
        # What stands in the node file now is taken, beside the invite that is gone too.
        for join, taken in (
            (f'"@{invite}", "127.0.0.1:9"', "127.0.0.1:9"),
            (f'"{first.address}"', first.address),
        ):
            with open(config, "w", encoding="utf-8") as file:
                file.write(f"join = [{join}]\n")
            second.signal(signal.SIGHUP)
            second.wait_log(f'event=reloaded .*join="{taken}"')
        with open(config, "w", encoding="utf-8") as file:
            file.write(f'join = ["@{invite}"]\n')
        # Nor does a restart need it.
        self.assertEqual(0, second.terminate())
        second.start().wait_phase("finished")
        second.wait_log("there is no invite file .*a member goes on without")

    def test_what_cannot_be_started_is_refused_with_the_reason(self):
        first = self.cluster.founder(self.cluster.job(budget_samples=200_000)).start()
        first.wait_phase("training")
        self.refused(first, self.next_job(), 6, "is not finished")
        short = self.cluster.founder(self.cluster.job("short.toml", **SHORT), name="alone").start()
        short.wait_phase("finished")
        self.refused(short, os.path.join(self.cluster.directory, "short.toml"), 6, "extend")
        self.refused(short, "/nope.toml", 2, "/nope.toml")
        self.refused(short, self.next_job(hidden=0), 2, "next.toml")
        external = os.path.join(self.cluster.directory, "external.toml")
        with open(external, "w", encoding="utf-8") as file:
            file.write('name = "x"\nbatch = 32\nbudget_samples = 9\n[model]\nkind = "external"\n')
        self.refused(short, external, 2, "attach")
        no_data = self.next_job(data='kind = "tokens"\nvocabulary = 300\nclasses = 300')
        self.refused(short, no_data, 2, "next.toml")
        # What the text allows and no box can train would take the whole cluster along.
        hopeless = self.next_job(rest='[training]\nprecision = "fp16"')
        self.refused(short, hopeless, 2, "which no CPU computes in")
        # This box, and so any like it, has a shard given by hand.
        shared = self.next_job(data=FASHION_MNIST + '\ndivision = "shared"')
        self.refused(short, shared, 2, "take --shard out")
        self.assertEqual(1, short.get("/v1/job")["number"])
        self.assertEqual("finished", short.status()["phase"])

    def test_a_trial_that_fails_after_the_answer_is_told_in_log_and_status(self):
        first = self.alone()
        asked, trial = self.held_trial(first)
        with open(f"/proc/{trial}/oom_score_adj", encoding="ascii") as file:
            self.assertEqual("1000\n", file.read(), "where memory runs out it goes first")
        done = asked.result()
        self.assertEqual(EXIT_TIMEOUT, done.returncode, done.stderr)
        self.assertIn("The job is still tried (still-trying)", done.stderr)
        os.kill(trial, signal.SIGKILL)
        told = "job 'second' was not started: a step of the job was killed"
        status = first.wait(
            "a warning", lambda s: any(told in warning["text"] for warning in s["warnings"])
        )
        self.assertEqual("", status["waiting_for"])
        self.assertIn(told, first.log())

    def test_of_two_members_that_start_jobs_the_slower_is_told_of_the_others(self):
        first, second = self.two_that_finished()
        asked, _ = self.held_trial(first)
        other = self.cluster.job(file="other.toml", name="other", **SHORT)
        started = second.ctl("job", "start", other)
        self.assertEqual(0, started.returncode, started.stderr)
        done = asked.result()
        self.assertEqual(6, done.returncode, done.stderr)
        self.assertRegex(done.stderr, r"another member started job \w{16}")
        self.assertIn("GET /v1/job shows it", done.stderr)
        for node in (first, second):
            self.wait_number(node, 2)
            self.assertEqual("other", node.get("/v1/job")["name"])

    def test_a_trial_ends_with_its_daemon(self):
        first = self.alone()
        asked, trial = self.held_trial(first)
        first.kill()
        wait_for(f"the trial {trial} ends", lambda: self.trial_of(self.path("next.toml")) is None)
        self.assertIn("the daemon ended before it answered", asked.result().stderr)

    def test_a_trial_that_cannot_be_killed_does_not_hold_up_a_stop_for_ever(self):
        first = self.alone()
        _, trial = self.held_trial(first)
        # Who traces a process keeps its end from its parent, as does a sleep in the kernel.
        if ctypes.CDLL(None).ptrace(PTRACE_SEIZE, trial, 0, 0) != 0:
            self.skipTest("no process can be traced here")
        self.assertEqual(1, first.terminate())
        self.assertRegex(first.log(), "without waiting any longer for: the trial of the next job")
        os.waitpid(trial, WALL)

    def alone(self, prepare=lambda node: None):
        node = self.cluster.founder(self.cluster.job(**SHORT))
        prepare(node)
        node.start().wait_phase("finished")
        node.wait("its final model", lambda s: s["waiting_for"] == "")
        return node

    def held_trial(self, node):
        """What `job start` will have said, and the process that tries the job, stopped."""
        job = self.next_job()
        threads = concurrent.futures.ThreadPoolExecutor(1)
        self.addCleanup(threads.shutdown)
        asked = threads.submit(node.ctl, "job", "start", job)
        trial = wait_for("the trial begins", lambda: self.trial_of(job))
        os.kill(trial, signal.SIGSTOP)
        told = "the trial of job 'second', which is to follow"
        # It may wait for one final model before.
        node.wait("the trial is told", lambda s: s["waiting_for"] == told)
        return asked, trial

    @staticmethod
    def trial_of(job):
        """Once it has begun main(), which ignores SIGHUP after it has tied itself to the daemon."""
        for path in glob.glob("/proc/[0-9]*"):
            try:
                with open(path + "/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
                with open(path + "/status", encoding="utf-8") as file:
                    ignored = int(re.search(r"SigIgn:\s+(\w+)", file.read()).group(1), 16)
            except OSError:
                continue
            if b"--check-config" in words and job.encode() in words and ignored & 1:
                return int(path.split("/")[2])
        return None

    def path(self, name):
        return os.path.join(self.cluster.directory, name)

    def refused(self, node, file, code, why):
        done = node.ctl("job", "start", file)
        self.assertIn(why, done.stderr)
        self.assertEqual(code, done.returncode, done.stderr)


if __name__ == "__main__":
    unittest.main()
