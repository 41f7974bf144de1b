"""External jobs: processes that attach to daemons train, and either of both may die at any time."""

import json
import os
import resource
import signal
import subprocess
import sys
import unittest
import zlib
from random import Random

import numpy

import attached
from cluster import DEADLINE_S, GOSSIPD_CORE, ClusterTest, Unexpected, clean_environment, gossipctl
from cluster import _die_with_the_test as die_with_the_test
from cluster import settled, wait_for
from models_test import ROOT, python_with_torch
from tensors import distance, read_tensors

JOB = """
name = "mine"
batch = 32
budget_samples = {budget}
[model]
kind = "external"
{rest}
"""

LINEAR = """
import torch
class Linear(torch.nn.Linear):
    def forward(self, x):
        return torch.nn.functional.linear(x.flatten(1), self.weight, self.bias)
torch.jit.script(Linear(784, 10)).save("linear.pt")
"""

PACKAGE = os.path.join(ROOT, "tools/python/src")
LARGE = 20_000_000  # floats, three times shared: far beyond the memory left
SPARE_MEMORY = 128 << 20
KILLS = int(os.environ.get("GOSSIPD_KILLS", "8"))


class Trainer:
    """One attached.py, over any number of lives; its ledger is a new one in each.

    `by_package`: attached_loop.py in its place.
    """

    def __init__(self, node, by_package=False, **options):
        self.node = node
        script = "attached_loop.py" if by_package else "attached.py"
        self.script = os.path.join(os.path.dirname(attached.__file__), script)
        node.trainers = [*getattr(node, "trainers", []), self]
        self.options = options
        self.process, self.life, self.ledgers = None, 0, []

    def start(self):
        self.life += 1
        place = os.path.join(self.node.directory, f"trainer{self.life}")
        self.model = place + ".npy"
        seed = zlib.crc32(f"{self.node.name}/{self.life}".encode())
        line = [sys.executable, self.script, self.socket(), "--counters", place]
        line += ["--save", self.model, "--seed", str(seed % 1000)]
        for name, value in self.options.items():
            line += ["--" + name.replace("_", "-")] + ([] if value is True else [str(value)])
        self.log_path = place + ".log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                line,
                stdout=log,
                stderr=log,
                env={**clean_environment(), "PYTHONPATH": PACKAGE},
                preexec_fn=die_with_the_test,
            )
        self.ledger = attached.Ledger(place)
        self.ledgers.append(self.ledger)
        return self

    def words(self):
        with open(self.log_path, encoding="utf-8") as log:
            return log.read()

    def socket(self):
        return os.path.join(self.node.state_dir, "trainer.sock")

    def done(self):
        return self.ledger.read()

    def wait(self, what, condition, deadline_s=60):
        def holds():
            if self.process.poll() not in (None, 0):
                raise AssertionError(f"the trainer of {self.node.name} ended: {self.words()}")
            done = self.done()
            if condition(done):
                return done
            raise Unexpected(done)

        return wait_for(f"trainer of {self.node.name}: {what}", holds, deadline_s)

    def wait_steps(self, more):
        begin = self.done()["steps"]
        return self.wait(f"{more} more steps", lambda d: d["steps"] >= begin + more)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.process.wait(timeout=60)
        return self.process.returncode


class External(ClusterTest):
    def tearDown(self):
        for node in self.cluster.nodes:
            for trainer in getattr(node, "trainers", []):
                trainer.kill()
        super().tearDown()

    def job_file(self, budget=10_000_000, rest=""):
        path = os.path.join(self.cluster.directory, "mine.toml")
        with open(path, "w", encoding="utf-8") as out:
            out.write(JOB.format(budget=budget, rest=rest))
        return path

    def external(self, count, budget=10_000_000, rest="", **options):
        """Nodes in training, each with its trainer."""
        trainers = [self.founder_with_trainer(budget, rest, **options)]
        founder = trainers[0].node
        founder.wait_phase("training")
        for i in range(2, count + 1):
            trainers += self.join(founder, f"box{i}", **options)
        return trainers

    def founder_with_trainer(self, budget, rest="", **options):
        founder = self.cluster.founder(self.job_file(budget, rest), shard="auto", data=None)
        founder.program = GOSSIPD_CORE
        founder.start()
        wait_for("a socket", lambda: os.path.exists(founder.state_dir + "/trainer.sock"))
        return Trainer(founder, **options).start()

    def join(self, founder, name, **options):
        """One more node in training, with its trainer."""
        node = self.cluster.joiner(name, founder, shard="auto", data=None)
        node.program = GOSSIPD_CORE
        node.start()
        node.wait_phase("waiting-for-trainer")
        trainer = Trainer(node, **options).start()
        node.wait_phase("training")
        return [trainer]

    def test_three_daemons_with_three_trainers_come_to_one_model(self):
        trainers = self.external(3, budget=150_000, step_ms=2)
        nodes = [trainer.node for trainer in trainers]
        for node in nodes:
            node.wait_phase("finished")
        for trainer in trainers:
            trainer.wait("the final model", lambda d: d["state"] == 5)
            self.assertEqual(0, trainer.end())
        statuses = settled(nodes, "finished")
        for trainer, status in zip(trainers, statuses):
            done = trainer.done()
            self.assertEqual(
                (done["steps"], done["samples"]), (status["step"], status["own_samples"])
            )
            self.assertGreater(done["adds"], 10, "updates from others")
        self.assertEqual(statuses[0]["cluster_samples"], sum(s["own_samples"] for s in statuses))
        models = [numpy.load(trainer.model) for trainer in trainers]
        finals = [read_tensors(node.checkpoint_path("final"))[1] for node in nodes]
        for model in models[1:]:
            self.assertLess(numpy.linalg.norm(model - models[0]) / numpy.linalg.norm(model), 0.01)
        self.assertLess(abs(float(numpy.mean(models[0])) - 1), 0.05)
        self.assertLess(distance(finals[1], finals[0]), 0.01)
        self.assertIn("first.weight", finals[0])

    def test_a_loop_of_short_steps_ends_where_its_short_budget_does(self):
        budget = 20_000
        trainer = self.founder_with_trainer(budget, by_package=True, step_ms=1)
        trainer.wait("the final model", lambda d: d["state"] == 5)
        # 32 a step; a look that the daemon is late to answer may let some steps pass.
        self.assertLess(trainer.done()["samples"], 1.02 * budget)

    def test_kills_of_either_side_lose_no_step_and_count_none_twice(self):
        """GOSSIPD_KILLS of them, half each of daemons and of trainers, half each of the loop that
        speaks ATTACH.md by hand and of the package's.
        """
        trainers = self.external(1, budget=10**9, step_ms=2)
        trainers += self.join(trainers[0].node, "box2", by_package=True, step_ms=2)
        random = Random(1)
        for i in range(KILLS):
            trainer = trainers[i % 2]
            node = trainer.node
            if i % 4 < 2:
                node.kill()
                trainer.wait_steps(random.randrange(1, 40))  # goes on alone
                attaches = trainer.done()["attaches"]
                node.start()
                trainer.wait("attached again", lambda d: d["attaches"] == attaches + 1)
            else:
                trainer.kill()
                node.wait_phase("waiting-for-trainer")
                self.check_counters(trainer)
                trainer.start()
            trainer.wait_steps(random.randrange(1, 40))
            node.wait_phase("training")
        for trainer in trainers:
            trainer.kill()
            trainer.node.wait_phase("waiting-for-trainer")
            self.check_counters(trainer)
        # Each believes all that the other has trained on, though one loop tells no times.
        own = [trainer.node.status()["own_samples"] for trainer in trainers]
        for trainer in trainers:
            trainer.node.wait("knows of all", lambda s: s["cluster_samples"] == sum(own))
        for trainer in trainers:
            # Nor is what a loop did alone taken for a jump of a model at rest.
            self.assertNotRegex(trainer.node.log(), r"reason=parameters step=(\d+) back_to=\1 ")

    def test_a_new_run_counts_beyond_what_only_the_others_know(self):
        first, second = self.external(2, step_ms=2)
        node = first.node
        first.wait_steps(200)
        node.kill()
        first.kill()  # before it has attached again: nobody but the other node knows all of it
        told = wait_for("news", lambda: second.node.members()[node.name]["samples"])
        node.start().wait_phase("waiting-for-trainer")
        before = node.wait(
            "what the other knows",
            lambda s: s["own_samples"] >= told and 32 * s["step"] == s["own_samples"],
        )
        first.start()
        first.wait_steps(100)
        first.kill()
        node.wait_phase("waiting-for-trainer")
        done = first.done()
        now = node.wait(
            "all of the new run",
            lambda s: s["own_samples"] - before["own_samples"] >= done["told"],
        )
        self.assertLessEqual(now["own_samples"] - before["own_samples"], done["telling"])
        self.assertEqual(32 * now["step"], now["own_samples"])

    def check_counters(self, trainer):
        """All that its lives have told, exactly; a word that a kill cut short may have arrived."""
        lives = [life.read() for life in trainer.ledgers]
        told, telling = (sum(life[name] for life in lives) for name in ("told", "telling"))
        status = trainer.node.wait("counts all", lambda s: s["own_samples"] >= told)
        self.assertLessEqual(status["own_samples"], telling)
        self.assertEqual(32 * status["step"], status["own_samples"])

    def test_a_loop_whose_node_is_the_last_and_leaves_is_held_until_it_joins(self):
        (trainer,) = self.external(1, by_package=True)
        node = trainer.node
        for comes_later in (False, True):
            trainer.wait_steps(10)
            self.assertEqual(0, node.ctl("leave").returncode)
            node.wait_phase("left")
            if comes_later:
                trainer.kill()
                trainer.start()
            wait_for("why it is held", lambda: "gossipctl join brings it back" in trainer.words())
            self.assertEqual(1, trainer.words().count("gossipctl join"), trainer.words())
            self.assertNotIn("gone", trainer.words())
            self.assertEqual(0, node.ctl("join").returncode)
            node.wait_phase("training")
        trainer.wait_steps(10)

    def test_a_trainer_with_another_model_and_a_second_one_are_refused(self):
        trainer = self.external(1, step_ms=5)[0]
        second = Trainer(trainer.node).start()
        self.assertEqual(3, second.end())
        self.assertIn("refused: occupied", second.words())
        trainer.kill()
        trainer.node.wait_phase("waiting-for-trainer")
        other = Trainer(trainer.node, floats=1002).start()
        self.assertEqual(3, other.end())
        self.assertIn("'first.weight' is 501 here and 500 in the job", other.words())

    def test_a_stopped_daemon_does_not_stop_its_trainer_nor_a_stopped_trainer_its_daemon(self):
        first, second = self.external(2, step_ms=5)
        second.node.signal(signal.SIGSTOP)
        alone = second.done()["alone"]
        second.wait("alone", lambda d: d["alone"] > alone + 50)
        second.node.signal(signal.SIGCONT)
        second.node.wait(
            "counted what was done alone", lambda s: s["step"] >= second.done()["steps"] - 50
        )
        second.process.send_signal(signal.SIGSTOP)
        second.node.wait_phase("waiting-for-trainer")
        self.assertEqual("alive", first.node.members()["box2"]["state"])
        samples = second.node.status()["own_samples"]
        first.wait_steps(50)
        self.assertEqual(samples, second.node.status()["own_samples"])
        second.process.send_signal(signal.SIGCONT)
        second.node.wait_phase("training")
        second.wait_steps(20)

    def test_a_node_that_runs_until_finished_waits_for_its_trainer_and_for_no_evaluation(self):
        # Who waits for an evaluation waits for longer than this test does.
        more = dict(membership__finish_cap_ms=3_600_000)
        founder = self.cluster.founder(
            self.job_file(20_000), "--until", "finished", shard="auto", data=None, **more
        )
        founder.program = GOSSIPD_CORE
        founder.start()
        first = Trainer(founder, step_ms=2).start()
        founder.wait_phase("training")
        node = self.cluster.joiner(
            "box2", founder, "--until", "finished", shard="auto", data=None, **more
        )
        node.program = GOSSIPD_CORE
        node.start()
        node.wait_phase("waiting-for-trainer")
        second = Trainer(node, step_ms=2).start()
        for trainer in (first, second):
            trainer.wait("the final model", lambda d: d["state"] == 5)
            self.assertEqual(0, trainer.end())
        for node in (founder, node):
            self.assertEqual(0, node.exit_code(), node.log())
            self.assertIn('event=job-finished why="the job is finished"', node.log())
            self.assertLess(
                node.log().index("event=trainer-gone"), node.log().index("event=job-finished")
            )

    def test_a_fixed_set_founds_by_number_when_the_first_trainer_of_node_0_has_come(self):
        self.assertEqual(0, gossipctl("key", "generate", self.cluster.key).returncode)
        job = self.job_file()
        nodes = [self.cluster.node(f"box-{i}", "--job", job, data=None) for i in range(3)]
        for i, node in enumerate(nodes):
            node.program = GOSSIPD_CORE
            node.arguments += [word for peer in nodes for word in ("--join", peer.address)]
            node.arguments += ["--bootstrap", str(i)]
            node.start()
        nodes[0].wait_log("event=waiting-for-trainer")
        trainers = [Trainer(node, step_ms=5).start() for node in nodes]
        for node in nodes:
            node.wait_phase("training")
        self.assertIn("event=cluster-founded", nodes[0].log())
        self.assertEqual(1, len({node.status()["cluster_id"] for node in nodes}))
        for trainer in trainers:
            trainer.wait_steps(20)
        # The same command line once more.
        for node in nodes[:2]:
            self.assertEqual(0, node.terminate())
            node.start().wait_phase("training")
            self.assertNotIn("event=cluster-founded", node.log())

    def test_built_in_and_attached_nodes_with_the_same_tensors_are_refused_by_each_other(self):
        """One job is built in or external for all of its nodes, and each refusal says so."""
        built_in_job = self.linear_torchscript_job()
        segments = json.dumps([["parameter", [10, 784], "weight"], ["parameter", [10], "bias"]])
        options = dict(floats=7850, segments=segments, step_ms=5)

        # Into a cluster of two attached nodes.
        attached_nodes = [trainer.node for trainer in self.external(2, **options)]
        joiner = self.cluster.joiner("box3", attached_nodes[0], "--job", built_in_job)
        joiner.start().wait_log("code=job-mismatch .*start without --job to take the cluster's")
        joiner.terminate()
        for node in attached_nodes:
            self.assertEqual(2, node.status()["members_alive"])

        # Into a cluster of a built-in node. A script that waits at a joiner's socket, before that
        # one has heard what the job is, is told then.
        built_in = self.cluster.node(
            "box4", "--job", built_in_job, key=self.cluster.key + "4", trainer__min_step_ms=5
        ).start()
        built_in.wait_phase("training")
        self.assertFalse(os.path.exists(os.path.join(built_in.state_dir, "trainer.sock")))
        node = self.cluster.joiner("box5", built_in, key=self.cluster.key + "4")
        built_in.signal(signal.SIGSTOP)
        node.start()
        wait_for("a socket", lambda: os.path.exists(node.state_dir + "/trainer.sock"))
        trainer = Trainer(node, **options).start()
        trainer.wait("that it waits", lambda d: d["state"] == 1)
        built_in.signal(signal.SIGCONT)
        self.assertEqual(3, trainer.end(), trainer.words())
        self.assertIn("refused: not-external", trainer.words())
        node.wait_phase("training")
        self.assertFalse(os.path.exists(trainer.socket()))
        node = self.cluster.joiner(
            "box6", built_in, "--job", self.job_file(), key=self.cluster.key + "4", data=None
        )
        self.assertEqual(78, node.start().exit_code())
        self.assertIn("leave out --job to join", node.log())

    def test_a_daemon_without_room_for_the_script_s_model_may_be_started_again(self):
        node = self.cluster.founder(self.job_file(), shard="auto", data=None)
        node.program = GOSSIPD_CORE
        node.start()
        wait_for("a socket", lambda: os.path.exists(node.state_dir + "/trainer.sock"))
        with open(f"/proc/{node.process.pid}/statm", encoding="ascii") as file:
            limit = int(file.read().split()[0]) * resource.getpagesize() + SPARE_MEMORY
        resource.prlimit(node.process.pid, resource.RLIMIT_AS, (limit, limit))
        Trainer(node, floats=LARGE).start()
        self.assertEqual(1, node.exit_code(), node.log())
        self.assertRegex(node.log(), "shares with its trainer.*Cannot allocate.*; free memory")

    def test_settings_that_only_the_daemon_s_own_training_heeds_are_named(self):
        settings = {"trainer__min_step_ms": 5, "balance__enabled": "true"}
        node = self.cluster.founder(self.job_file(), shard="auto", data=None, **settings)
        node.program = GOSSIPD_CORE
        node.start()
        wait_for("a socket", lambda: os.path.exists(node.state_dir + "/trainer.sock"))
        Trainer(node).start()
        node.wait_log(
            r"without effect in job 'mine': trainer\.device, trainer\.threads, "
            r"trainer\.min_step_ms, balance\.enabled; .*set it there"
        )

    def test_a_checkpoint_of_a_script_s_model_is_not_exported_as_torchscript(self):
        node = self.external(1, step_ms=5)[0].node
        node.wait_step(20)
        self.assertEqual(0, node.ctl("checkpoint").returncode)
        target = os.path.join(self.cluster.directory, "out.pt")
        done = gossipctl("checkpoint", "export", node.state_dir, target)
        self.assertEqual(1, done.returncode, done.stderr)
        self.assertIn("the model of its job is the script's", done.stderr)
        self.assertIn("export to a .safetensors file", done.stderr)
        self.assertFalse(os.path.exists(target))

    def linear_torchscript_job(self):
        with open(os.path.join(self.cluster.directory, "linear.py"), "w", encoding="utf-8") as out:
            out.write(LINEAR)  # TorchScript reads its source
        line = [python_with_torch(), "linear.py"]
        subprocess.run(line, cwd=self.cluster.directory, check=True, timeout=DEADLINE_S)
        return self.cluster.job(model='kind = "torchscript"\nfile = "linear.pt"')

    def test_a_daemon_without_libtorch_refuses_a_job_that_needs_it(self):
        node = self.cluster.founder(self.cluster.job(), shard="auto")
        node.program = GOSSIPD_CORE
        node.start()
        self.assertEqual(78, node.exit_code())
        self.assertIn("kind = \"external\" under [model]", node.log())


if __name__ == "__main__":
    unittest.main()
