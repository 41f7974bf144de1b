// daemon/rest/member_history.h - how every member's training went, as gossip told it here.
//
// One clock for all members: a column every few seconds. When the columns are full every second one
// goes and the interval doubles. A large cluster shows its first members_max. Loop thread only.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "core/node.h"

namespace gossipd {

class MemberHistory {
 public:
  static constexpr std::size_t columns_max = 256;
  static constexpr std::size_t members_max = 64;

  explicit MemberHistory(double interval_s = 2.0) : interval_s_(interval_s) {}

  // Is the next column due?
  [[nodiscard]] bool due(double time_s) const;
  // Adds a column. Members that are not alive have none.
  void add(double time_s, const std::vector<MemberView>& members);
  // {"interval_s": …, "time_s": […], "members": [{"id", "name", "loss": […], …}]}; null where a
  // member said nothing.
  [[nodiscard]] std::string json() const;

 private:
  enum Figure : std::size_t { loss, consensus_distance, samples_per_second, batch, figures };
  using Column = std::array<float, figures>;  // NaN: not known
  struct Row {
    std::string name;
    std::vector<Column> columns;  // as many as times_
  };

  void thin_out();
  void make_room();

  double interval_s_;
  std::vector<double> times_;
  std::map<NodeId, Row> rows_;
};

}  // namespace gossipd
