// net/http/body_stream.h - a body without an end: what a handler writes while its client listens.
//
// The handler puts it into its HttpResponse and keeps writing; the server sends piece by piece.
// Both hold it, since either may end first. A client that reads slower than pieces come is dropped:
// a piece that would exceed waiting_bytes_max breaks the stream off. Loop thread only.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>

namespace gossipd {

class HttpBodyStream {
 public:
  // Shared, so that a thousand clients of one text need no thousand copies.
  using Piece = std::shared_ptr<const std::string>;
  static constexpr std::size_t waiting_bytes_max = 4u << 20;

  // `keep_alive` is sent whenever nothing else was for a while; the client must ignore it.
  explicit HttpBodyStream(std::string keep_alive, std::size_t bytes_max = waiting_bytes_max)
      : keep_alive_(std::make_shared<const std::string>(std::move(keep_alive))),
        bytes_max_(bytes_max) {}

  // ---- the handler's side ----
  // False: the stream is closed, and nothing was taken. Empty pieces are ignored.
  bool write(Piece piece);
  // What waits is still sent.
  void close();
  [[nodiscard]] bool is_open() const { return open_; }
  // Everything written so far has been sent.
  [[nodiscard]] bool is_idle() const { return pieces_.empty(); }
  [[nodiscard]] std::size_t waiting_bytes() const { return waiting_bytes_; }
  [[nodiscard]] std::size_t bytes_max() const { return bytes_max_; }

  // ---- the server's side ----
  // What waits is lost.
  void break_off();
  // Its client was too slow.
  [[nodiscard]] bool overflowed() const { return overflowed_; }
  // Null: nothing waits. It counts as waiting until pop().
  [[nodiscard]] Piece front() const { return pieces_.empty() ? nullptr : pieces_.front(); }
  void pop();
  [[nodiscard]] const Piece& keep_alive() const { return keep_alive_; }
  // Called after each change by the handler.
  void on_change(std::function<void()> changed) { changed_ = std::move(changed); }

 private:
  void tell() const {
    if (changed_) changed_();
  }

  Piece keep_alive_;
  std::size_t bytes_max_;
  std::deque<Piece> pieces_;
  std::size_t waiting_bytes_ = 0;  // of pieces_
  bool open_ = true;
  bool overflowed_ = false;
  std::function<void()> changed_;
};

}  // namespace gossipd
