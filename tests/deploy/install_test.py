"""`cmake --install` and the Debian packages: what lies where, and that it runs from there."""

import gzip
import os
import re
import stat
import subprocess
import tempfile
import unittest

import cluster
from cluster import BIN, ClusterTest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
BUILD = os.environ.get("GOSSIPD_BUILD_DIR", os.path.dirname(BIN))
COMPONENTS = {
    "gossipd": "gossipd",
    "core": "gossipd-core",
    "gossipctl": "gossipctl",
    "lab": "gossipd-lab",
}
PROGRAMS = {
    "gossipd": {"gossipd", "gossip-export"},
    "gossipd-core": {"gossipd-core"},
    "gossipctl": {"gossipctl"},
    "gossipd-lab": {"gossip-lab", "gossip-bench"},
}


def run(*arguments, timeout_s=cluster.DEADLINE_S * 4, **options):
    done = subprocess.run(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
        **options,
    )
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def files_below(folder):
    return {
        os.path.relpath(os.path.join(place, name), folder)
        for place, _, names in os.walk(folder)
        for name in names
    }


def install(destination, prefix="/usr", component=None):
    """Installs below `destination` and returns the files there."""
    line = ["cmake", "--install", BUILD, "--prefix", prefix, "--strip"]
    line += ["--component", component] if component else []
    run(*line, env={**os.environ, "DESTDIR": destination})
    return files_below(destination)


def pack(folder):
    """The .debs, by package."""
    run("cpack", "-G", "DEB", "-B", folder, cwd=BUILD)
    paths = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".deb")]
    return {os.path.basename(path).split("_")[0]: path for path in paths}


DOCUMENTS = {
    "gossipd": {"usr/share/man/man1/gossipd.1.gz", "usr/share/doc/gossipd/README.md"},
    "gossipd-core": {
        "usr/share/man/man1/gossipd-core.1.gz",
        "usr/share/doc/gossipd-core/README.md",
        "usr/lib/systemd/system/gossipd-core.service",
        "usr/lib/sysusers.d/gossipd-core.conf",
    },
    "gossipctl": {
        "usr/share/man/man1/gossipctl.1.gz",
        "usr/share/bash-completion/completions/gossipctl",
        "usr/share/zsh/vendor-completions/_gossipctl",
        "usr/share/fish/vendor_completions.d/gossipctl.fish",
    },
    "gossipd-lab": {"usr/share/man/man1/gossip-lab.1.gz"},
}


class Install(ClusterTest):
    def test_everything_runs_from_where_it_is_installed(self):
        there = os.path.join(self.cluster.directory, "root")
        files = install(there)
        for programs in PROGRAMS.values():
            self.assertLessEqual({f"usr/bin/{name}" for name in programs}, files)
        with open(f"{there}/usr/lib/systemd/system/gossipd.service", encoding="utf-8") as unit:
            started = re.search(r"^ExecStart=(\S+) --config (\S+) ", unit.read(), re.MULTILINE)
        self.assertEqual("/usr/bin/gossipd", started[1])
        self.assertIn(started[2][1:], files)
        for name in ("gossipd", "gossipd-core"):
            self.assert_systemd_takes(name, there)

        self.addCleanup(setattr, cluster, "GOSSIPD", cluster.GOSSIPD)
        cluster.GOSSIPD = there + started[1]
        job = os.path.join(there, "usr/share/gossipd/jobs/fashion-mnist.toml")
        node = self.cluster.found(job, "--config", there + started[2], shard="auto")
        node.wait_step(5)
        shown = run(f"{there}/usr/bin/gossipctl", "--rest", node.rest, "members")
        self.assertIn("box1", shown)
        scenarios = {name for name in files if "/scenarios/" in name}
        self.assertEqual(
            set(os.listdir(f"{ROOT}/tools/lab/scenarios")), set(map(os.path.basename, scenarios))
        )
        for name in scenarios:
            run(f"{there}/usr/bin/gossip-lab", "run", os.path.join(there, name), "--check")

    def assert_systemd_takes(self, name, there):
        """systemd knows every line and finds what it starts, and calls it well confined."""
        unit = f"{there}/usr/lib/systemd/system/{name}.service"
        with open(unit, encoding="utf-8") as file:
            text = file.read().replace("=/usr/bin/gossipd", f"={there}/usr/bin/gossipd")
        self.assertIn(f"/usr/bin/{name} ", text)
        moved = os.path.join(self.cluster.directory, f"{name}.service")
        with open(moved, "w", encoding="utf-8") as file:
            file.write(text)
        self.assertNotIn(f"{name}.service", run("systemd-analyze", "verify", "--man=no", moved))
        run("systemd-analyze", "security", "--offline=true", "--threshold=25", moved)

    def test_each_component_alone_and_what_an_operator_has_written_stays(self):
        there = os.path.join(self.cluster.directory, "root")
        client = install(there, "/usr/local", "gossipctl")
        self.assertEqual(
            {"usr/local/bin/gossipctl"}, {f for f in client if "/share/" not in f}
        )
        searched = run("zsh", "-f", "-c", "print -l $fpath").split()
        found = [f for f in client if f.endswith("/_gossipctl")]
        self.assertIn("/" + os.path.dirname(found[0]), searched)
        os.makedirs(f"{there}/etc/gossipd")
        with open(f"{there}/etc/gossipd/node.toml", "w", encoding="utf-8") as file:
            file.write("name = 'mine'\n")
        self.assertIn("usr/local/bin/gossipd", install(there, "/usr/local", "gossipd"))
        with open(f"{there}/etc/gossipd/node.toml", encoding="utf-8") as file:
            self.assertEqual("name = 'mine'\n", file.read())
        mine = install(os.path.join(self.cluster.directory, "other"), "/opt/gossipd", "gossipd")
        self.assertIn("opt/gossipd/etc/gossipd/node.toml", mine)
        self.assertTrue(all(name.startswith("opt/gossipd/") for name in mine), mine)

    def test_the_packages_hold_what_they_say_and_need_what_they_use(self):
        with tempfile.TemporaryDirectory() as folder:
            packages = pack(folder)
            self.assertEqual(set(COMPONENTS.values()), set(packages))
            owner = {}
            for name, path in packages.items():
                self.assert_whole(name, path, os.path.join(folder, name))
                for file in files_below(os.path.join(folder, name)):
                    self.assertNotIn(file, owner, f"{name} and {owner.get(file)} hold {file}")
                    owner[file] = name
            needs = {name: run("dpkg-deb", "-f", packages[name], "Depends") for name in packages}
            self.assertRegex(needs["gossipd"], r"\blibc6 \(>= .*\blibtorch")
            self.assertRegex(needs["gossipd-lab"], r"\blibtorch")
            self.assertRegex(needs["gossipctl"], r"\blibc6 \(>= .*\blibssl3")
            for name in ("gossipctl", "gossipd-core"):
                self.assertNotIn("torch", needs[name])
            self.assertLess(os.path.getsize(packages["gossipd-core"]), 5_000_000)

    def assert_whole(self, name, path, folder):
        run("dpkg-deb", "-x", path, folder)
        files = files_below(folder)
        there = {os.path.basename(file) for file in files if file.startswith("usr/bin/")}
        self.assertEqual(PROGRAMS[name], there)
        self.assertLessEqual(DOCUMENTS[name], files)
        for program in there:
            said = subprocess.run([f"{folder}/usr/bin/{program}", "--help"], capture_output=True)
            self.assertIn(b"usage: ", (said.stdout + said.stderr).lower(), program)
        summary, *text = run("dpkg-deb", "-f", path, "Description").splitlines()
        self.assertTrue(summary and text)
        with gzip.open(f"{folder}/usr/share/doc/{name}/changelog.gz", "rt") as changelog:
            version = run("dpkg-deb", "-f", path, "Version").strip()
            self.assertTrue(changelog.readline().startswith(f"{name} ({version}) "))
        for file in files:
            mode = os.stat(os.path.join(folder, file)).st_mode
            self.assertFalse(mode & (stat.S_IWGRP | stat.S_IWOTH), file)
        if name in ("gossipd", "gossipd-core"):
            node_toml = f"etc/{name}/node.toml"
            self.assertEqual(f"/{node_toml}\n", run("dpkg-deb", "-I", path, "conffiles"))
            self.assertIn(node_toml, files)
            for script in ("postinst", "prerm", "postrm"):
                text = run("dpkg-deb", "-I", path, script)
                run("sh", "-n", input=text)
                others = "gossipd(?!-core)" if name == "gossipd-core" else "gossipd-core"
                self.assertNotRegex(text, others)


# install.cmake without the rest of gossipd: real programs tell their pages and completions.
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(install C)
add_executable(gossipctl program.c)
add_executable(gossipd program.c)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "{BIN}")
include("${{CMAKE_SOURCE_DIR}}/deploy/packages/install.cmake")
"""


class InstallFromElsewhere(ClusterTest):
    """A checkout of another name and build folders of another owner."""

    def setUp(self):
        super().setUp()
        os.chmod(self.cluster.directory, 0o755)
        self.checkout = os.path.join(self.cluster.directory, "OUT of the way")
        self.build = os.path.join(self.cluster.directory, "build OUT")
        for folder in (self.checkout, self.build):
            os.mkdir(folder)
        for name in ("daemon", "deploy", "tools"):
            os.symlink(os.path.join(ROOT, name), os.path.join(self.checkout, name))
        for name, text in (
            ("CMakeLists.txt", PROJECT.format(BIN=BIN)),
            ("program.c", "int main(void) { return 0; }"),
        ):
            with open(os.path.join(self.checkout, name), "w", encoding="utf-8") as file:
                file.write(text)

    def make(self, *settings, **options):
        run("cmake", "-S", self.checkout, "-B", self.build, *settings, **options)
        run("cmake", "--build", self.build, **options)

    def install(self, name, *words, **options):
        destination = os.path.join(self.cluster.directory, name)
        os.mkdir(destination, 0o777)
        os.chmod(destination, 0o777)
        line = ["cmake", "--install", self.build, "--prefix", "/usr", *words]
        said = run(*line, env={**os.environ, "DESTDIR": destination}, **options)
        return said, files_below(destination)

    def test_a_checkout_whose_path_has_spaces_and_capitals(self):
        self.make()
        _, files = self.install("root")
        self.assertLessEqual(DOCUMENTS["gossipctl"], files)
        pages = {"usr/share/man/man1/gossipd-core.1.gz"}
        self.assertLessEqual(DOCUMENTS["gossipd-core"] - pages, files)
        self.assertIn("etc/gossipd-core/node.toml", files)

    def test_a_libtorch_that_the_service_cannot_read_is_told_of(self):
        home = os.path.join(self.cluster.directory, "home")
        torch = os.path.join(home, "torch 2", "torch")
        os.makedirs(torch)
        run("chmod", "-R", "go+rX", home)
        self.make(f"-DGOSSIPD_TORCH_DIR={torch}")
        words = ["--component", "gossipd"]
        self.assertNotIn("cannot start", self.install("readable", *words)[0])
        os.chmod(home, 0o700)
        said = " ".join(self.install("closed", *words)[0].split())
        self.assertIn(f"its user may not enter {home}.", said)
        self.assertEqual(1, said.count("cannot start"))

    @unittest.skipIf(os.geteuid(), "needs root")
    def test_a_user_installs_after_root_has(self):
        nobody = {"user": "nobody", "group": "nogroup", "extra_groups": []}
        os.chmod(self.build, 0o777)
        self.make(**nobody)
        _, files = self.install("root", umask=0o077)
        self.assertEqual(files, self.install("user", **nobody)[1])
        for component in ("core", "gossipctl"):
            words = ["--component", component]
            self.install(f"root-{component}", *words, umask=0o077)
            self.install(f"user-{component}", *words, **nobody)


if __name__ == "__main__":
    unittest.main()
