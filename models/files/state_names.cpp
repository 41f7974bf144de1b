#include "models/files/state_names.h"

#include <set>

namespace gossipd {

namespace {

// What the name would be the optimiser's state of; empty: it has no prefix.
std::string_view subject_of(std::string_view name) {
  for (const std::string_view prefix : {momentum_prefix, variance_prefix})
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  return {};
}

}  // namespace

// momentum.variance.w is the state of variance.w, unless that is itself the state of w.
bool is_optimizer_state(std::string_view name, const std::function<bool(std::string_view)>& has) {
  bool is_state = false;
  for (name = subject_of(name); !name.empty() && has(name); name = subject_of(name))
    is_state = !is_state;
  return is_state;
}

std::optional<std::string> ambiguous_name(const std::vector<Segment>& segments) {
  std::set<std::string_view> names;
  for (const Segment& segment : segments) names.insert(segment.name);
  for (const std::string_view name : names)
    if (const std::string_view subject = subject_of(name); names.contains(subject))
      return "'" + std::string(name) + "' is what checkpoints call the optimiser's state of '" +
             std::string(subject) + "', which the model has as well; rename the module";
  return std::nullopt;
}

}  // namespace gossipd
