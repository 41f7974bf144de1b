"""deploy/kubernetes: the manifests hold to Kubernetes' own schemas, strictly, and what they name
exists: files, volumes, ports, labels and the daemon's flags.

Needs `kubernetes-validate` (PyPI), which ships the schemas; a virtual environment below the build
folder gets it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import unittest

from cluster import BIN, GOSSIPD
from install_test import BUILD, run

FOLDER = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../deploy/kubernetes"))
VALIDATOR = "kubernetes-validate==1.37.0"
RELEASES = ("1.29", "1.37")
PYTHON = os.path.join(BUILD, "kubernetes-validate/bin/python")
LOAD = "import sys, yaml, json; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))"


class Kubernetes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.path.exists(PYTHON):
            run(sys.executable, "-m", "venv", os.path.dirname(os.path.dirname(PYTHON)))
        run(PYTHON, "-m", "pip", "install", "--quiet", VALIDATOR)
        cls.kustomization = cls.load("kustomization.yaml")
        names = cls.kustomization["resources"]
        cls.manifests = {one["kind"]: one for one in map(cls.load, names)}
        cls.pods = cls.manifests["StatefulSet"]["spec"]["template"]["spec"]

    @staticmethod
    def load(name):
        (only,) = json.loads(run(PYTHON, "-c", LOAD, os.path.join(FOLDER, name)))
        return only

    def complete(self, name):
        """A manifest with the selector that kustomize adds to it."""
        manifest = self.load(name)
        (labels,) = (entry["pairs"] for entry in self.kustomization["labels"])
        if manifest["kind"] == "StatefulSet":
            manifest["spec"]["selector"] = {"matchLabels": labels}
            manifest["spec"]["template"]["metadata"] = {"labels": labels}
        return manifest

    def valid(self, manifest, release):
        path = os.path.join(BUILD, "manifest.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(manifest, file)
        return subprocess.run(
            [PYTHON, "-m", "kubernetes_validate", "--strict", "-k", release, path],
            capture_output=True,
            text=True,
            check=False,
        )

    def test_each_manifest_is_valid_and_a_misspelt_one_is_not(self):
        for release in RELEASES:
            for name in self.kustomization["resources"]:
                done = self.valid(self.complete(name), release)
                self.assertEqual(0, done.returncode, done.stdout + done.stderr)
                wrong = self.complete(name)
                wrong["spec"]["misspelt"] = 1
                self.assertNotEqual(0, self.valid(wrong, release).returncode, name)

    @unittest.skipUnless(shutil.which("kubectl"), "Debian has no kubectl")
    def test_kubectl_makes_of_the_kustomization_what_the_cluster_takes(self):
        made = os.path.join(BUILD, "kustomized.yaml")
        with open(made, "w", encoding="utf-8") as file:
            file.write(run("kubectl", "kustomize", FOLDER))
        by_kind = {one["kind"]: one for one in json.loads(run(PYTHON, "-c", LOAD, made))}
        self.assertEqual({*self.manifests, "ConfigMap"}, set(by_kind))
        for kind, manifest in by_kind.items():
            done = self.valid(manifest, RELEASES[-1])
            self.assertEqual(0, done.returncode, kind + done.stdout + done.stderr)
        self.assertEqual("None", by_kind["Service"]["spec"]["clusterIP"])
        pods = by_kind["StatefulSet"]["spec"]["template"]["spec"]
        images = {c["image"] for c in pods["containers"] + pods["initContainers"]}
        self.assertEqual({"gossipd:0.1.0"}, images)
        jobs = {v["configMap"]["name"] for v in pods["volumes"] if "configMap" in v}
        self.assertEqual({by_kind["ConfigMap"]["metadata"]["name"]}, jobs)

    def test_files_volumes_and_ports_that_are_named_exist(self):
        for generator in self.kustomization["configMapGenerator"]:
            for name in generator["files"]:
                self.assertTrue(os.path.exists(os.path.join(FOLDER, name)), name)
        claims = self.manifests["StatefulSet"]["spec"]["volumeClaimTemplates"]
        volumes = {v["name"] for v in self.pods["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in claims}
        (daemon,) = self.pods["containers"]
        for container in (daemon, *self.pods["initContainers"]):
            for mount in container["volumeMounts"]:
                self.assertIn(mount["name"], volumes)
        ports = {port["name"]: port["containerPort"] for port in daemon["ports"]}
        served = {p["name"]: p["port"] for p in self.manifests["Service"]["spec"]["ports"]}
        self.assertEqual(ports, served)
        allowed = {
            port["port"]
            for rule in self.manifests["NetworkPolicy"]["spec"]["ingress"]
            for port in rule["ports"]
        }
        self.assertEqual(set(ports.values()), allowed)

    def test_the_daemon_knows_each_flag_and_the_job(self):
        (daemon,) = self.pods["containers"]
        help_text = run(GOSSIPD, "--help")
        flags = {argument.split("=")[0] for argument in daemon["args"]}
        for flag in flags:
            self.assertIn(flag, re.findall(r"--[a-z-]+", help_text), f"{BIN}/gossipd --help")
        names = {a.split("=")[1] for a in daemon["args"] if a.startswith("--join=")}
        service, replicas = "gossipd", self.manifests["StatefulSet"]["spec"]["replicas"]
        self.assertEqual({f"gossipd-{i}.{service}:7610" for i in range(replicas)}, names)
        with open(os.path.join(FOLDER, "job.toml"), encoding="utf-8") as job:
            with open(f"{FOLDER}/../jobs/fashion-mnist.toml", encoding="utf-8") as example:
                self.assertEqual(example.read(), job.read())


if __name__ == "__main__":
    unittest.main()
