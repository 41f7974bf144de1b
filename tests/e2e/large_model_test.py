"""A short run of large_model.py with ten million parameters: two nodes exchange them within the memory that is documented."""
import unittest

from cluster import ClusterTest
from large_model import measure

MODELS = 11         # of 4·P bytes, as models/README.md and core/exchange/EXCHANGE.md count them: 8, and 3 while a checkpoint is taken
OTHERS = 400e6      # LibTorch's code, the text, records on their way


class LargeModel(ClusterTest):
    def test_two_nodes_exchange_a_gpt_of_ten_million_parameters_within_the_documented_memory(self):
        report = measure(self.cluster, dim=256, depth=12, heads=8, exchanges=3)
        print(report, flush=True)
        self.assertGreater(report["floats"], 9_000_000)
        self.assertEqual(0, report["failures"], report)
        for phase in ("join", "steady"):
            for figures in report[phase]:
                self.assertLess(figures["resident_peak_mb"] * 1e6, MODELS * 4 * report["floats"] + OTHERS, report)
                self.assertGreater(figures["stall_max_ms"], 0)
        for figures in report["steady"]:
            self.assertGreaterEqual(figures["exchanges"], 3)
            self.assertLess(figures["spread"], 1)


if __name__ == "__main__":
    unittest.main()
