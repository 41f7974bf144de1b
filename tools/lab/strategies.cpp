#include "tools/lab/gossip.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

const std::vector<StrategyEntry>& strategies() {
  static const std::vector<StrategyEntry> all = [] {
    std::vector<StrategyEntry> entries = {
        {"gossip",
         "gossipd: adaptive, change-triggered exchange between neighbours, nobody in charge",
         "this project; core/exchange/EXCHANGE.md",
         [] { return std::unique_ptr<Strategy>(std::make_unique<GossipStrategy>()); }}};
    for (const StrategyEntry& entry : reference_strategies()) entries.push_back(entry);
    return entries;
  }();
  return all;
}

}  // namespace gossipd::lab
