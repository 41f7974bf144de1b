// tools/lab/references/registry.h - every reference row; one file and one make_…() each.
#pragma once

#include "tools/lab/strategy.h"

namespace gossipd::lab {

// In alphabetical order.
[[nodiscard]] const std::vector<StrategyEntry>& reference_strategies();

[[nodiscard]] std::unique_ptr<Strategy> make_ad_psgd();
[[nodiscard]] std::unique_ptr<Strategy> make_adaptive_gossip();
[[nodiscard]] std::unique_ptr<Strategy> make_asgd();
[[nodiscard]] std::unique_ptr<Strategy> make_dana();
[[nodiscard]] std::unique_ptr<Strategy> make_dbs_sgd();
[[nodiscard]] std::unique_ptr<Strategy> make_dc_asgd();
[[nodiscard]] std::unique_ptr<Strategy> make_diloco();
[[nodiscard]] std::unique_ptr<Strategy> make_easgd();
[[nodiscard]] std::unique_ptr<Strategy> make_eventgrad();
[[nodiscard]] std::unique_ptr<Strategy> make_gossip_sgd();
[[nodiscard]] std::unique_ptr<Strategy> make_lc_asgd();
[[nodiscard]] std::unique_ptr<Strategy> make_local_sgd();
[[nodiscard]] std::unique_ptr<Strategy> make_noloco();
[[nodiscard]] std::unique_ptr<Strategy> make_smega2();
[[nodiscard]] std::unique_ptr<Strategy> make_softsync();
[[nodiscard]] std::unique_ptr<Strategy> make_sparseloco();
[[nodiscard]] std::unique_ptr<Strategy> make_sync_sgd();

}  // namespace gossipd::lab
