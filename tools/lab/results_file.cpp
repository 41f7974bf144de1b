#include "tools/lab/results_file.h"

#include <charconv>
#include <filesystem>
#include <fstream>

namespace gossipd::lab {

namespace {

std::optional<Error> why_no_results_file(const std::string& path) {
  std::error_code unknown;
  if (!std::filesystem::is_directory(path, unknown)) return std::nullopt;
  return Error{"bad-result", path + ": is a directory; name a file in it"};
}

}  // namespace

Result<std::vector<RunResult>> read_results(const std::string& path, bool may_be_missing) {
  if (auto error = why_no_results_file(path)) return *error;
  std::vector<RunResult> results;
  std::ifstream file(path);
  if (!file) {
    if (may_be_missing && !std::filesystem::exists(path)) return results;
    return Error{"bad-result",
                 path + ": cannot be read; gossip-lab run SCENARIO --json " + path + " writes it"};
  }
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    const nlohmann::json parsed = nlohmann::json::parse(line, nullptr, false);
    if (parsed.is_discarded() && file.eof()) break;  // a truncated run
    Result<RunResult> result =
        parsed.is_discarded()
            ? Result<RunResult>(Error{"bad-result", "is no JSON; remove the line"})
            : result_from_json(parsed);
    if (!result)
      return Error{"bad-result", path + ":" + std::to_string(number) + ": " + result.error().text};
    results.push_back(std::move(*result));
  }
  return results;
}

// Ends the file's last line, or removes it where an interrupted run left only a part.
static void mend_last_line(const std::string& path) {
  std::ifstream file(path, std::ios::ate | std::ios::binary);
  if (!file || file.tellg() == 0) return;
  file.seekg(-1, std::ios::end);
  if (file.get() == '\n') return;
  file.seekg(0);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::size_t last = text.rfind('\n') + 1;  // 0: there is no line end
  std::error_code failed;
  if (nlohmann::json::accept(text.begin() + static_cast<std::ptrdiff_t>(last), text.end()))
    std::ofstream(path, std::ios::app) << "\n";
  else
    std::filesystem::resize_file(path, last, failed);
}

std::optional<Error> append_result(const std::string& path, const RunResult& result) {
  if (auto error = why_no_results_file(path)) return error;
  mend_last_line(path);
  std::ofstream file(path, std::ios::app);
  file << to_json(result).dump() << "\n" << std::flush;
  if (!file)
    return Error{"write-failed",
                 path + ": cannot be written; is the disk full, or the directory missing?"};
  return std::nullopt;
}

Result<std::vector<std::uint64_t>> parse_seeds(const std::string& text) {
  const auto bad = [&] {
    return Error{
        "bad-config",
        "--seeds: '" + text + "' is no list of seeds; write 1..10 or 1,4,7, at most 1000 of them"};
  };
  std::vector<std::uint64_t> seeds;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t comma = std::min(text.find(',', start), text.size());
    const std::string_view part = std::string_view(text).substr(start, comma - start);
    const std::size_t dots = part.find("..");
    std::uint64_t first = 0, last = 0;
    const auto read = [](std::string_view digits, std::uint64_t& out) {
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
      return error == std::errc{} && end == digits.data() + digits.size() && !digits.empty() &&
             out < (1ull << 62);
    };
    if (!read(part.substr(0, dots), first)) return bad();
    last = first;
    if (dots != std::string_view::npos && !read(part.substr(dots + 2), last)) return bad();
    if (last < first || last - first >= 1000 || seeds.size() + (last - first + 1) > 1000)
      return bad();
    for (std::uint64_t seed = first; seed <= last; ++seed) seeds.push_back(seed);
    start = comma + 1;
  }
  return seeds;
}

}  // namespace gossipd::lab
