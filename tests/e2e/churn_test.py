"""A minute of the soak in churn.py with five nodes and with twenty; `churn.py --minutes 30` runs it
longer.
"""

import unittest

from churn import DISTANCE_MAX, RSS_GROWTH_MAX, campaign
from switchboard import unavailable

NO_NAMESPACES = unavailable()


@unittest.skipIf(NO_NAMESPACES, NO_NAMESPACES)
class ChurnTest(unittest.TestCase):
    def test_a_minute_of_faults_loses_no_sample_and_no_accuracy(self):
        results = campaign(minutes=1, seed=7, count=5)
        print(results, flush=True)
        self.assertGreaterEqual(sum(results["disturbed"]["faults"].values()), 8)
        self.assertGreaterEqual(len(results["disturbed"]["faults"]), 4, "kinds of faults")
        for run in results["disturbed"], results["undisturbed"]:
            self.assertEqual(0, run["refused"])
            self.assertLess(run["consensus_distance"], DISTANCE_MAX)
            self.assertLess(run["rss_growth"], RSS_GROWTH_MAX)
        # The accuracy of short runs varies by more than the soak's half point.
        self.assertLess(abs(results["points"]), 2)

    def test_twenty_nodes_that_come_and_go_count_exactly_and_agree_on_who_lives(self):
        results = campaign(minutes=1, seed=1, count=20, baseline=False)
        print(results, flush=True)
        run = results["disturbed"]
        self.assertGreaterEqual(sum(run["faults"].values()), 12)
        self.assertGreaterEqual(len(run["faults"]), 4, "kinds of faults")
        self.assertEqual(0, run["refused"])
        self.assertLess(run["consensus_distance"], DISTANCE_MAX)
        self.assertLess(run["rss_growth"], RSS_GROWTH_MAX)


if __name__ == "__main__":
    unittest.main()
