"""deploy/slurm without Slurm: its scripts, with programs in place of Slurm's."""

import os
import subprocess
import unittest

from cluster import DEADLINE_S, ClusterTest, clean_environment, wait_for
from cluster import _die_with_the_test as die_with_the_test
from install_test import ROOT

SCRIPTS = f"{ROOT}/deploy/slurm"
UNTIL_STOPPED = "sleep infinity & wait $!"


class SlurmScripts(ClusterTest):
    def setUp(self):
        super().setUp()
        self.folder = self.cluster.directory
        os.mkdir(f"{self.folder}/bin")
        self.environment = {
            **clean_environment(),
            "PATH": f"{self.folder}/bin:/usr/bin:/bin",
            "SLURM_SUBMIT_DIR": self.folder,
            "SLURMD_NODENAME": "localhost",
            "DATA": "data",
            "JOB": "job.toml",
        }

    def program(self, name, text, shell="sh"):
        path = f"{self.folder}/bin/{name}"
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/{shell}\n{text}\n")
        os.chmod(path, 0o755)

    def start(self, script, **environment):
        process = subprocess.Popen(
            ["bash", f"{SCRIPTS}/{script}"],
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=die_with_the_test,
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        return process

    def said_at_the_end(self, process, code):
        said, _ = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(code, process.returncode, said)
        return said

    def test_a_job_on_many_machines_names_no_more_of_them_than_gossipd_takes(self):
        self.program("scontrol", "seq --format=box%g 100")
        self.program("srun", 'for word; do echo "$word"; done')
        job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "box[1-100]", "KEY": "key"}
        words = self.said_at_the_end(self.start("gossipd.sbatch", **job), 0).split("\n")
        seeds = [after for word, after in zip(words, words[1:]) if word == "--join"]
        self.assertEqual([f"box{i}:7610" for i in range(1, 9)], seeds)

    def test_two_jobs_on_a_machine_share_no_port(self):
        self.program("scontrol", "echo localhost")
        self.program("srun", 'shift; "$@"', "bash")  # sh drops the function that is exported
        self.program("gossipd", 'for word; do echo "$word"; done')
        job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost", "KEY": "key"}
        for port in ("7610", "7710"):
            words = self.said_at_the_end(self.start("gossipd.sbatch", PORT=port, **job), 0)
            words = words.split("\n")
            self.assertEqual(f"*:{port}", words[words.index("--listen") + 1])
            self.assertEqual(f"127.0.0.1:{int(port) + 1}", words[words.index("--rest") + 1])

    def test_the_machines_are_unknown(self):
        self.program("scontrol", "echo no controller >&2; exit 1")
        self.program("srun", "echo begun")
        job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "box[1-100]", "KEY": "key"}
        self.assertNotIn("begun", self.said_at_the_end(self.start("gossipd.sbatch", **job), 1))

    def task(self, number):
        array = {"SLURM_ARRAY_JOB_ID": "8", "SLURM_ARRAY_TASK_MIN": "3"}
        return self.start("gossipd-array.sbatch", SLURM_ARRAY_TASK_ID=str(3 + number), **array)

    def daemon(self, does):
        """The daemon of all tasks, which writes its arguments into a file and joins nobody."""
        self.program("gossipctl", "exit 1")
        begins = f"trap 'kill $!; exit 143' TERM; echo \"$@\" >>{self.folder}/begun"
        self.program("gossipd", f"{begins}; {does}")

    def begun(self):
        path = f"{self.folder}/begun"
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()

    def write(self, name, content):
        os.makedirs(f"{self.folder}/gossipd-8", exist_ok=True)
        with open(f"{self.folder}/gossipd-8/{name}", "w", encoding="utf-8") as file:
            file.write(content)

    def test_a_founder_that_fails_ends_the_tasks_that_wait_for_it(self):
        self.daemon("exit 1")
        waiting = self.task(1)
        self.said_at_the_end(self.task(0), 1)
        self.assertIn("ended-8 to begin again", self.said_at_the_end(waiting, 1))
        self.assertEqual(1, len(self.begun()))
        self.said_at_the_end(self.task(2), 1)

    def test_a_founder_that_is_put_back_in_the_queue_is_waited_for(self):
        self.daemon(UNTIL_STOPPED)
        first = self.task(0)
        wait_for("its daemon", self.begun)
        first.terminate()
        self.said_at_the_end(first, 143)
        again = self.task(0)
        wait_for("its daemon once more", lambda: len(self.begun()) == 2)
        again.terminate()
        self.said_at_the_end(again, 143)

    def test_a_member_that_fails_alone_ends_no_other(self):
        self.write("invite", "")
        self.daemon("exit 78")
        for number in (1, 0):
            self.said_at_the_end(self.task(number), 78)
        self.assertEqual(2, len(self.begun()))
        self.assertTrue(all("--join @" in line for line in self.begun()))

    def test_a_joiner_that_nobody_answers_ends_with_the_others(self):
        self.write("invite", "")
        self.daemon(UNTIL_STOPPED)
        late = self.task(1)
        wait_for("its daemon", self.begun)
        self.write("ended-8", "3")
        self.said_at_the_end(late, 3)


if __name__ == "__main__":
    unittest.main()
