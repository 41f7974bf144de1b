// Any text as a line from users and peers: endpoints, ids, codecs, settings of every kind. It is
// refused with a message, or accepted and written back unchanged. The first byte chooses the kind.
#include <cmath>
#include <string>

#include "core/base/result.h"
#include "core/base/settings.h"
#include "core/codec/codec.h"

using namespace gossipd;

namespace {

void check_endpoint(const std::string& text) {
  Endpoint endpoint, again;
  if (!parse_endpoint(text, 7610, endpoint)) return;
  GOSSIPD_ASSERT(!endpoint.host.empty());
  GOSSIPD_ASSERT(parse_endpoint(to_string(endpoint), 1, again) && again == endpoint);
}

void check_ids(const std::string& text) {
  std::uint64_t id = 0, again = 0;
  if (from_hex(text, id))
    GOSSIPD_ASSERT(text.size() <= 16 && from_hex(to_hex(id), again) && again == id);
  JobFile file, same;
  if (from_hex(text, file))
    GOSSIPD_ASSERT(text.size() == 32 && from_hex(to_hex(file), same) && same == file);
}

void check_codec(const std::string& text) {
  const auto codec = parse_codec(text);
  if (codec) GOSSIPD_ASSERT(is_valid(*codec) && parse_codec(to_text(*codec)) == codec);
}

struct Values {
  std::string text, path, choice = "a";
  bool flag = false;
  double number = 1;
  Duration time = std::chrono::seconds(1);
  std::uint32_t count = 3;
  std::optional<Endpoint> endpoint;
};

void check_setting(std::size_t which, const std::string& text) {
  static Values values;
  static const std::vector<Setting> settings = [] {
    std::vector<Setting> made;
    SettingTable table(made);
    table.text("a.text", "", "TEXT", values.text, "a text");
    table.path("a.path", "", "FILE", values.path, "a file");
    table.choice("a.choice", "", values.choice, {"a", "b", "long-one"}, "one of them");
    table.boolean("a.flag", "", values.flag, "yes or no");
    table.number("a.number", "", "", values.number, -1e3, 1e6, "a number");
    table.milliseconds("a.time", values.time, 1, setting_day_ms, "a time");
    table.integer("a.count", "", "", values.count, 1, 1'000'000, "a count");
    table.endpoint("a.endpoint", "", 7610, values.endpoint, "a place");
    return made;
  }();
  const Setting& setting = settings[which % settings.size()];
  const std::string before = setting.get();
  if (const SettingRefused why = setting.set(text)) {
    GOSSIPD_ASSERT(!why->empty() && setting.get() == before);
    return;
  }
  const std::string taken = setting.get();
  GOSSIPD_ASSERT(values.number >= -1e3 && values.number <= 1e6 && values.count >= 1 &&
                 values.count <= 1'000'000);
  GOSSIPD_ASSERT(values.time >= std::chrono::milliseconds(1) &&
                 seconds(values.time) <= setting_day_ms / 1e3);
  if (!taken.empty()) GOSSIPD_ASSERT(!setting.set(taken) && setting.get() == taken);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: check_endpoint(text); break;
    case 1: check_ids(text); break;
    case 2: check_codec(text); break;
    default: check_setting(data[0] / 4, text); break;
  }
  return 0;
}
