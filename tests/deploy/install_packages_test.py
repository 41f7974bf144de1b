"""deploy/install-packages.sh: which packages it takes on which release, told by a made-up apt."""

import os
import stat
import subprocess
import tempfile
import unittest

SCRIPT = os.path.abspath(
    os.path.join(os.path.dirname(__file__), "../../deploy/install-packages.sh")
)
# dpkg-query and apt-cache as they answer where these packages are installed and on offer.
DPKG_QUERY = """#!/bin/sh
case "$*" in
  *libboost1*) pattern='libboost1\\.' form=package ;;
  *) pattern=. form=status ;;
esac
for name in $INSTALLED; do
  echo "$name" | grep -q "$pattern" || continue
  if [ $form = status ]; then echo "installed $name"; else echo "$name installed"; fi
done
"""
APT_CACHE = """#!/bin/sh
case $1 in
  search)
    for name in $OFFERED; do echo "$name - a package"; done | grep -E "^libboost1\\.[0-9]+-dev" ;;
  show) for name in $OFFERED; do [ "$name" = "$2" ] && exit 0; done; exit 100 ;;
esac
"""
BOOKWORM = "libboost1.74-dev libboost1.81-dev libtorch-dev libgloo-dev dataset-fashion-mnist"
NOBLE = "libboost1.74-dev libboost1.83-dev dataset-fashion-mnist"


class InstallPackages(unittest.TestCase):
    def choice(self, offered, installed="", *words):
        """Exit code, packages and complaints of --dry-run."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (
                ("dpkg-query", DPKG_QUERY),
                ("apt-cache", APT_CACHE),
                ("apt-get", "#!/bin/sh\nexit 1\n"),
            ):
                path = os.path.join(folder, name)
                with open(path, "w", encoding="ascii") as file:
                    file.write(text)
                os.chmod(path, stat.S_IRWXU)
            done = subprocess.run(
                [SCRIPT, "--dry-run", *words],
                env={"PATH": folder + ":/usr/bin:/bin", "OFFERED": offered, "INSTALLED": installed},
                capture_output=True,
                text=True,
                check=False,
            )
        return done.returncode, set(done.stdout.split()), done.stderr

    def test_debian_12(self):
        code, packages, said = self.choice(BOOKWORM)
        self.assertEqual((0, ""), (code, said))
        self.assertLessEqual({"libboost1.81-dev", "libtorch-dev", "cmake"}, packages)
        self.assertNotIn("libboost1.74-dev", packages)
        self.assertNotIn("prometheus", packages)
        self.assertLess(packages, self.choice(BOOKWORM, "", "--tests")[1])

    def test_ubuntu_24_04_has_another_boost_and_no_libtorch(self):
        code, packages, said = self.choice(NOBLE)
        self.assertEqual(0, code)
        self.assertIn("libboost1.83-dev", packages)
        self.assertNotIn("libtorch-dev", packages)
        self.assertIn("has no libtorch-dev; take PyPI's LibTorch: deploy/torch-wheel.sh", said)

    def test_the_oldest_that_is_recent_enough_and_any_that_is_there(self):
        offered = "libboost1.100-dev libboost1.88-dev libboost1.90-dev libtorch-dev libgloo-dev"
        self.assertIn("libboost1.88-dev", self.choice(offered)[1])
        packages = self.choice(offered, "libboost1.90-dev cmake")[1]
        self.assertFalse({name for name in packages if "boost" in name})
        self.assertNotIn("cmake", packages)
        self.assertIn("libboost1.88-dev", self.choice(offered, "libboost1.74-dev")[1])

    def test_with_everything_there_it_wants_nothing(self):
        everything = " ".join(self.choice(BOOKWORM, "", "--tests", "--packages")[1])
        words = ("--tests", "--packages")
        self.assertEqual((0, set(), ""), self.choice("", everything, *words))

    def test_a_release_that_is_too_old_and_a_word_that_is_none(self):
        code, packages, said = self.choice("libboost1.74-dev libtorch-dev")
        self.assertEqual((1, set()), (code, packages))
        self.assertIn("no Boost 1.81 or later", said)
        self.assertEqual(2, self.choice(BOOKWORM, "", "--test")[0])


if __name__ == "__main__":
    unittest.main()
