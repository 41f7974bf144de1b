"""Users' data: CIFAR files, folders of JPEGs and files that do not fit, all made from
Fashion-MNIST.
"""

import ctypes
import gzip
import os
import unittest

from cluster import DATA, FASHION_MNIST, ClusterTest, Unexpected, settled, wait_for
from tensors import distance, read_tensors

IMAGE_BYTES = 28 * 28
TURBOJPEG_GREY, TURBOJPEG_GREY_SAMPLING = 6, 3


def fashion_mnist(part, count):
    """The first `count` pairs of 784 pixels and a label."""

    def values(name, header):
        with gzip.open(os.path.join(DATA, name + ".gz")) as file:
            return file.read()[header:]

    images, labels = values(part + "-images-idx3-ubyte", 16), values(part + "-labels-idx1-ubyte", 8)
    return [(images[i * IMAGE_BYTES : (i + 1) * IMAGE_BYTES], labels[i]) for i in range(count)]


def cifar_record(pixels, label):
    """28 x 28 grey pixels in the middle of 32 x 32, the same in red, green and blue."""
    rows = (
        [bytes(32)] * 2
        + [bytes(2) + pixels[y * 28 : (y + 1) * 28] + bytes(2) for y in range(28)]
        + [bytes(32)] * 2
    )
    return bytes([label]) + b"".join(rows) * 3


def write(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


class Jpeg:
    """Writes JPEGs with libjpeg-turbo, which is installed because gossipd needs it."""

    def __init__(self):
        self.library = ctypes.CDLL("libturbojpeg.so.0")
        self.library.tjInitCompress.restype = ctypes.c_void_p
        self.encoder = ctypes.c_void_p(self.library.tjInitCompress())

    def encode(self, grey, columns, rows):
        out, size = ctypes.c_void_p(), ctypes.c_ulong()
        failed = self.library.tjCompress2(
            self.encoder,
            grey,
            columns,
            0,
            rows,
            TURBOJPEG_GREY,
            ctypes.byref(out),
            ctypes.byref(size),
            TURBOJPEG_GREY_SAMPLING,
            90,
            0,
        )
        assert not failed
        file = ctypes.string_at(out, size.value)
        self.library.tjFree(out)
        return file


def enlarged(pixels, factor):
    rows = [b"".join(bytes([p]) * factor for p in pixels[y * 28 : (y + 1) * 28]) for y in range(28)]
    return b"".join(row for row in rows for _ in range(factor))


class SharedSet(ClusterTest):
    SAMPLES, BUCKETS = 60_000, 16_384
    SHARED = FASHION_MNIST + '\ndivision = "shared"'

    def divided(self, nodes):
        """The nodes' divisions, once each has the set divided among exactly these nodes."""

        def adds_up():
            parts = [node.status()["trainer"]["division"] for node in nodes]
            if (
                None in parts
                or {p["members"] for p in parts} != {len(nodes)}
                or sum(p["buckets_owned"] for p in parts) != self.BUCKETS
            ):
                raise Unexpected(parts)
            return parts

        parts = wait_for(f"the set is divided among {len(nodes)}", adds_up)
        self.assertEqual(self.SAMPLES, sum(p["samples_owned"] for p in parts))
        self.assertEqual(
            {(self.SAMPLES, self.BUCKETS)}, {(p["samples"], p["buckets"]) for p in parts}
        )
        return parts

    def place(self, node):
        part = node.status()["trainer"]["division"]
        return part["pass"] * part["samples"] + part["place"]

    def test_the_living_divide_a_shared_set_while_members_come_die_and_return(self):
        settings = {"shard": "auto", "trainer__min_step_ms": 10, "checkpoint__every_s": 1}
        first = self.cluster.found(self.cluster.job(data=self.SHARED), **settings)
        self.divided([first])
        nodes = [first] + [
            self.cluster.joiner(f"box{i}", first, **settings).start() for i in (2, 3)
        ]
        for part in self.divided(nodes):
            self.assertAlmostEqual(1 / 3, part["samples_owned"] / self.SAMPLES, delta=0.03)
        self.assertIn(" of 60 000 samples, divided among 3; pass ", first.ctl("status").stdout)
        nodes[1].kill()
        self.divided([nodes[0], nodes[2]])
        # The others go on for half a pass, which the returning node must not walk alone.
        before = self.place(nodes[2])
        nodes[2].wait(
            "half a pass more", lambda s: self.place(nodes[2]) > before + self.SAMPLES // 2
        )
        nodes[1].start()
        self.divided(nodes)
        # It walks where the cluster's count is, not where another node is: half a pass behind, it
        # would stay behind, since all walk at the same pace.
        nodes[1].wait(
            "it is where the cluster is",
            lambda s: self.place(nodes[1])
            > nodes[2].status()["cluster_samples"] - self.SAMPLES // 8,
        )
        nodes[2].post("/v1/training/pause")
        self.divided(nodes[:2])
        nodes[2].wait(
            "nothing of the set while it rests",
            lambda s: s["trainer"]["division"]["buckets_owned"] == 0,
        )
        nodes[2].post("/v1/training/resume")
        self.divided(nodes)

    def test_a_manual_shard_is_refused_where_the_nodes_divide_the_set(self):
        job = self.cluster.job(data=self.SHARED)
        by_hand = self.cluster.founder(
            job, shard="1/3", name="by-hand", key=self.cluster.key + ".other"
        ).start()
        self.assertEqual(78, by_hand.exit_code())
        self.assertIn("shard: 1/3 is given by hand", by_hand.log())
        first = self.cluster.found(job, shard="auto", trainer__min_step_ms=20)
        joiner = self.cluster.joiner("box2", first, shard="2/3").start()
        self.assertEqual(78, joiner.exit_code())
        self.assertIn("take --shard out", joiner.log())
        first.wait_step(first.status()["step"] + 20)


class Data(ClusterTest):
    CIFAR = (
        'kind = "cifar10"\ntrain_files = ["data.bin"]\ntest_files = ["test.bin"]\n'
        'mean = 0.22\ndeviation = 0.33'
    )

    def write_cifar(self, folder="cifar", train=3000, test=500):
        directory = os.path.join(self.cluster.directory, folder)
        write(
            os.path.join(directory, "data.bin"),
            b"".join(cifar_record(*pair) for pair in fashion_mnist("train", train)),
        )
        write(
            os.path.join(directory, "test.bin"),
            b"".join(cifar_record(*pair) for pair in fashion_mnist("t10k", test)),
        )
        return directory

    def accuracy(self, node):
        status = node.wait(
            "finished and evaluated",
            lambda s: s["phase"] == "finished"
            and (s["checkpoints"].get("final") or {}).get("accuracy"),
            200,
        )
        return status["accuracy"]

    def test_three_nodes_each_walk_all_of_one_directory_of_cifar_files(self):
        directory = self.write_cifar()
        job = self.cluster.job(
            data=self.CIFAR + "\nrandom_crop = 2\nrandom_flip = true",
            budget_samples=60_000,
            learning_rate=0.02,
        )
        first = self.cluster.founder(
            job, data=directory, shard="auto", trainer__min_step_ms=4
        ).start()
        first.wait_phase("training")
        nodes = [first] + [
            self.cluster.joiner(
                f"box{i}", first, data=directory, shard="auto", trainer__min_step_ms=4
            ).start()
            for i in (2, 3)
        ]
        for node in nodes:
            self.assertGreater(self.accuracy(node), 0.65)
            self.assertEqual(3000, node.status()["trainer"]["shard_samples"])

    def test_a_resnet20_on_cifar_files_is_one_model_on_three_nodes_that_count_every_sample(self):
        batch, budget = 16, 4_000
        directory = self.write_cifar(train=3000, test=200)
        job = self.cluster.job(
            model='kind = "resnet20"',
            data=self.CIFAR,
            batch=batch,
            budget_samples=budget,
            warmup_samples=400,
        )
        nodes = self.cluster.three(job, data=directory)
        for node in nodes:
            # An untrained model has a loss of ln 10 = 2.3.
            status = node.wait(
                "the final checkpoint and its evaluation",
                lambda s: s["checkpoints"].get("final", {}).get("evaluation_loss") is not None,
                200,
            )
            self.assertLess(status["evaluation"]["loss"], 1.6)
        statuses = settled(nodes, "finished")
        own = {s["name"]: s["own_samples"] for s in statuses}
        for node, status in zip(nodes, statuses):
            self.assertEqual(batch * status["step"], status["own_samples"])
            self.assertEqual(own, {name: m["samples"] for name, m in node.members().items()})
            self.assertEqual(sum(own.values()), status["cluster_samples"])
        self.assertGreaterEqual(sum(own.values()), budget)
        finals = [read_tensors(node.checkpoint_path("final"))[1] for node in nodes]
        for tensors in finals:
            for name in [n for n in tensors if n.endswith("num_batches_tracked")]:
                del tensors[name]  # a counter that differs between nodes
        for tensors in finals[1:]:
            self.assertLess(distance(tensors, finals[0]), 0.01)

    def test_three_nodes_on_a_folder_of_jpegs_of_unequal_sizes_with_a_part_held_out(self):
        directory = os.path.join(self.cluster.directory, "pictures")
        jpeg = Jpeg()
        for number, (pixels, label) in enumerate(fashion_mnist("train", 2000)):
            factor = 1 + number % 3
            write(
                os.path.join(directory, "train", f"kind{label}", f"{number}.jpg"),
                jpeg.encode(enlarged(pixels, factor), 28 * factor, 28 * factor),
            )
        data = (
            'kind = "images"\nshape = [1, 28, 28]\nclasses = 10\nvalidation_fraction = 0.2\n'
            'mean = 0.286\ndeviation = 0.353'
        )
        nodes = self.cluster.three(
            self.cluster.job(data=data, budget_samples=60_000),
            data=directory,
            trainer__min_step_ms=4,
        )
        for node in nodes:
            self.assertGreater(self.accuracy(node), 0.65)
        self.assertEqual(1600, sum(node.status()["trainer"]["shard_samples"] for node in nodes))

    def test_a_node_that_reads_its_data_stops_at_once(self):
        data = os.path.join(self.cluster.directory, "data")
        os.mkdir(data)
        tokens = os.path.join(data, "tokens.bin")
        with open(tokens, "wb") as file:
            file.write(bytes(20_000))
        job = self.cluster.job(
            data='kind = "tokens"\nlength = 8\nvocabulary = 300\ntrain_files = ["tokens.bin"]',
            model='kind = "gpt"\ndim = 32\ndepth = 1\nheads = 2',
        )
        node = self.cluster.founder(job, shard="1/1", data=data).start()
        node.wait_step(1)
        self.assertEqual(0, node.terminate())
        os.truncate(tokens, 1 << 38)  # a hole, which takes minutes to look through
        node.start().wait("it reads them", lambda s: s["trainer"]["state"] == "preparing")
        self.assertEqual(0, node.terminate())
        self.assertNotIn("stops without waiting", node.log())

    def test_a_node_whose_files_are_gone_ends_as_one_that_is_to_be_started_again(self):
        directory = os.path.join(self.cluster.directory, "pictures")
        jpeg = Jpeg()
        for number, (pixels, label) in enumerate(fashion_mnist("train", 200)):
            path = os.path.join(directory, "train", f"kind{label}", f"{number}.jpg")
            write(path, jpeg.encode(pixels, 28, 28))
        data = 'kind = "images"\nshape = [1, 28, 28]\nclasses = 10\nvalidation_fraction = 0.2'
        node = self.cluster.founder(
            self.cluster.job(data=data),
            data=directory,
            shard="1/1",
            trainer__image_cache_mb=0,
            trainer__min_step_ms=20,
        ).start()
        node.wait_step(5)
        os.rename(directory, directory + ".away")  # as a share that is not mounted any more
        self.assertEqual(1, node.exit_code())
        self.assertIn("event=training-failed code=data-unreadable", node.log())
        os.rename(directory + ".away", directory)
        step = node.start().restored()[0]
        node.wait_step(step + 5)

    def test_files_that_do_not_fit_are_named_with_the_reason_and_disturb_no_other_node(self):
        good, bad = self.write_cifar(), os.path.join(self.cluster.directory, "bad")
        first = self.cluster.found(
            self.cluster.job(data=self.CIFAR), data=good, shard="1/1", trainer__min_step_ms=20
        )
        os.mkdir(bad)
        node = self.cluster.joiner("box2", first, data=bad).start()
        record = cifar_record(*fashion_mnist("train", 1)[0])
        for content, reason in (
            (None, "'data.bin' is not there"),
            (b"", "is empty"),
            (record[:-1], "not a multiple of the 3073"),
            (record + bytes([10]) + record[1:], "record 1 has label 10 but there are 10 classes"),
        ):
            if content is not None:
                write(os.path.join(bad, "data.bin"), content)
            node.wait(
                reason,
                lambda s, reason=reason: s["phase"] == "waiting-for-data"
                and reason in (s["waiting_for"] or ""),
            )
        step = first.status()["step"]
        for name in ("data.bin", "test.bin"):
            os.replace(
                os.path.join(good, name), os.path.join(bad, name)
            )  # the first node already has its data in memory
        node.wait_linked(1)
        first.wait_step(step + 50)


if __name__ == "__main__":
    unittest.main()
