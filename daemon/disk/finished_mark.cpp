#include "daemon/disk/finished_mark.h"

#include <nlohmann/json.hpp>

#include "core/base/nesting.h"
#include "daemon/disk/durable_file.h"

namespace gossipd {

namespace {

using Json = nlohmann::json;

constexpr std::size_t mark_bytes_max = 4096;

std::filesystem::path path_in(const std::filesystem::path& state_dir) {
  return state_dir / "finished.json";
}

}  // namespace

std::optional<Error> write_finished_mark(const std::filesystem::path& state_dir,
                                         const FinishedMark& mark) {
  const Json json = {{"job", to_hex(mark.job)}, {"budget_samples", mark.budget_samples}};
  return write_durably(path_in(state_dir), json.dump() + "\n");
}

std::optional<FinishedMark> read_finished_mark(const std::filesystem::path& state_dir) {
  const Result<std::string> text = read_whole(path_in(state_dir), mark_bytes_max);
  if (!text || json_nests_deeper(*text)) return std::nullopt;
  const Json json = Json::parse(*text, nullptr, false);
  std::uint64_t job = 0;
  if (!json.is_object() || !json.contains("job") || !json["job"].is_string() ||
      !from_hex(json["job"].get<std::string>(), job) || !json.contains("budget_samples") ||
      !json["budget_samples"].is_number_unsigned())
    return std::nullopt;
  return FinishedMark{JobHash{job}, json["budget_samples"].get<Samples>()};
}

}  // namespace gossipd
