#include "tools/gossipctl/progress.h"

#include "core/base/printable.h"

namespace gossipd {

std::string percentage(double share, int digits) { return fixed(share * 100, digits) + " %"; }

std::string progress_line(const Json& status) {
  const std::string phase = text(status, "phase");
  std::string line = percentage(number(status, "progress").value_or(0), 1);
  if (phase != "training") line += ", " + phase;
  if (const std::string what = text(status, "waiting_for"); !what.empty())
    line += ", waiting for " + what;
  const auto left = number(status, "time_left_s");
  if (left && phase == "training") line += ", " + human_seconds(*left) + " left";
  line += ", step " + grouped(count(status, "step"));
  if (const auto loss = number(status, "loss"); loss && count(status, "step") > 0)
    line += ", loss " + fixed(*loss, 3);
  if (const auto accuracy = number(status, "accuracy"))
    line += ", accuracy " + percentage(*accuracy, 2);
  if (const auto speed = number(status, "samples_per_second"); speed && phase == "training")
    line += ", " + grouped(static_cast<std::uint64_t>(*speed)) + " samples/s here";
  line += ", " + members_alive(status) + ", sent " +
          human_bytes(static_cast<double>(count(status, "bytes_sent_total")));
  return printable(line);
}

std::string members_alive(const Json& status) {
  const std::uint64_t members = count(status, "members_alive");
  return grouped(members) + (members == 1 ? " member" : " members") + " alive";
}

}  // namespace gossipd
