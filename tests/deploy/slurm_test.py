"""deploy/slurm, run by Debian's Slurm: a controller and two machines in network namespaces, each
with a host's name of its own. Needs root, slurmctld, slurmd, slurm-client and munge.
"""

import glob
import os
import re
import shutil
import subprocess
import unittest

from cluster import BIN, DATA, DEADLINE_S, POLICY, ClusterTest, gossipctl, wait_for
from cluster import _die_with_the_test as die_with_the_test
from install_test import ROOT
from switchboard import Switchboard, unavailable

SCRIPTS = f"{ROOT}/deploy/slurm"
BOXES = ("box1", "box2")
MASK = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'

CONFIGURATION = """ClusterName=try
SlurmctldHost=box1
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/controller
SlurmctldPidFile={folder}/controller.pid
SlurmctldLogFile={folder}/controller.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MailProg=/bin/true
NodeName=box[1-2] CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm(ClusterTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if why := unavailable():
            raise RuntimeError(why)

    def setUp(self):
        super().setUp()
        self.folder = self.cluster.directory
        self.cluster.switchboard = Switchboard()
        hosts = ["127.0.0.1 localhost"]
        hosts += [f"{self.cluster.switchboard.plug(box)} {box}" for box in BOXES]
        self.write("hosts", "\n".join(hosts) + "\n")
        self.write("slurm.conf", CONFIGURATION.format(folder=self.folder))
        self.write("cgroup.conf", "CgroupPlugin=cgroup/v1\n")  # none is used; guessing one fails
        for name in ("controller", *(f"spool-{box}" for box in BOXES)):
            os.mkdir(f"{self.folder}/{name}")
        os.chmod(self.folder, 0o755)  # munged insists
        self.environment = {
            **os.environ,
            "SLURM_CONF": f"{self.folder}/slurm.conf",
            "PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin",
            "FLAGS": " ".join(f"--set {key}={value}" for key, value in POLICY.items()),
            "DATA": DATA,
            "KEY": f"{self.folder}/key",
        }
        self.assertEqual(0, gossipctl("key", "generate", self.environment["KEY"]).returncode)
        self.start_slurm()

    def write(self, name, content):
        with open(f"{self.folder}/{name}", "w", encoding="utf-8") as file:
            file.write(content)

    def on(self, box, *words):
        """The command line that runs `words` on that machine."""
        space = self.cluster.switchboard.prefix(box)
        apart = ["unshare", "--mount", "--uts", "sh", "-c", MASK, f"{self.folder}/hosts", box]
        return [*space, *apart, *words]

    def stay(self, line, name):
        with open(f"{self.folder}/{name}.out", "w", encoding="utf-8") as out:
            process = subprocess.Popen(
                line,
                env=self.environment,
                stdout=out,
                stderr=out,
                preexec_fn=die_with_the_test,
            )
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)

    def start_slurm(self):
        key = f"{self.folder}/munge.key"
        with open(key, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(os.urandom(64))
        files = {"socket": "socket", "key-file": "key", "log-file": "log", "pid-file": "pid"}
        places = [f"--{flag}={self.folder}/munge.{end}" for flag, end in files.items()]
        seed = f"--seed-file={self.folder}/munge.seed"
        self.stay(["munged", "--force", "--foreground", *places, seed], "munged")
        wait_for("munged", lambda: os.path.exists(f"{self.folder}/munge.socket"))
        self.stay(self.on("box1", "slurmctld", "-D"), "slurmctld")
        for box in BOXES:
            self.stay(self.on(box, "slurmd", "-D", "-N", box), f"slurmd-{box}")
        self.waits("idle machines", lambda: self.ask("sinfo", "-h", "-o", "%t %D") == "idle 2")

    def waits(self, what, condition):
        """Waits, and shows what Slurm and the jobs said if that was in vain."""
        try:
            return wait_for(what, condition, deadline_s=4 * DEADLINE_S)
        except AssertionError:
            for path in glob.glob(f"{self.folder}/*.out") + glob.glob(f"{self.folder}/*.log"):
                print(f"---- {path}\n{self.content(path)[-3000:]}", flush=True)
            raise

    @staticmethod
    def content(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def ask(self, *words, **more):
        line = self.on("box1", *words)
        done = subprocess.run(
            line,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
        )
        return done.stdout.strip() if done.returncode == 0 else f"{done.stdout}{done.stderr}"

    def submit(self, *words, **more):
        shown = self.ask("sbatch", "--parsable", "-o", f"{self.folder}/job-%j.out", *words, **more)
        self.assertRegex(shown, r"^\d+$")
        self.addCleanup(self.cancel, shown)
        return shown

    def cancel(self, job):
        """So that no task outlives Slurm."""
        self.ask("scancel", job)
        self.waits(f"the end of job {job}", lambda: self.has_ended(job))

    def states(self, job):
        """Of all tasks: state, exit code."""
        shown = self.ask("scontrol", "--oneliner", "show", "job", job)
        rows = [dict(w.split("=", 1) for w in row.split() if "=" in w) for row in shown.split("\n")]
        return [(row.get("JobState"), row.get("ExitCode")) for row in rows]

    def has_ended(self, job):
        begun = {"PENDING", "RUNNING", "COMPLETING", None}  # None: the controller did not answer
        return not begun & {state for state, _ in self.states(job)}

    def wait_ended(self, job, tasks, state):
        self.waits(f"the end of job {job}", lambda: self.has_ended(job))
        said = "".join(map(self.content, glob.glob(f"{self.folder}/job-*.out")))
        self.assertEqual([state] * tasks, self.states(job), said[-3000:])

    def wait_completed(self, job, tasks):
        self.wait_ended(job, tasks, ("COMPLETED", "0:0"))

    def finished(self, folders):
        """One final model each, and all of one cluster."""
        clusters = set()
        for node in folders:
            self.assertTrue(os.path.exists(f"{node}/checkpoints/final.safetensors"), node)
            clusters.add(re.search(r'"cluster":\s*"(\w+)"', self.content(f"{node}/node.json"))[1])
        self.assertEqual(1, len(clusters))

    def test_one_job_on_two_machines_founds_trains_and_ends(self):
        job = self.submit("-N", "2", f"{SCRIPTS}/gossipd.sbatch", JOB=self.small_job())
        self.wait_completed(job, 1)
        self.finished([f"{self.folder}/gossipd-{job}/{box}" for box in BOXES])

    def test_the_tasks_of_an_array_join_one_another_and_end(self):
        job = self.submit("--array=3-5", f"{SCRIPTS}/gossipd-array.sbatch", JOB=self.small_job())
        self.wait_completed(job, 3)
        self.finished([f"{self.folder}/gossipd-{job}/{task}" for task in range(3)])

    def test_tasks_that_find_room_only_after_the_training_end_at_once(self):
        words = ["--array=0-3", "--cpus-per-task=4", f"{SCRIPTS}/gossipd-array.sbatch"]
        job = self.submit(*words, JOB=self.small_job())
        self.wait_completed(job, 4)
        self.finished([f"{self.folder}/gossipd-{job}/{task}" for task in range(2)])

    def test_an_array_whose_job_is_refused_ends_whole(self):
        words = ["--array=0-2", f"{SCRIPTS}/gossipd-array.sbatch"]
        job = self.submit(*words, JOB=f"{self.folder}/nope.toml")
        self.wait_ended(job, 3, ("FAILED", "78:0"))

    def test_members_renew_the_invite(self):
        words = ["--array=0-1", f"{SCRIPTS}/gossipd-array.sbatch"]
        job = self.submit(*words, JOB=self.cluster.job(), RENEW="1")
        invite = f"{self.folder}/gossipd-{job}/invite"
        self.waits("an invite", lambda: os.path.exists(invite))
        for _ in range(2):
            os.remove(invite)
            self.waits("a new invite", lambda: os.path.exists(invite))

    def test_a_job_that_cannot_begin_fails_and_says_why(self):
        words = ["-N", "2", f"{SCRIPTS}/gossipd.sbatch"]
        job = self.submit(*words, JOB=f"{self.folder}/nope.toml")
        self.waits("its end", lambda: self.states(job)[0][0] == "FAILED")
        self.assertIn("nope.toml", self.content(f"{self.folder}/job-{job}.out"))

    def small_job(self):
        # Long enough that all tasks have come before it ends.
        return self.cluster.job(budget_samples=600_000, warmup_samples=4_000)


if __name__ == "__main__":
    if not shutil.which("slurmctld"):
        raise SystemExit("Slurm is missing: deploy/install-packages.sh --packages")
    unittest.main()
