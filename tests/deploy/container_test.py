"""The container image and the compose file, built and run by Debian's podman.

Needs root, podman with runc, podman-compose and docker-compose (for its schema), mmdebstrap and
Debian's mirror: no registry of images is asked, the base is made by mmdebstrap. Images, volumes and
networks live in a folder of the test.
"""

import json
import os
import re
import resource
import subprocess
import tempfile
import unittest

from cluster import DATA, ClusterTest, wait_for
from install_test import ROOT, pack, run

SUITE = "bookworm"
BASE = "localhost/debian:bookworm-slim"
IMAGE = "localhost/gossipd:test"
COMPOSE = f"{ROOT}/deploy/compose/compose.yaml"
JOB = "/usr/share/gossipd/jobs/fashion-mnist.toml"
NODES = ("node-0", "node-1", "node-2")

# The limits are those of this process, since it may be one that must not raise them.
CONTAINERS = """[containers]
default_ulimits = ["nofile={files}:{files}", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{folder}/tmp"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""
STORAGE = '[storage]\ndriver = "overlay"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n'


class Containers(ClusterTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory(prefix="gossipd-containers-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        cls.environment = {**os.environ, "DATA": DATA, "IMAGE": IMAGE}
        for name, text in (("CONTAINERS_CONF", CONTAINERS), ("CONTAINERS_STORAGE_CONF", STORAGE)):
            cls.environment[name] = f"{cls.folder}/{name}"
            with open(cls.environment[name], "w", encoding="utf-8") as file:
                file.write(text.format(folder=cls.folder, files=files))
        os.mkdir(f"{cls.folder}/networks")
        cls.addClassCleanup(cls.remove_all)
        cls.build()

    @classmethod
    def build(cls):
        packages = os.path.dirname(pack(f"{cls.folder}/debs")["gossipd"])
        archive = f"{cls.folder}/base.tar"
        quick = ["--dpkgopt=force-unsafe-io", "--mode=root"]
        run("mmdebstrap", "--variant=apt", *quick, SUITE, archive, timeout_s=600)
        cls.podman("import", archive, BASE)
        file = f"{ROOT}/deploy/container/Containerfile"
        base = ["--build-arg", f"BASE={BASE}", "--isolation", "chroot"]
        cls.podman("build", *base, "-t", IMAGE, "-f", file, packages, timeout_s=900)

    @classmethod
    def podman(cls, *words, **options):
        return run("podman", *words, env=cls.environment, **options)

    @classmethod
    def remove_all(cls):
        for words in (["rm", "-af", "-v", "-t", "0"], ["volume", "rm", "-af"]):
            subprocess.run(["podman", *words], env=cls.environment, check=False)

    def asks(self, container, *words):
        """The answer of the gossipctl in there, or None while there is none."""
        done = subprocess.run(
            ["podman", "exec", container, "gossipctl", "-o", "json", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return json.loads(done.stdout) if done.returncode == 0 else None

    def start(self, name, *words, confined=()):
        self.podman(
            *("run", "-d", "--name", name, "--hostname", name, *confined),
            *("-v", f"{DATA}:/data:ro", IMAGE, *words, "--data", "/data"),
        )
        self.addCleanup(self.podman, "rm", "-f", "-v", "-t", "0", name)

    def trains(self, container, links):
        status = self.asks(container, "status")
        return (
            status
            and status["phase"] == "training"
            and status["links_open"] == links
            and status["step"] > 0
            and status
        )

    def wait_training(self, containers, links):
        return [
            wait_for(f"{name} trains, linked", lambda n=name: self.trains(n, links))
            for name in containers
        ]

    def test_one_founds_the_other_joins_by_invite_and_both_train(self):
        self.start("box1", "--job", JOB)
        wait_for("box1 answers", lambda: self.asks("box1", "status"))
        shown = self.podman("exec", "box1", "gossipctl", "invite")
        invite = re.search(r"gossip1[a-z2-7]+", shown)[0]
        # As Kubernetes starts it: nothing but its volumes can be written, and no privilege is left.
        confined = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        self.start("box2", "--join", invite, confined=confined)
        first, second = self.wait_training(("box1", "box2"), links=1)
        self.assertEqual(first["cluster_id"], second["cluster_id"])
        self.assertEqual("7610", self.podman("exec", "box1", "id", "-u").strip())
        # A stop is a goodbye, and a new container with the volume of the old one is the same node.
        self.podman("stop", "-t", "60", "box2")
        code = self.podman("inspect", "--format", "{{.State.ExitCode}}", "box2").strip()
        self.assertEqual("0", code, self.podman("logs", "box2"))
        self.podman("start", "box2")
        (again,) = self.wait_training(["box2"], links=1)
        self.assertEqual(second["id"], again["id"])

    def compose(self, *words):
        return run("podman-compose", "-p", "try", "-f", COMPOSE, *words, env=self.environment)

    def test_the_compose_file_starts_three_nodes_that_are_the_same_after_a_restart(self):
        shown = run("docker-compose", "-f", COMPOSE, "config", env=self.environment)
        self.assertIn("condition: service_completed_successfully", shown)
        self.addCleanup(self.compose, "down", "-v")
        self.compose("up", "-d")
        names = [f"try_{node}_1" for node in NODES]
        before = self.wait_training(names, links=2)
        self.assertEqual(1, len({status["cluster_id"] for status in before}))
        self.assertEqual([f"{node}:7610" for node in NODES], [s["address"] for s in before])
        for name in names:
            self.podman("healthcheck", "run", name)

        self.compose("down")
        self.compose("up", "-d")
        after = self.wait_training(names, links=2)
        self.assertEqual([s["id"] for s in before], [s["id"] for s in after])

        self.podman("exec", names[2], "gossipctl", "leave")
        sick = subprocess.run(
            ["podman", "healthcheck", "run", names[2]], env=self.environment, check=False
        )
        self.assertNotEqual(0, sick.returncode)


if __name__ == "__main__":
    unittest.main()
