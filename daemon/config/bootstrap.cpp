#include "daemon/config/bootstrap.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "core/base/printable.h"

namespace gossipd {

namespace {

using Variables = std::map<std::string, std::string>;
using Ordinal = std::optional<std::uint32_t>;

constexpr const char* kubernetes_index = "JOB_COMPLETION_INDEX";
constexpr const char* array_task = "SLURM_ARRAY_TASK_ID";
constexpr const char* array_first = "SLURM_ARRAY_TASK_MIN";
constexpr const char* step_process = "SLURM_PROCID";
constexpr const char* step_size = "SLURM_STEP_NUM_TASKS";

Ordinal number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

Error bad(std::string text) { return Error{"bad-config", "bootstrap: " + std::move(text)}; }

std::string value_of(const Variables& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

Result<Ordinal> from_variable(const Variables& environment, const char* name) {
  const std::string value = value_of(environment, name);
  if (const Ordinal ordinal = number(value)) return ordinal;
  return bad(std::string(name) + " is '" + printable(value) + "', no number; give --bootstrap N");
}

// Tasks of an array count from any number; a step of several processes in each is two numbers.
Result<Ordinal> from_array(const Variables& environment) {
  const Result<Ordinal> task = from_variable(environment, array_task);
  if (!task) return task;
  if (number(value_of(environment, step_size)).value_or(1) > 1)
    return bad(
        "this is a Slurm array whose tasks have several processes, so neither number alone is this "
        "node's; give --bootstrap N, 0 for exactly one of all");
  const std::uint32_t first = number(value_of(environment, array_first)).value_or(0);
  return Ordinal(**task - std::min(first, **task));
}

Result<Ordinal> from_host(const std::string& host) {
  const std::string name = host.substr(0, host.find('.'));
  const std::size_t dash = name.rfind('-');
  if (const Ordinal ordinal = dash == std::string::npos
                                  ? std::nullopt
                                  : number(std::string_view(name).substr(dash + 1)))
    return ordinal;
  return bad("auto finds no number: neither Slurm nor a Kubernetes Job tells one, and the host's " +
             std::string("name, '") + printable(name) +
             "', does not end in -N; give --bootstrap N, 0 for exactly one node");
}

}  // namespace

bool tells_ordinal(const std::string& variable) {
  constexpr std::array all = {kubernetes_index, array_task, array_first, step_process, step_size};
  return std::ranges::find(all, variable) != all.end();
}

Result<Ordinal> read_ordinal(const std::string& bootstrap, const Variables& environment,
                             const std::string& host) {
  if (bootstrap.empty()) return Ordinal();
  if (bootstrap != "auto") {
    if (const Ordinal ordinal = number(bootstrap)) return ordinal;
    return bad("'" + printable(bootstrap) +
               "' is neither auto nor the number of this node, from 0 on");
  }
  if (environment.contains(kubernetes_index)) return from_variable(environment, kubernetes_index);
  if (environment.contains(array_task)) return from_array(environment);
  if (environment.contains(step_process)) return from_variable(environment, step_process);
  return from_host(host);
}

}  // namespace gossipd
