"""The Debian packages, each installed into a clean root of Debian 12 and run there.

Needs root, mmdebstrap and Debian's mirror. A root is an overlay over one that mmdebstrap made with
apt and nothing else, so each package brings what it needs, or fails.
"""

import os
import re
import subprocess
import tempfile
import unittest

import cluster
from cluster import DATA, DEADLINE_S, ClusterTest, free_port, wait_for
from cluster import _die_with_the_test as die_with_the_test
from install_test import files_below, pack, run
from switchboard import Switchboard
from two_machines_test import Machine, found_and_join

SUITE = "bookworm"
ATTACHED = os.path.join(os.path.dirname(cluster.__file__), "attached.py")
# An error of lintian that we mean: the maintainer's address is for whoever hands packages out.
MEANT = re.compile(r"bogus-mail-host")


class CleanRoot:
    """A root of its own over the common one."""

    def __init__(self, base, archives, folder):
        self.path = os.path.join(folder, "root")
        for name in ("root", "upper", "work"):
            os.makedirs(os.path.join(folder, name))
        layers = f"lowerdir={base},upperdir={folder}/upper,workdir={folder}/work"
        run("mount", "-t", "overlay", "overlay", "-o", layers, self.path)
        for name in ("proc", "dev"):
            run("mount", "--bind", f"/{name}", f"{self.path}/{name}")
        # What one root has fetched the next one takes.
        run("mount", "--bind", archives, f"{self.path}/var/cache/apt/archives")
        run("cp", "/etc/resolv.conf", f"{self.path}/etc/resolv.conf")
        os.makedirs(self.path + DATA, exist_ok=True)
        run("mount", "--bind", DATA, self.path + DATA)

    def runs(self, *words):
        clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}
        return run("chroot", self.path, *words, timeout_s=900, env=clean)

    def installs(self, *packages):
        for path in packages:
            run("cp", path, self.path + "/tmp/")
        names = [f"/tmp/{os.path.basename(path)}" for path in packages]
        self.runs("apt-get", "install", "-q", "-y", "--no-install-recommends", *names)

    def remove(self):
        subprocess.run(["umount", "--recursive", self.path], check=False)


class Chroot(Machine):
    """A machine with a clean root."""

    def __init__(self, switchboard, name, directory, root):
        super().__init__(switchboard, name, directory)
        self.clean = root

    def inside(self, words):
        clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        return [*self.space, "chroot", self.clean.path, *words], clean


class Packages(ClusterTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tempfile.TemporaryDirectory(prefix="gossipd-packages-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.packages = pack(os.path.join(cls.folder.name, "debs"))
        cls.base = os.path.join(cls.folder.name, "base")
        os.mkdir(cls.folder.name + "/archives")
        quick = ["--dpkgopt=force-unsafe-io", "--skip=cleanup/apt"]
        run("mmdebstrap", "--variant=apt", "--mode=root", *quick, SUITE, cls.base)

    def root(self, name, base=None):
        archives = self.folder.name + "/archives"
        root = CleanRoot(base or self.base, archives, os.path.join(self.folder.name, name))
        self.addCleanup(root.remove)
        return root

    def test_lintian_finds_no_error(self):
        done = subprocess.run(
            ["lintian", "--tag-display-limit", "0", *self.packages.values()],
            capture_output=True,
            text=True,
            check=False,
        )
        errors = [line for line in done.stdout.splitlines() if line.startswith("E:")]
        self.assertEqual([], [line for line in errors if not MEANT.search(line)])

    def test_gossipctl_alone_brings_no_libtorch(self):
        root = self.root("gossipctl")
        root.installs(self.packages["gossipctl"])
        root.runs("gossipctl", "key", "generate", "/root/cluster.key")
        self.assertTrue(os.path.exists(root.path + "/root/cluster.key"))
        self.assertNotIn("libtorch", root.runs("dpkg-query", "--show"))
        root.runs("apt-get", "purge", "-q", "-y", "gossipctl")
        self.assertFalse(os.path.exists(root.path + "/usr/bin/gossipctl"))

    def test_the_small_daemon_alone_serves_a_trainer_and_brings_no_libtorch(self):
        root = self.root("core")
        root.installs(self.packages["gossipd-core"])
        self.assertNotRegex(root.runs("dpkg-query", "--show"), "libtorch|python3")
        self.assertRegex(root.runs("getent", "passwd", "gossipd-core"), "/var/lib/gossipd-core:")
        with open(root.path + "/tmp/mine.toml", "w", encoding="utf-8") as job:
            job.write('name = "mine"\nbudget_samples = 20_000\n[model]\nkind = "external"\n')
        line = ["chroot", root.path, "gossipd-core", "--job", "/tmp/mine.toml"]
        line += ["--state-dir", "/var/lib/gossipd-core", "--until", "finished"]
        line += ["--listen", f"127.0.0.1:{free_port()}", "--rest", f"127.0.0.1:{free_port()}"]
        daemon = subprocess.Popen(line, preexec_fn=die_with_the_test)
        self.addCleanup(daemon.kill)
        socket = root.path + "/var/lib/gossipd-core/trainer.sock"
        wait_for("a socket", lambda: os.path.exists(socket))
        counters = os.path.join(self.cluster.directory, "counters")
        run("/usr/bin/python3", ATTACHED, socket, "--counters", counters, "--step-ms", "1")
        self.assertEqual(0, daemon.wait(timeout=DEADLINE_S))
        final = root.path + "/var/lib/gossipd-core/checkpoints/final.safetensors"
        self.assertTrue(os.path.exists(final))
        root.runs("apt-get", "purge", "-q", "-y", "gossipd-core")
        self.assertFalse(os.path.exists(root.path + "/usr/bin/gossipd-core"))
        self.assertTrue(os.path.exists(final))

    def test_the_lab_runs_a_scenario(self):
        root = self.root("lab")
        root.installs(self.packages["gossipd-lab"])
        shown = root.runs(
            "gossip-lab",
            "run",
            "/usr/share/gossip-lab/scenarios/mlp.toml",
            *("--set", "job.budget_samples=4000", "--set", "job.schedule.warmup_samples=500"),
        )
        self.assertIn("accuracy", shown)

    def test_two_clean_machines_found_and_join_and_a_purge_leaves_the_state(self):
        self.cluster.switchboard = Switchboard()
        machines = []
        installed = self.root("installed")
        installed.installs(self.packages["gossipd"], self.packages["gossipctl"])
        for name in ("box1", "box2"):
            root = self.root(name, installed.path)
            machine = Chroot(self.cluster.switchboard, name, self.cluster.directory, root)
            self.addCleanup(machine.stop)
            machines.append(machine)
        taken = found_and_join(
            f"gossipd --job /usr/share/gossipd/jobs/fashion-mnist.toml --data {DATA}",
            f"gossipd --join INVITE --data {DATA}",
            *machines,
        )
        print(f"installed, both train after 2 commands and {taken:.1f} s", flush=True)
        for machine in machines:
            machine.stop()
        root = machines[0].clean
        self.assertRegex(root.runs("getent", "passwd", "gossipd"), "^gossipd:.*:/var/lib/gossipd:")
        enabled = root.path + "/etc/systemd/system/multi-user.target.wants"  # as `enable` does
        os.makedirs(enabled, exist_ok=True)
        os.symlink("/lib/systemd/system/gossipd.service", enabled + "/gossipd.service")
        root.runs("apt-get", "purge", "-q", "-y", "gossipd")
        left = {f for f in files_below(root.path + "/etc") if "gossipd" in f}
        self.assertEqual(set(), left)
        self.assertTrue(os.path.exists(root.path + "/var/lib/gossipd/node.json"))


if __name__ == "__main__":
    unittest.main()
