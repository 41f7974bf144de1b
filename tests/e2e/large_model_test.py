"""A short run of large_model.py: two nodes exchange ten million parameters within the documented
memory.
"""

import os
import unittest

from cluster import ClusterTest
from large_model import SETTINGS, job_of, measure, resident_peak, wait_for_checkpoint

# In units of 4·P bytes: 8 documented in models/README.md, 2 while a checkpoint is taken, and room
# for records, threads and freed memory that malloc keeps.
MODELS = 13


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


if __name__ == "__main__":
    unittest.main()
