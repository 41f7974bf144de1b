"""External jobs: processes that attach to daemons train, and either of both may die at any time."""

import os
import signal
import subprocess
import sys
import unittest

import numpy

import attached
from cluster import GOSSIPD_CORE, ClusterTest, Unexpected, clean_environment, settled, wait_for
from cluster import _die_with_the_test as die_with_the_test
from tensors import distance, read_tensors

JOB = """
name = "mine"
batch = 32
budget_samples = {budget}
[model]
kind = "external"
{rest}
"""


KILLS = int(os.environ.get("GOSSIPD_KILLS", "8"))
MOST_UNTOLD = 2  # steps of a life that was killed before it could say them


class Trainer:
    """One attached.py, over any number of lives; its ledger is a new one in each."""

    def __init__(self, node, **options):
        self.node = node
        self.options = options
        self.process, self.life, self.ledgers = None, 0, []

    def start(self):
        self.life += 1
        place = os.path.join(self.node.directory, f"trainer{self.life}")
        self.model = place + ".npy"
        line = [sys.executable, attached.__file__, self.socket(), "--counters", place]
        line += ["--save", self.model, "--seed", str(hash(place) % 1000)]
        for name, value in self.options.items():
            line += ["--" + name.replace("_", "-")] + ([] if value is True else [str(value)])
        self.log_path = place + ".log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                line, stdout=log, stderr=log, env=clean_environment(), preexec_fn=die_with_the_test
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
    def job_file(self, budget=10_000_000, rest=""):
        path = os.path.join(self.cluster.directory, "mine.toml")
        with open(path, "w", encoding="utf-8") as out:
            out.write(JOB.format(budget=budget, rest=rest))
        return path

    def external(self, count, budget=10_000_000, rest="", **options):
        """Nodes in training, each with its trainer."""
        founder = self.cluster.founder(self.job_file(budget, rest), shard="auto", data=None)
        founder.program = GOSSIPD_CORE
        founder.start()
        wait_for("a socket", lambda: os.path.exists(founder.state_dir + "/trainer.sock"))
        trainers = [Trainer(founder, **options).start()]
        founder.wait_phase("training")
        for i in range(2, count + 1):
            node = self.cluster.joiner(f"box{i}", founder, shard="auto", data=None)
            node.program = GOSSIPD_CORE
            node.start()
            node.wait_phase("waiting-for-trainer")
            trainers.append(Trainer(node, **options).start())
            node.wait_phase("training")
        return trainers

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

    def test_kills_of_either_side_lose_no_step_and_count_none_twice(self):
        trainers = self.external(2, step_ms=2)
        for i in range(KILLS):
            trainer = trainers[i % 2]
            node = trainer.node
            if i % 4 < 2:
                node.kill()
                trainer.wait_steps(20)  # goes on alone
                attaches = trainer.done()["attaches"]
                node.start()
                trainer.wait("attached again", lambda d: d["attaches"] == attaches + 1)
            else:
                trainer.kill()
                node.wait_phase("waiting-for-trainer")
                trainer.start()
            trainer.wait_steps(20)
            node.wait_phase("training")
        for trainer in trainers:
            trainer.process.send_signal(signal.SIGTERM)
            trainer.end()
            trainer.node.wait_phase("waiting-for-trainer")
        for trainer in trainers:
            self.check_counters(trainer)

    def check_counters(self, trainer):
        """All steps of all lives, but those that a killed life had no time to say."""
        lives = [life.read() for life in trainer.ledgers]
        status = trainer.node.status()
        done = sum(life["samples"] for life in lives)
        untold = 32 * sum(MOST_UNTOLD for life in lives)
        self.assertLessEqual(status["own_samples"], done)
        self.assertGreaterEqual(status["own_samples"], done - untold)

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

    def test_a_daemon_without_libtorch_refuses_a_job_that_needs_it(self):
        node = self.cluster.founder(self.cluster.job(), shard="auto")
        node.program = GOSSIPD_CORE
        node.start()
        self.assertEqual(78, node.exit_code())
        self.assertIn("kind = \"external\" under [model]", node.log())


if __name__ == "__main__":
    unittest.main()
