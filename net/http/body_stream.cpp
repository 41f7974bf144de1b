#include "net/http/body_stream.h"

#include <utility>

namespace gossipd {

bool HttpBodyStream::write(Piece piece) {
  if (!open_) return false;
  if (!piece || piece->empty()) return true;
  if (waiting_bytes_ + piece->size() > bytes_max_) {
    overflowed_ = true;
    break_off();
    return false;
  }
  waiting_bytes_ += piece->size();
  pieces_.push_back(std::move(piece));
  tell();
  return true;
}

void HttpBodyStream::close() {
  if (!std::exchange(open_, false)) return;
  tell();
}

void HttpBodyStream::break_off() {
  if (!open_ && pieces_.empty()) return;
  open_ = false;
  pieces_.clear();
  waiting_bytes_ = 0;
  tell();
}

void HttpBodyStream::pop() {
  if (pieces_.empty()) return;  // broken off meanwhile
  waiting_bytes_ -= pieces_.front()->size();
  pieces_.pop_front();
}

}  // namespace gossipd
