"""A short run of large_model.py: two nodes exchange ten million parameters within the documented
memory.
"""

import os
import tempfile
import unittest

from cluster import BIN, ClusterTest
from large_model import SETTINGS, job_of, measure, resident_peak, wait_for_checkpoint

# In units of 4·P bytes: 7 documented in models/README.md, 2 while a checkpoint is taken, and room
# for records, threads and freed memory that malloc keeps.
MODELS = 12
# Likewise with exchange.memory_dir and no momentum: model, gradient, and that room.
TRAINER = 3


class LargeModel(ClusterTest):
    def resident_without_a_model(self):
        """Memory of a daemon that trains next to nothing: LibTorch and everything else."""
        key = os.path.join(self.cluster.directory, "small.key")
        small = self.cluster.founder(
            job_of(self.cluster, dim=16, depth=1, heads=2), name="small", key=key, **SETTINGS
        ).start()
        small.wait_step(3)
        wait_for_checkpoint(small)
        resident = resident_peak(small)
        self.assertEqual(0, small.terminate())
        return resident

    def test_two_nodes_exchange_a_gpt_of_ten_million_parameters_within_the_documented_memory(self):
        others = self.resident_without_a_model()
        report = measure(self.cluster, dim=256, depth=12, heads=8, exchanges=3)
        print(f"resident without a model: {others / 1e6:.0f} MB; {report}", flush=True)
        self.assertGreater(report["floats"], 9_000_000)
        self.assertEqual(0, report["failures"], report)
        for phase in ("join", "steady"):
            for figures in report[phase]:
                self.assertLess(
                    figures["resident_peak_mb"] * 1e6,
                    others + MODELS * 4 * report["floats"],
                    report,
                )
                self.assertGreater(figures["stall_max_ms"], 0)
        for figures in report["steady"]:
            self.assertGreaterEqual(figures["exchanges"], 3)
            self.assertLess(figures["consensus_distance"], 1)

    def test_with_a_memory_dir_main_memory_holds_what_trains_alone(self):
        others = self.resident_without_a_model()
        with tempfile.TemporaryDirectory(dir=BIN) as on_a_disk:
            settings = {"exchange.memory_dir": on_a_disk}
            report = measure(self.cluster, 256, 12, 8, exchanges=2, momentum=0, settings=settings)
            self.assertEqual([], os.listdir(on_a_disk))
        print(f"without a model: {others / 1e6:.0f} MB; {report}", flush=True)
        for figures in report["steady"]:
            self.assertLess(
                figures["anonymous_mb"] * 1e6, others + TRAINER * 4 * report["floats"], report
            )
            self.assertGreaterEqual(figures["exchanges"], 2)

    def test_a_memory_dir_that_holds_nothing_is_refused(self):
        for place, why in (("/nowhere", "No such file or directory"), ("/dev/shm", "main memory")):
            key = os.path.join(self.cluster.directory, "refused.key")
            node = self.cluster.founder(
                job_of(self.cluster, dim=16, depth=1, heads=2),
                name=f"at{place.count('/')}",
                key=key,
                exchange__memory_dir=place,
                **SETTINGS,
            ).start()
            self.assertEqual(78, node.process.wait(60))
            self.assertIn(f"exchange.memory_dir: {place}: ", node.log())
            self.assertIn(why, node.log())


if __name__ == "__main__":
    unittest.main()
