// net/peer/secret_file.h - small files that hold secrets: their owner's alone, written whole or not at all.
#pragma once

#include <optional>
#include <string>

#include "core/base/result.h"

namespace gossipd {

inline constexpr std::size_t secret_file_bytes_max = 4096;

// What to do with a key file that its group or everybody may read.
enum class SharedKeyFile { refuse, allow };

// Wipes what it holds.
class SecretText {
 public:
  SecretText() = default;
  explicit SecretText(std::string text) : text_(std::move(text)) {}
  SecretText(SecretText&&) noexcept = default;
  SecretText& operator=(SecretText&&) noexcept = default;
  SecretText(const SecretText&) = delete;
  SecretText& operator=(const SecretText&) = delete;
  ~SecretText();
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Errors: "key-missing", "key-permissions" (its text names the chmod), "key-read", "key-format" (too long).
[[nodiscard]] Result<SecretText> read_secret_file(const std::string& path, SharedKeyFile shared);

enum class Replace { no, yes };
// With mode 0600, whole and durable or not at all. Errors "key-exists" (unless it may be replaced), "key-write".
[[nodiscard]] std::optional<Error> write_secret_file(const std::string& path, const SecretText& text, Replace replace);

}  // namespace gossipd
