"""`gossipd init` writes a job for a directory of data; `--check-config` tries it; epochs become
samples. Every kind of data is made from Fashion-MNIST, or is text of Debian's.
"""

import array
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import unittest
from pathlib import Path

from cluster import DATA, DEADLINE_S, GOSSIPD, ClusterTest, clean_environment
from data_test import Jpeg, cifar_record, enlarged, fashion_mnist, write
from tensors import safetensors

EXIT_CONFIG = 78
TEXT = "/usr/share/common-licenses/GPL-3"  # of Debian's base-files
# Four integers below 50, two classes.
EMBEDDING = """import sys, torch
net = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Flatten(), torch.nn.Linear(32, 2))
torch.jit.script(net).save(sys.argv[1])
"""
# 28 x 28 inputs, ten classes.
OWN_MODEL = """import sys, torch
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
torch.jit.script(net).save(sys.argv[1])
"""

NORM = """
import sys, torch
net = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 10))
torch.jit.script(net).save(sys.argv[1])
"""


class Init(ClusterTest):
    def path(self, *parts):
        return os.path.join(self.cluster.directory, *parts)

    def run_gossipd(self, *words, **variables):
        return subprocess.run(
            [GOSSIPD, *words],
            capture_output=True,
            text=True,
            cwd=self.cluster.directory,
            env={**clean_environment(), **variables},
            timeout=2 * DEADLINE_S,
            check=False,
        )

    def check(self, job, data):
        return self.run_gossipd(
            *("--check-config", "--job", job, "--data", data, "--state-dir", self.path("state")),
            *("--set", "trainer.threads=1"),
        )

    def made(self, kind):
        """A directory with data of this kind."""
        directory = self.path(kind)
        samples = fashion_mnist("train", 200)
        if kind == "idx":
            return DATA
        if kind == "cifar":
            records = [cifar_record(*s) for s in samples]
            for i in range(1, 6):
                write(f"{directory}/data_batch_{i}.bin", b"".join(records))
            write(f"{directory}/test_batch.bin", b"".join(records[:50]))
        elif kind == "images":
            jpeg = Jpeg()
            for i, (pixels, label) in enumerate(samples[:60]):
                file = jpeg.encode(enlarged(pixels, 3), 84, 84)
                write(f"{directory}/train/{'even' if label % 2 == 0 else 'odd'}/{i}.jpg", file)
        elif kind == "classes":
            inputs = array.array("f", (p / 255 for s in samples for p in s[0][:16])).tobytes()
            labels = array.array("q", (s[1] for s in samples)).tobytes()
            tensors = {"x": ("F32", [200, 16], inputs), "y": ("I64", [200], labels)}
            write(f"{directory}/train.safetensors", safetensors(tensors))
        elif kind == "numbers":
            inputs = array.array("f", (p / 255 for s in samples for p in s[0][:16])).tobytes()
            targets = array.array("f", (s[1] / 10 for s in samples)).tobytes()
            tensors = {"inputs": ("F32", [200, 16], inputs), "targets": ("F32", [200, 1], targets)}
            write(f"{directory}/part.safetensors", safetensors(tensors))
        elif kind == "text":
            os.mkdir(directory)
            shutil.copy(TEXT, f"{directory}/book.txt")
        elif kind == "tokens":
            with open(TEXT, "rb") as file:
                tokens = array.array("H", list(file.read())).tobytes()
            write(f"{directory}/train.bin", tokens)
            write(f"{directory}/val.bin", tokens)
        return directory

    def test_a_draft_for_every_kind_of_data_trains(self):
        with open(TEXT, "rb") as file:
            vocabulary = max(file.read()) + 1
        for kind, said in (
            ("idx", "60000 samples to train on, 10000 held out, 10 classes"),
            ("cifar", "1000 samples to train on, 50 held out, 10 classes"),
            ("images", "54 samples to train on, 6 held out, 2 classes"),
            ("classes", "180 samples to train on, 20 held out, 10 classes"),
            ("numbers", "180 samples to train on, 20 held out\n"),
            ("text", "a vocabulary of 256"),
            ("tokens", f"a vocabulary of {vocabulary}\n"),
        ):
            data, job = self.made(kind), self.path(kind + ".toml")
            done = self.run_gossipd("init", "--data", data, "-o", job)
            self.assertEqual(0, done.returncode, done.stderr)
            self.assertIn("--check-config", done.stdout)
            done = self.check(job, data)
            self.assertEqual(0, done.returncode, kind + ": " + done.stderr)
            self.assertIn(said, done.stdout)
            self.assertIn(", 10.0 times the data\n", done.stdout)
            self.assertRegex(done.stdout, r"# model: \d+ parameters on cpu\n# step: [0-9.]+ ms for")
            self.assertFalse(os.path.exists(self.path("state")))

    def own_model(self, program):
        model = self.path("net.pt")
        made = subprocess.run(["/usr/bin/python3", "-c", program, model], check=False)
        self.assertEqual(0, made.returncode, "python3-torch is needed")
        return model

    def assert_drafted(self, job, data, model, parameters):
        """init writes a job for the model, and that passes --check-config."""
        done = self.run_gossipd("init", "--data", data, "--model", model, "-o", job)
        self.assertEqual(0, done.returncode, done.stderr)
        done = self.check(job, data)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn(f"# model: {parameters} parameters on cpu\n", done.stdout)

    def test_a_draft_for_integers_trains_a_model_of_ones_own_only(self):
        draw, count = random.Random(1), 100
        inputs = array.array("q", (draw.randrange(50) for _ in range(4 * count)))
        inputs[0] = 49
        labels = array.array("q", (i % 2 for i in range(count)))
        tensors = {
            "inputs": ("I64", [count, 4], inputs.tobytes()),
            "targets": ("I64", [count], labels.tobytes()),
        }
        data, job = self.path("integers"), self.path("integers.toml")
        write(f"{data}/train.safetensors", safetensors(tensors))
        done = self.run_gossipd("init", "--data", data, "-o", job)
        self.assertEqual(EXIT_CONFIG, done.returncode, done.stdout)
        self.assertIn("no built-in model takes integers as inputs", done.stderr)
        model = self.own_model(EMBEDDING)
        self.assert_drafted(job, data, model, 466)

    def test_a_batch_norm_has_no_parameters_in_its_statistics_and_wants_two_samples(self):
        data, job, model = self.made("classes"), self.path("norm.toml"), self.own_model(NORM)
        self.assert_drafted(job, data, model, 16 * 8 + 8 + 2 * 8 + 8 * 10 + 10)
        with open(job, encoding="utf-8") as file:
            draft = file.read()
        single = "\n[training]\nmicro_batch = 1\n"
        for size, more, key in ((1, "", "batch"), (32, single, "micro_batch")):
            with open(job, "w", encoding="utf-8") as file:
                file.write(re.sub(r"(?m)^batch = \d+", f"batch = {size}", draft) + more)
            done = self.check(job, data)
            self.assertEqual(EXIT_CONFIG, done.returncode, done.stdout)
            self.assertIn(f"two samples or more at once, so write {key} = 2", done.stderr)

    def test_the_commands_it_prints_can_be_pasted_whatever_the_paths_are(self):
        data, job = self.path("it's my data"), self.path('job "1".toml')
        os.mkdir(data)
        shutil.copy(TEXT, f"{data}/book.txt")
        done = self.run_gossipd("init", "--data", data, "-o", job)
        self.assertEqual(0, done.returncode, done.stderr)
        line = next(row for row in done.stdout.splitlines() if "--check-config" in row)
        words = subprocess.run(
            ["sh", "-c", "gossipd() { printf '%s\\n' \"$@\"; }\n" + line],
            capture_output=True,
            text=True,
            check=True,
        )
        wanted = ["--job", job, "--data", data, "--check-config"]
        self.assertEqual(wanted, words.stdout.split("\n")[:-1])

    def test_inputs_of_a_small_scale_are_learnt_like_any(self):
        draw, width, count = random.Random(1), 8, 500
        rows = [[draw.gauss(0, 1e-5) for _ in range(width)] for _ in range(count)]
        values = array.array("f", (v for row in rows for v in row)).tobytes()
        labels = array.array("q", (int(sum(row) > 0) for row in rows)).tobytes()
        tensors = {"inputs": ("F32", [count, width], values), "targets": ("I64", [count], labels)}
        data, job = self.path("small"), self.path("small.toml")
        write(f"{data}/train.safetensors", safetensors(tensors))
        done = self.run_gossipd("init", "--data", data, "-o", job)
        self.assertEqual(0, done.returncode, done.stderr)
        node = self.cluster.node("box1", "--job", job, data=data).start()
        status = node.wait("the end", lambda s: s["phase"] == "finished" and s["evaluation"])
        self.assertGreater(status["evaluation"]["accuracy"], 0.85)

    def test_a_draft_for_a_model_of_ones_own_trains(self):
        model, job = self.own_model(OWN_MODEL), self.path("own.toml")
        self.assert_drafted(job, DATA, model, 7850)

    def test_a_draft_for_numbers_that_are_not_small_learns_them(self):
        draw, width, count = random.Random(1), 8, 500
        inputs = [[draw.gauss(0, 1) for _ in range(width)] for _ in range(count)]
        values = array.array("f", (v for sample in inputs for v in sample)).tobytes()
        sums = [sum(sample) for sample in inputs]
        numbers = array.array("f", sums).tobytes()
        tensors = {
            "inputs": ("F32", [count, width], values),
            "targets": ("F32", [count, 1], numbers),
        }
        data, job = self.path("sums"), self.path("sums.toml")
        write(f"{data}/train.safetensors", safetensors(tensors))
        done = self.run_gossipd("init", "--data", data, "-o", job)
        self.assertEqual(0, done.returncode, done.stderr)
        node = self.cluster.node("box1", "--job", job, data=data).start()
        status = node.wait("the end", lambda s: s["phase"] == "finished" and s["evaluation"])
        self.assertEqual("", status["trouble"])
        self.assertEqual(0, status["steps_taken_back"])
        # Who says 0 to all has this loss.
        self.assertLess(status["evaluation"]["loss"], 0.5 * sum(s * s for s in sums) / count)

    def test_what_only_looks_like_data_is_named_with_the_way_out(self):
        with open(TEXT, "rb") as file:
            tokens = list(file.read())
        jpeg = Jpeg()
        for i, (pixels, _) in enumerate(fashion_mnist("train", 3)):
            write(self.path(f"one/train/cat/{i}.jpg"), jpeg.encode(enlarged(pixels, 3), 84, 84))
        for kind, code in (("uint32", "I"), ("int64", "q")):
            write(self.path(kind, "train.bin"), array.array(code, tokens).tobytes())
        for data, said in (
            ("uint32", r"holds uint32 tokens.*'uint32'\).astype\('uint16'\).tofile"),
            ("int64", r"holds int64 tokens.*'int64'\).astype\('uint16'\).tofile"),
            ("one", r"one/train: one class only, cat/; .* give each class a folder"),
        ):
            done = self.run_gossipd("init", "--data", self.path(data), "-o", "-")
            self.assertEqual(EXIT_CONFIG, done.returncode, done.stdout)
            self.assertRegex(done.stderr, said)

    def test_nothing_is_written_over_and_what_is_unknown_is_named(self):
        write(self.path("odd", "notes.md"), b"nothing")
        write(self.path("table", "all.csv"), b"1,2,0")
        write(self.path("flat", "cat.0.png"), b"no image")
        write(self.path("precious.toml"), b"precious")
        out = ("-o", self.path("precious.toml"))
        for words, said in (
            (["--data", DATA, *out], "--force"),
            (["--data", self.path("odd")], "holds notes.md, and no files that gossipd knows"),
            (["--data", self.path("table")], "safetensors.torch.save_file"),
            (["--data", self.path("flat")], "put the images of each class into a folder of its"),
            (["--data", self.path("none")], "is no directory"),
            (["--data", DATA, "--model", self.path("none.pt")], "none.pt: is no file"),
            (["--data", DATA, "--model", TEXT], "GPL-3: is no TorchScript model"),
            (["--data", DATA, "--nope"], "gossipd init --help"),
            ([], "--data is required"),
        ):
            done = self.run_gossipd("init", *words)
            self.assertEqual(EXIT_CONFIG, done.returncode, words)
            self.assertIn(said, done.stderr)
        with open(self.path("precious.toml"), encoding="ascii") as file:
            self.assertEqual("precious", file.read())
        done = self.run_gossipd("init", "--data", DATA, *out, "--force")
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertNotEqual(0, os.path.getsize(self.path("precious.toml")))
        self.assertIn("epochs = 10", self.run_gossipd("init", "--data", DATA, "-o", "-").stdout)

    def test_a_full_disk_leaves_no_empty_job(self):
        def no_room():
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        def init(out, *words):
            done = subprocess.run(
                [GOSSIPD, "init", "--data", DATA, "-o", out, *words],
                capture_output=True,
                text=True,
                preexec_fn=no_room,
                restore_signals=False,
            )
            self.assertEqual(1, done.returncode)
            self.assertIn(out + ": cannot write it", done.stderr)

        out = self.path("full.toml")
        init(out)
        self.assertFalse(os.path.exists(out))
        with open(out, "w", encoding="ascii") as file:
            file.write("precious")
        init(out, "--force")
        with open(out, encoding="ascii") as file:
            self.assertEqual("precious", file.read())
        self.assertFalse(os.path.exists(out + ".new"))

    def epochs_job(self, name, epochs):
        job = self.cluster.job(name)
        with open(job, encoding="utf-8") as file:
            text = file.read()
        with open(job, "w", encoding="utf-8") as file:
            file.write(re.sub("budget_samples = .*", f"{epochs}", text))
        return job

    def test_epochs_are_samples_of_the_founders_data_in_the_job_of_the_cluster(self):
        by_epochs = self.epochs_job("epochs.toml", "epochs = 1.5  # of 60,000")
        by_samples = self.cluster.job("samples.toml", budget_samples=90_000)
        slow = {"trainer__min_step_ms": 20}
        node = self.cluster.found(by_epochs, shard="1/3", **slow)
        self.assertEqual(90_000, node.status()["budget_samples"])
        document = node.get("/v1/job")["document"]
        self.assertNotIn("epochs", document)
        # The same job by its hash, however it is written.
        for name, job in (("box2", by_samples), ("box3", by_epochs)):
            self.cluster.joiner(name, node, "--job", job, **slow).start().wait_phase("training")
        for name, words, data, said in (
            ("a", "epochs = 1\nbudget_samples = 9", DATA, "exclude each other"),
            ("b", "epochs = 0", DATA, "above 0"),
            ("c", 'epochs = "two"', DATA, "must be a number"),
            ("d", "epochs = 1e-9", DATA, "the budget must lie between"),
            ("e", "epochs = 2", None, "give --data DIR"),
        ):
            bad = self.cluster.founder(self.epochs_job(name, words), name="bad" + name, data=data)
            self.assertEqual(EXIT_CONFIG, bad.start().exit_code(), bad.log())
            self.assertIn(said, bad.log())

    def test_check_config_finds_data_that_do_not_fit_before_there_is_a_cluster(self):
        job = self.cluster.job()
        done = self.check(job, self.cluster.directory)
        self.assertEqual(EXIT_CONFIG, done.returncode)
        self.assertIn("train-images-idx3-ubyte", done.stderr)
        done = self.check(self.cluster.job(data='kind = "idx"\nshape = [1, 32, 32]'), DATA)
        self.assertEqual(EXIT_CONFIG, done.returncode)
        self.assertFalse(os.path.exists(self.path("state")))

    def test_what_a_job_can_be_made_of_but_should_not_is_a_warning_and_a_note_in_the_draft(self):
        count = 40
        images = bytes(count * 8 * 8 * 3)
        classes = array.array("q", (1000 * (i % 3) for i in range(count))).tobytes()
        tensors = {
            "inputs": ("U8", [count, 8, 8, 3], images),
            "targets": ("I64", [count, 1], classes),
        }
        data, job = self.path("odd"), self.path("odd.toml")
        write(f"{data}/train.safetensors", safetensors(tensors))
        done = self.run_gossipd("init", "--data", data, "-o", job)
        self.assertEqual(0, done.returncode, done.stderr)
        for said in ("odd: inputs of [8, 8, 3] seem to be", "odd: of 2001 classes"):
            self.assertRegex(done.stderr, "(?m)^warning: .*" + re.escape(said))
        with open(job, encoding="utf-8") as file:
            draft = file.read()
        self.assertEqual(2, draft.count("# Note: "))
        self.assertIn("classes = 2001\n", draft)
        done = self.check(job, data)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertEqual("", done.stderr)

    def test_targets_that_training_does_not_reach_are_a_warning_of_init_and_of_check_config(self):
        count, data, job = 40, self.path("sums"), self.path("sums.toml")
        inputs = array.array("f", (i % 7 for i in range(2 * count))).tobytes()
        targets = array.array("f", (100_000 + 800_000 * (i % 2) for i in range(count))).tobytes()
        tensors = {"inputs": ("F32", [count, 2], inputs), "targets": ("F32", [count], targets)}
        write(f"{data}/train.safetensors", safetensors(tensors))
        done = self.run_gossipd("init", "--data", data, "-o", job)
        self.assertEqual(0, done.returncode, done.stderr)
        said = r"targets have a mean of [\d.]+ and a deviation of [\s\S]* divide them by 400000"
        self.assertRegex(done.stderr, "warning: .*sums: " + said)
        with open(job, encoding="utf-8") as file:
            self.assertIn("# Note: targets have a mean of ", file.read())
        done = self.check(job, data)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertRegex(done.stderr, "warning: " + said)

    def test_check_config_warns_of_milestones_that_are_never_reached(self):
        for first, warns in ((60_000, True), (59_999, False)):
            job = self.cluster.job(budget_samples=60_000)
            text = Path(job).read_text("utf-8")
            steps = f'kind = "step"\nmilestones = [{first}]'
            Path(job).write_text(text.replace('kind = "cosine"', steps), "utf-8")
            done = self.check(job, DATA)
            self.assertEqual(0, done.returncode, done.stderr)
            self.assertEqual(warns, "the learning rate never falls" in done.stderr, done.stderr)

    def test_check_config_warns_of_a_job_that_learns_nothing_or_evaluates_all_the_time(self):
        job = self.cluster.job(learning_rate=0, evaluate_every_samples=1)
        done = self.check(job, DATA)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn("warning: learning_rate = 0: nothing is learned", done.stderr)
        self.assertIn("warning: evaluate_every_samples = 1: each evaluation takes", done.stderr)
        job = self.cluster.job(learning_rate=0.05, evaluate_every_samples=60_000)
        self.assertEqual("", self.check(job, DATA).stderr)

    def test_check_config_warns_of_a_variable_that_names_no_setting(self):
        words = ("--check-config", "--state-dir", self.path("state"))
        done = self.run_gossipd(*words, GOSSIPD_TRAINER_DEVISE="cpu")
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn("warning: environment GOSSIPD_TRAINER_DEVISE names no setting", done.stderr)
        self.assertNotIn("DEVISE", done.stdout)
        self.assertEqual("", self.run_gossipd(*words, GOSSIPD_BIN_DIR="/usr/bin").stderr)


if __name__ == "__main__":
    unittest.main()
