#include "core/balance/settings.h"

namespace gossipd {

std::vector<Setting> balance_settings(BalancePolicy& b) {
  std::vector<Setting> settings;
  SettingTable table(settings);
  table.boolean(
      "balance.enabled", "balance", b.enabled,
      "size the minibatch by speed, so that steps take equally long everywhere (DBS-SGD)");
  table.integer("balance.batch_min", "", "samples", b.batch_min, 1, 1'000'000,
                "the smallest minibatch");
  table.integer("balance.batch_max", "", "samples", b.batch_max, 1, 1'000'000,
                "the largest minibatch");
  table.one_of("balance.weight", "", b.weight, {"none", "batch", "rate"},
               "what grows with the batch: nothing (none), the weight in mixing (batch) or the "
               "learning rate (rate)");
  return settings;
}

std::optional<std::string> balance_mistake(const BalancePolicy& b) {
  if (b.batch_min > b.batch_max)
    return "balance.batch_min (" + std::to_string(b.batch_min) +
           ") is more than balance.batch_max (" + std::to_string(b.batch_max) +
           "); raise batch_max";
  return std::nullopt;
}

}  // namespace gossipd
