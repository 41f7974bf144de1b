// A campaign misses no seed, whatever becomes of its processes.
#include "tests/sim/gossip_sim/campaign.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

using namespace gossipd::sim;

namespace {

// Ten seeds in two processes, one of which ends at seed 3: by `signal`, or by itself.
Campaign campaign_that_dies_at_seed_3(int signal) {
  CampaignOptions options;
  options.first = 1;
  options.last = 10;
  options.jobs = 2;
  options.run = [signal](std::uint64_t seed, const Mutant*, bool) {
    if (seed == 3 && signal == 0) ::_exit(0);
    if (seed == 3) (void)::raise(signal);
    return SeedResult{.seed = seed};
  };
  return run_campaign(options);
}

}  // namespace

TEST_CASE("a process that ends before its seeds do fails the next of them, and the rest run") {
  for (const int signal : {SIGKILL, 0}) {
    CAPTURE(signal);
    const Campaign campaign = campaign_that_dies_at_seed_3(signal);
    CHECK(campaign.seeds == 10);
    REQUIRE(campaign.failures.size() == 1);
    CHECK(campaign.failures.begin()->first == 3);
    CHECK_FALSE(campaign.passed());
  }
}

TEST_CASE("a campaign with fewer results than seeds has not passed") {
  Campaign campaign;
  campaign.seeds_asked = 10;
  campaign.seeds = 9;
  CHECK_FALSE(campaign.passed());
  CHECK(to_text(campaign).find("not run: 1 of the seeds") != std::string::npos);
  campaign.seeds = 10;
  CHECK(campaign.passed());
}
