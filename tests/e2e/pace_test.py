"""A short run of pace.py: a frozen and a killed neighbour cost the others nothing beyond machine
noise.
"""

import unittest

from cluster import with_cluster
from pace import measure


class Pace(unittest.TestCase):
    def test_survivors_keep_their_pace_past_a_frozen_and_a_killed_node(self):
        report = with_cluster("pace", measure, 15)
        print(report, flush=True)
        for fault in ("frozen", "killed"):
            # The aim is 0.95 on an idle machine; a node that waited for the other would be at 0.
            self.assertGreater(min(report[fault]["pace"]), 0.8, report)
            self.assertIsNotNone(report[fault]["failed_after_s"], report)
        self.assertLess(report["frozen"]["suspected_after_s"], report["frozen"]["failed_after_s"])


if __name__ == "__main__":
    unittest.main()
