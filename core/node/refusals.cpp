#include "core/node/refusals.h"

#include <algorithm>
#include <map>
#include <utility>

namespace gossipd {

void RefusalLog::note(bool by_us, std::string peer, Error reason, Instant now) {
  Refusal entry{now, by_us, std::move(peer), std::move(reason), 1};
  const auto same = std::ranges::find_if(entries_, [&entry](const Refusal& other) {
    return other.by_us == entry.by_us && other.peer == entry.peer &&
           other.reason.code == entry.reason.code;
  });
  if (same != entries_.end()) {
    entry.count += same->count;
    entries_.erase(same);
  } else if (entries_.size() >= refusals_max) {
    make_room();
  }
  entries_.push_back(std::move(entry));
}

void RefusalLog::make_room() {
  std::map<std::pair<bool, std::string>, std::size_t> kinds;
  for (const Refusal& entry : entries_) ++kinds[{entry.by_us, entry.reason.code}];
  const auto crowd = [&kinds](const Refusal& entry) {
    return kinds.at({entry.by_us, entry.reason.code});
  };
  entries_.erase(
      std::ranges::max_element(entries_, {}, crowd));  // the first, thus the oldest, of the largest
}

}  // namespace gossipd
