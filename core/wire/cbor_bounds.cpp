#include "core/wire/cbor_bounds.h"

#include <array>
#include <cstdint>

#include "core/base/result.h"

namespace gossipd {
namespace {

enum class Major : std::uint8_t {
  unsigned_integer,
  negative_integer,
  bytes,
  text,
  array,
  map,
  tag,
  simple
};

constexpr std::uint8_t argument_follows = 24;  // in 1, 2, 4 or 8 bytes
constexpr std::uint8_t argument_last = 27;
constexpr std::uint8_t length_unknown = 31;
constexpr std::uint8_t simple_false = 20, simple_null = 22, half_float = 25;

struct Head {
  Major major{};
  std::uint8_t detail = 0;
  std::uint64_t argument = 0;
};

class Walk {
 public:
  Walk(const CborBounds& bounds, std::span<const std::byte> in) : bounds_(bounds), in_(in) {
    GOSSIPD_ASSERT(bounds.depth_max <= cbor_depth_max);
  }

  std::optional<std::string> run() {
    do {
      if (auto wrong = item()) return wrong;
    } while (depth_ > 0);
    if (!in_.empty()) return "bytes behind its end";
    return std::nullopt;
  }

 private:
  struct Level {
    std::uint64_t left = 0;  // items
    bool keys = false;       // every other item, from the first on, is a key
  };

  std::optional<std::string> head(Head& out) {
    if (in_.empty()) return "no end";
    const auto first = std::to_integer<std::uint8_t>(in_[0]);
    in_ = in_.subspan(1);
    out.major = static_cast<Major>(first >> 5);
    out.detail = first & 0x1f;
    out.argument = out.detail;
    if (out.detail == length_unknown) return "an item of unknown length";
    if (out.detail > argument_last) return "an item that is no CBOR";
    if (out.detail < argument_follows) return std::nullopt;
    const std::size_t bytes = std::size_t{1} << (out.detail - argument_follows);
    if (bytes > in_.size()) return "no end";
    out.argument = 0;
    for (std::size_t i = 0; i < bytes; ++i)
      out.argument = out.argument << 8 | std::to_integer<std::uint64_t>(in_[i]);
    in_ = in_.subspan(bytes);
    return std::nullopt;
  }

  std::optional<std::string> item() {
    Head head;
    if (auto wrong = this->head(head)) return wrong;
    if (++items_ > bounds_.items_max)
      return "more than " + std::to_string(bounds_.items_max) + " items";
    const bool is_key = depth_ > 0 && top().keys && top().left % 2 == 0;
    if (is_key && head.major != Major::text) return "a key that is no text";
    if (depth_ > 0) --top().left;
    if (auto wrong = content(head)) return wrong;
    while (depth_ > 0 && top().left == 0) --depth_;
    return std::nullopt;
  }

  std::optional<std::string> content(const Head& head) {
    switch (head.major) {
      case Major::unsigned_integer:
      case Major::negative_integer: return std::nullopt;
      case Major::text: return text(head.argument);
      case Major::array:
      case Major::map: return nest(head);
      case Major::bytes: return "a string of bytes";
      case Major::tag: return "a tag";
      case Major::simple: break;
    }
    const bool known = head.detail >= simple_false && head.detail <= argument_last &&
                       (head.detail <= simple_null || head.detail >= half_float);
    if (!known) return "a value that is neither a number, true, false nor null";
    return std::nullopt;
  }

  std::optional<std::string> text(std::uint64_t bytes) {
    if (bytes > bounds_.text_bytes_max)
      return "a text of more than " + std::to_string(bounds_.text_bytes_max) + " bytes";
    if (bytes > in_.size()) return "no end";
    in_ = in_.subspan(bytes);
    return std::nullopt;
  }

  std::optional<std::string> nest(const Head& head) {
    if (depth_ == bounds_.depth_max)
      return "more than " + std::to_string(bounds_.depth_max) + " levels";
    // Every item is a byte at least, so a count beyond what is left is a lie.
    if (head.argument > in_.size()) return "no end";
    const bool keys = head.major == Major::map;
    levels_[depth_++] = Level{keys ? 2 * head.argument : head.argument, keys};
    return std::nullopt;
  }

  Level& top() { return levels_[depth_ - 1]; }

  const CborBounds& bounds_;
  std::span<const std::byte> in_;
  std::array<Level, cbor_depth_max> levels_{};  // of those that are open, the outermost first
  std::size_t depth_ = 0;
  std::size_t items_ = 0;
};

}  // namespace

std::optional<std::string> beyond(const CborBounds& bounds, std::span<const std::byte> message) {
  return Walk(bounds, message).run();
}

}  // namespace gossipd
