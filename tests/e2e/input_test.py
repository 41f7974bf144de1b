"""Input that does not fit, as a new user would bring it: a founder ends with one clear line and
exit code 78, a joiner is refused with a reason, and no other node is disturbed. Once the input is
mended the same command works.
"""

import gzip
import os
import subprocess
import unittest

from cluster import DATA, ClusterTest, FASHION_MNIST, clean_environment, DEADLINE_S
from models_test import python_with_torch

EXIT_CONFIG = 78
TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"

MODELS = """
import torch

class Plain(torch.nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :10]

class Linear(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = torch.nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.linear(x.flatten(1))

torch.jit.script(Plain()).save("plain.pt")
torch.jit.script(Linear(784, 10)).save("good.pt")
torch.jit.script(Linear(784, 5)).save("five.pt")
torch.jit.script(Linear(3072, 10)).save("wide.pt")
torch.save(Linear(784, 10).state_dict(), "pickle.pt")
"""


def idx_images(count, rows=28, columns=28):
    return (
        bytes([0, 0, 8, 3])
        + b"".join(extent.to_bytes(4, "big") for extent in (count, rows, columns))
        + bytes(count * rows * columns)
    )


class Input(ClusterTest):
    def setUp(self):
        """Makes a directory of data like the real one, for the tests to damage."""
        self.data = os.path.join(self.cluster.directory, "data")
        os.mkdir(self.data)
        for name in os.listdir(DATA):
            if name.endswith("-ubyte.gz"):
                os.symlink(os.path.join(DATA, name), os.path.join(self.data, name))

    def put(self, name, content):
        """Replaces a data file by `content`, or removes it."""
        for path in (os.path.join(self.data, name), os.path.join(self.data, name + ".gz")):
            if os.path.lexists(path):
                os.remove(path)
        if content is not None:
            with open(os.path.join(self.data, name), "wb") as file:
                file.write(content)

    def mend(self, name):
        self.put(name, None)
        os.symlink(os.path.join(DATA, name + ".gz"), os.path.join(self.data, name + ".gz"))

    def original(self, name):
        with gzip.open(os.path.join(DATA, name + ".gz")) as file:
            return file.read()

    def assert_refused(self, node, *words):
        done = subprocess.run(
            node.command_line(),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            cwd=node.directory,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
        )
        complaints = [line for line in done.stderr.splitlines() if line.startswith("gossipd: ")]
        self.assertEqual(1, len(complaints), done.stderr)
        for word in words:
            self.assertIn(word, complaints[0])
        self.assertEqual(EXIT_CONFIG, done.returncode, complaints[0])

    def test_a_founder_ends_with_the_reason_and_trains_when_its_data_are_mended(self):
        labels = self.original(TRAIN_LABELS)
        node = self.cluster.founder(self.cluster.job(), data=self.data, shard="1/1")
        cases = (
            (TRAIN_IMAGES, None, "neither 'train-images-idx3-ubyte' nor"),
            (TRAIN_IMAGES, self.original(TRAIN_IMAGES)[:100_000], "bytes of data but has"),
            (TRAIN_IMAGES, b"GIF89a" + bytes(100), "is not an IDX file"),
            (TRAIN_IMAGES, idx_images(60_000, 14, 14), "but the job's samples are 1 x 28 x 28"),
            (
                TRAIN_LABELS,
                labels[:-1] + bytes([10]),
                "sample 59999 has label 10 but the job has 10 classes",
            ),
            (
                TRAIN_LABELS,
                labels[:4] + (59_999).to_bytes(4, "big") + labels[8:-1],
                "59999 labels for the 60000 images",
            ),
        )
        for name, content, reason in cases:
            self.put(name, content)
            self.assert_refused(node, name, reason)
            self.mend(name)
        node.start().wait_step(10)

    def test_a_founder_without_data_is_told_of_the_option(self):
        self.assert_refused(
            self.cluster.founder(self.cluster.job(), data=None), "--data", TRAIN_IMAGES
        )

    def test_a_job_that_does_not_fit_is_mended_in_the_same_state_directory(self):
        job = self.cluster.job(data=FASHION_MNIST.replace("classes = 10", "classes = 5"))
        node = self.cluster.founder(job, shard="1/1")
        self.assert_refused(node, TRAIN_LABELS, "the job has 5 classes")
        self.cluster.job(rest='[loss]\nkind = "mse"')
        self.assert_refused(node, "loss", "mse, which needs floats as targets")
        self.cluster.job()
        node.start().wait_step(10)

    def test_a_torchscript_file_that_cannot_be_trained(self):
        self.python(MODELS)
        with open(self.path("good.pt"), "rb") as good, open(self.path("cut.pt"), "wb") as cut, open(
            self.path("gif.pt"), "wb"
        ) as gif:
            cut.write(good.read()[:-200])
            gif.write(b"GIF89a" + bytes(1000))
        cases = (
            ("nowhere.pt", "there is no such file"),
            ("plain.pt", "no parameters that can be trained"),
            ("cut.pt", "is a TorchScript file cut short"),
            ("gif.pt", "is no TorchScript file"),
            ("pickle.pt", "a pickle, which torch.save() writes"),
            ("five.pt", "the data have 10 classes, the model has 5 outputs"),
            ("wide.pt", "forward(inputs) was given [2, 1, 28, 28]"),
        )
        for number, (name, reason) in enumerate(cases):
            job = self.cluster.job(model=f'kind = "torchscript"\nfile = "{name}"')
            self.assert_refused(
                self.cluster.founder(job, name=f"box{number}", key=self.path(f"{number}.key")),
                name,
                reason,
            )
        job = self.cluster.job()
        for number, (name, reason) in enumerate(
            (
                ("pickle.pt", "torch.save() writes"),
                ("cut.pt", "cut short"),
                ("gif.pt", "is no safetensors file"),
            )
        ):
            with open(job, encoding="utf-8") as file:
                text = file.read()
            with open(self.path("start.toml"), "w", encoding="utf-8") as file:
                file.write(f'start_from = "{name}"\n' + text)
            node = self.cluster.founder(
                self.path("start.toml"), name=f"start{number}", key=self.path(f"start{number}.key")
            )
            self.assert_refused(node, name, reason)

    def path(self, name):
        return os.path.join(self.cluster.directory, name)

    def python(self, program):
        with open(self.path("program.py"), "w", encoding="utf-8") as file:
            file.write(program)
        subprocess.run(
            [python_with_torch(), "program.py"],
            cwd=self.cluster.directory,
            check=True,
            timeout=DEADLINE_S,
        )

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "this machine has a GPU")
    def test_a_joiner_without_the_gpu_that_it_asks_for_ends_and_one_with_a_label_out_of_range_waits(
        self,
    ):
        first = self.cluster.found(self.cluster.job(), shard="1/1", trainer__min_step_ms=20)
        node = self.cluster.joiner("box2", first, trainer__device="cuda")
        self.assert_refused(node, "device 'cuda'", "trainer.device")
        self.assertEqual(["box1"], list(first.members()))
        self.put(TRAIN_LABELS, self.original(TRAIN_LABELS)[:-1] + bytes([10]))
        node = self.cluster.joiner("box3", first, data=self.data).start()
        self.assertIn(
            "sample 59999 has label 10", node.wait_phase("waiting-for-data")["waiting_for"]
        )
        first.wait_step(first.status()["step"] + 20)
        self.assertEqual("training", first.status()["phase"])
        self.assertEqual([], first.status()["refusals"])

    def test_a_joiner_with_images_of_another_shape_waits_and_disturbs_nobody(self):
        first = self.cluster.found(self.cluster.job(), shard="1/1", trainer__min_step_ms=20)
        self.put(TRAIN_IMAGES, idx_images(60_000, 32, 32))
        node = self.cluster.joiner("box2", first, data=self.data).start()
        status = node.wait_phase("waiting-for-data")
        self.assertIn(
            "60000 x 32 x 32 but the job's samples are 1 x 28 x 28", status["waiting_for"]
        )
        first.wait_step(first.status()["step"] + 20)
        self.assertEqual(([], []), (first.status()["refusals"], node.status()["refusals"]))
        self.mend(TRAIN_IMAGES)
        node.wait_linked(1)


if __name__ == "__main__":
    unittest.main()
