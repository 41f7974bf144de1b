// Any text as JSON and TOML whose nesting is checked before parsing: for well-formed JSON the
// parser finds the same nesting.
#include <nlohmann/json.hpp>

#include "core/base/nesting.h"
#include "core/base/result.h"

using namespace gossipd;
using nlohmann::json;

namespace {

// Builds nothing.
class Levels : public json::json_sax_t {
 public:
  std::size_t most = 0;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(json::number_integer_t) override { return true; }
  bool number_unsigned(json::number_unsigned_t) override { return true; }
  bool number_float(json::number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool key(std::string&) override { return true; }
  bool start_object(std::size_t) override { return begin(); }
  bool start_array(std::size_t) override { return begin(); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override {
    return false;
  }

 private:
  bool begin() {
    most = std::max(most, ++now_);
    return true;
  }
  bool end() {
    --now_;
    return true;
  }
  std::size_t now_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t levels = 1 + data[0] % 20;
  Levels found;
  const bool well_formed = json::sax_parse(text, &found);
  const bool deeper = json_nests_deeper(text, levels);
  // the parser takes it for the end
  const bool parser_saw_all = text.find('\0') == std::string_view::npos;
  if (well_formed && parser_saw_all)
    GOSSIPD_ASSERT(deeper == (found.most > levels));
  else if (!deeper)
    GOSSIPD_ASSERT(found.most <= levels);
  (void)toml_key_is_longer(text, levels);
  return 0;
}
