#include "models/job/epochs.h"

#include <toml++/toml.h>
#include <algorithm>
#include <cmath>

#include "core/base/nesting.h"

namespace gossipd {

namespace {

constexpr const char* key = "epochs";

struct Found {
  double epochs = 0;     // 0: none
  std::size_t line = 0;  // from 0 on
};

Error bad(const std::string& origin, const std::string& why) {
  return Error{"bad-config", origin + ": epochs: " + why};
}

Result<Found> find(std::string_view text, const std::string& origin) {
  Found found;
  try {
    const toml::table root = toml::parse(text, origin);
    const toml::node* node = root.get(key);
    if (node == nullptr) return found;
    if (root.contains("budget_samples"))
      return bad(origin, "and budget_samples exclude each other; leave one of them out");
    const double epochs = node->value<double>().value_or(0);
    if (!node->is_number() || !(epochs > 0) || epochs > epochs_max)
      return bad(origin, "must be a number above 0 and at most 1000000");
    found.epochs = epochs;
    found.line = node->source().begin.line - 1;
  } catch (const toml::parse_error&) {
    return Found{};  // Job::parse() says it better
  }
  return found;
}

}  // namespace

Result<double> epochs_of(std::string_view text, const std::string& origin) {
  const auto found = find(text, origin);
  if (!found) return found.error();
  return found->epochs;
}

Result<std::string> with_budget(const std::string& text, Samples epoch_samples,
                                const std::string& origin) {
  const auto found = find(text, origin);
  if (!found) return found.error();
  if (found->epochs == 0) return text;
  const double wanted = std::round(found->epochs * static_cast<double>(epoch_samples));
  if (!(wanted >= 1) || wanted > static_cast<double>(job_budget_samples_max))
    return bad(origin, "make " + std::to_string(wanted) +
                           " samples; the budget must lie between 1 and 2^60");
  std::size_t begin = 0;
  for (std::size_t line = 0; line < found->line; ++line) begin = text.find('\n', begin) + 1;
  const std::size_t end = std::min(text.find('\n', begin), text.size());
  return text.substr(0, begin) +
         "budget_samples = " + std::to_string(static_cast<Samples>(wanted)) + text.substr(end);
}

}  // namespace gossipd
