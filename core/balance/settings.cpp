#include "core/balance/settings.h"

namespace gossipd {

std::vector<Setting> balance_settings(BalancePolicy& b) {
  std::vector<Setting> settings;
  SettingTable table(settings);
  table.boolean(
      "balance.enabled", "balance", b.enabled,
      "size the minibatch by speed, so that steps take equally long everywhere (DBS-SGD)");
  table.integer("balance.batch_min", "", "samples", b.batch_min, 0, 1'000'000,
                "the smallest minibatch; 0: 8, or the job's batch where that is smaller");
  table.integer("balance.batch_max", "", "samples", b.batch_max, 0, 1'000'000,
                "the largest minibatch; 0: eight times the job's batch");
  table.one_of("balance.weight", "", b.weight, {"none", "batch", "rate"},
               "what grows with the batch: nothing (none), the weight in mixing (batch) or the "
               "learning rate (rate)");
  return settings;
}

std::optional<std::string> balance_mistake(const BalancePolicy& b) {
  if (b.batch_max > 0 && b.batch_min > b.batch_max)
    return "balance.batch_min (" + std::to_string(b.batch_min) +
           ") is more than balance.batch_max (" + std::to_string(b.batch_max) +
           "); raise batch_max";
  return std::nullopt;
}

}  // namespace gossipd
