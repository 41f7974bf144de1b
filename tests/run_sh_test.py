#!/usr/bin/env python3
"""tests/run.sh itself: with made-up programs in place of cmake, ctest and the installation."""

import os
import shutil
import subprocess
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
CTEST = """#!/bin/sh
echo "$*" >>"$(dirname "$0")/calls"
while [ $# -gt 0 ]; do [ "$1" = --output-junit ] && xml=$2; shift; done
cat >"$xml" <<TEXT
{xml}
TEXT
cat <<TEXT
{report}
TEXT
"""
ALL_PASS = "100% tests passed, 0 tests failed out of 2"
ONE_SKIPPED = "1/2 Test #1: unit.a ..........***Skipped 0.1 sec"
BOTH_SKIPPED = ONE_SKIPPED + "\n2/2 Test #2: unit.b ..........***Skipped 0.1 sec"


class RunSh(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name in ("tests", "deploy", "bin"):
            os.mkdir(f"{self.folder}/{name}")
        shutil.copy(f"{HERE}/run.sh", f"{self.folder}/tests/run.sh")
        self.program("bin/cmake", "#!/bin/sh\n")
        self.program("deploy/install-packages.sh", "#!/bin/sh\n")
        self.program("deploy/torch-wheel.sh", "#!/bin/sh\necho /torch\n")
        self.program("tests/arm64.sh", "#!/bin/sh\necho 3 passed, 0 failed\n")

    def program(self, path, text):
        with open(f"{self.folder}/{path}", "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(f"{self.folder}/{path}", 0o755)

    def ran(self, part, report="", xml=""):
        """The exit code of the part, and the last line."""
        self.program("bin/ctest", CTEST.format(report=report, xml=xml))
        done = subprocess.run(
            [f"{self.folder}/tests/run.sh", "--only", part],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"},
        )
        return done.returncode, done.stdout.splitlines()[-1]

    def test_what_passes_passes_with_a_test_that_was_skipped_among_it(self):
        self.assertEqual((0, "2 passed, 0 failed"), self.ran("unit", ALL_PASS))
        self.assertEqual((0, "1 passed, 0 failed"), self.ran("unit", f"{ONE_SKIPPED}\n{ALL_PASS}"))
        self.assertEqual((0, "3 passed, 0 failed"), self.ran("arm64"))

    def test_a_part_whose_tests_were_all_skipped_fails(self):
        report = f"{BOTH_SKIPPED}\n{ALL_PASS}"
        self.assertEqual((1, "0 passed, 1 failed"), self.ran("unit", report))
        self.program("tests/arm64.sh", "#!/bin/sh\necho 0 passed, 0 failed\n")
        self.assertEqual((1, "0 passed, 1 failed"), self.ran("arm64"))

    def test_a_part_whose_installation_fails_fails(self):
        self.program("deploy/install-packages.sh", '#!/bin/sh\n[ "$*" = --tests ]\n')
        for part in ("arm64", "packages"):
            self.assertEqual((1, "0 passed, 1 failed"), self.ran(part, ALL_PASS))

    def test_only_real_processes_get_another_try(self):
        for part, wanted in (
            ("unit", [("--exclude-regex ^(e2e|deploy)", False)]),
            ("e2e", [("--tests-regex ^(e2e|deploy)", True)]),
            ("wheel", [("--tests-regex ^unit", False), ("--tests-regex ^e2e", True)]),
        ):
            self.assertEqual(0, self.ran(part, ALL_PASS)[0])
            with open(f"{self.folder}/bin/calls", encoding="utf-8") as file:
                calls = file.read().splitlines()
            os.remove(f"{self.folder}/bin/calls")
            self.assertEqual(len(wanted), len(calls), calls)
            for (tests, again), call in zip(wanted, calls):
                self.assertIn(tests + "\\.", call)
                self.assertEqual(again, "--repeat" in call, call)

    def test_fuzzing_that_executes_nothing_fails(self):
        self.assertEqual((1, "2 passed, 1 failed"), self.ran("fuzz", ALL_PASS))
        executed = "stat::number_of_executed_units: 7"
        self.assertEqual((0, "2 passed, 0 failed"), self.ran("fuzz", ALL_PASS, executed))


if __name__ == "__main__":
    unittest.main()
