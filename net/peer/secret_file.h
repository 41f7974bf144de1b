// net/peer/secret_file.h - small files of secrets: readable only by their owner, written whole or
// not at all.
#pragma once

#include <optional>
#include <string>

#include "core/base/result.h"

namespace gossipd {

inline constexpr std::size_t secret_file_bytes_max = 64 * 1024;  // a PEM file may hold a chain

// What a file holds, for the text of an error.
struct SecretKind {
  const char* name = "key file";
  const char* power = "controls the cluster";  // what its holder can do
  const char* from = "copy it from a node of the cluster (its first node wrote it)";
};
inline constexpr SecretKind token_file{"token file", "steers this node",
                                       "make one with: (umask 077; openssl rand -hex 32 > FILE)"};

// What to do with a key file that others may read.
enum class SharedKeyFile { refuse, allow };

// Wipes its content when destroyed.
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

// Errors: "key-missing", "key-permissions" (its text names the chmod), "key-read" (this user may
// not, or it is no file), "io-error" (may pass), "key-format" (too long).
[[nodiscard]] Result<SecretText> read_secret_file(const std::string& path, SharedKeyFile shared,
                                                  const SecretKind& kind = {});

// Error "io-error" where nothing can be read of a file at the moment, since its disk fails or no
// descriptor is left; nothing for one that is missing or not this user's.
[[nodiscard]] std::optional<Error> why_not_readable_now(const std::string& path);

// Where write_secret_file() keeps the replaced file.
[[nodiscard]] std::string previous_secret(const std::string& path);

enum class Replace { no, yes };
// Writes with mode 0600, whole and durable or not at all. Keeps different earlier content as
// PATH.previous, where possible. Errors "key-exists" (unless it may be replaced), "key-write"
// (nothing can be written there), "no-space", "io-error" (may pass).
[[nodiscard]] std::optional<Error> write_secret_file(const std::string& path,
                                                     const SecretText& text, Replace replace);

}  // namespace gossipd
