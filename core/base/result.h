// core/base/result.h - errors from outside are values.
//
// Result<T> holds a T or an Error {code, text}. Our own mistakes are assertions instead:
// GOSSIPD_ASSERT stays on in release, because a wrong model is worse than a stopped daemon.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <variant>

namespace gossipd {

struct Error {
  std::string code;  // stable, lower-case words joined by '-'
  std::string text;  // what happened, why, and what to do about it
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Error error) : state_(std::move(error)) {}
  [[nodiscard]] explicit operator bool() const { return std::holds_alternative<T>(state_); }
  [[nodiscard]] T& value() { return std::get<T>(state_); }
  [[nodiscard]] const T& value() const { return std::get<T>(state_); }
  [[nodiscard]] const Error& error() const { return std::get<Error>(state_); }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Error> state_;
};

[[noreturn]] inline void assertion_failed(const char* what, const char* file, int line) {
  std::fprintf(stderr, "gossipd: assertion failed: %s (%s:%d)\n", what, file, line);
  std::abort();
}

}  // namespace gossipd

#define GOSSIPD_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : ::gossipd::assertion_failed(#condition, __FILE__, __LINE__))
