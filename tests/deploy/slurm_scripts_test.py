"""deploy/slurm without Slurm: its scripts, with programs in place of Slurm's."""

import os
import subprocess
import unittest

from cluster import DEADLINE_S, ClusterTest, clean_environment
from cluster import _die_with_the_test as die_with_the_test
from install_test import ROOT

SCRIPTS = f"{ROOT}/deploy/slurm"


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

    def program(self, name, text):
        path = f"{self.folder}/bin/{name}"
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{text}\n")
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

    def test_the_machines_are_unknown(self):
        self.program("scontrol", "echo no controller >&2; exit 1")
        self.program("srun", "echo begun")
        job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "box[1-100]", "KEY": "key"}
        self.assertNotIn("begun", self.said_at_the_end(self.start("gossipd.sbatch", **job), 1))


if __name__ == "__main__":
    unittest.main()
