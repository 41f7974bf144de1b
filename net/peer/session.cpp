#include "net/peer/session.h"

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstring>
#include <string_view>
#include <utility>

namespace gossipd {

namespace asio = boost::asio;

namespace {

// Both ends send this as soon as they can: seven letters and the version of the framing.
constexpr std::string_view preamble{"gossipd\x01", 8};
constexpr std::size_t read_bytes_max = 64 * 1024;
constexpr std::size_t batch_bytes_max = 64 * 1024;
constexpr std::size_t chunk_bytes_min = 4 * 1024;  // less is not worth a frame
constexpr std::size_t linger_bytes_max = 64 * 1024;

std::string printable(std::span<const std::byte> text) {
  std::string out(reinterpret_cast<const char*>(text.data()), text.size());
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return out;
}

Error cut_error(const error_code& error) {
  const bool ended = error == asio::error::eof || error == asio::ssl::error::stream_truncated;
  return Error{"cut", "the connection was lost: " +
                          (ended ? std::string("it ended without a goodbye") : error.message())};
}

}  // namespace

TransportShared::TransportShared(asio::io_context& io_in, PeerHandler& handler_in,
                                 std::shared_ptr<TlsContext> tls_in, const PeerLimits& limits_in)
    : io(io_in), handler(&handler_in), limits(limits_in), tls(std::move(tls_in)), tasks(io_in) {}

Session::Session(SessionId id, std::shared_ptr<TransportShared> shared, tcp::socket socket,
                 SessionInfo info)
    : id_(id),
      shared_(std::move(shared)),
      info_(std::move(info)),
      stream_(std::move(socket), shared_->tls, shared_->counters.total.wire),
      deadline_(shared_->io, [this] { on_deadline(); }),
      wake_writer_(shared_->io, asio::steady_timer::time_point::max()) {}

asio::awaitable<std::optional<Error>> Session::establish(std::uint64_t offer) {
  const auto self = shared_from_this();  // keeps the session for this coroutine's life
  deadline_.arm_after(shared_->limits.handshake_timeout);
  auto error = co_await stream_.handshake(info_.outbound, offer);
  if (!error) error = co_await exchange_preamble();
  // A peer verified against certificates that have been replaced since may fail the new ones.
  if (!error && !stream_.began_under(shared_->tls))
    error = Error{"certificate",
                  "this node's certificates were replaced during the handshake; connect again"};
  // A peer may wait between its proof and its first words for as long as the handshake may take.
  if (!error && shared_->tls && !shared_->tls->accepts(key())) error = key_retired();
  deadline_.cancel();
  if (reason_) co_return reason_;  // aborted in the meantime
  co_return error;
}

Error Session::key_retired() const {
  return Error{"key-retired", "the key " + to_hex(key()) +
                                  " was retired; connect again with another key of the cluster"};
}

asio::awaitable<std::optional<Error>> Session::exchange_preamble() {
  error_code error = co_await stream_.write_all(std::as_bytes(std::span(preamble)));
  std::array<std::byte, preamble.size()> theirs{};
  if (!error) error = co_await stream_.read_all(theirs);
  if (auto unexpected = stream_.unexpected_peer()) co_return unexpected;
  if (auto refused = stream_.tls_refusal(error, info_.outbound)) co_return refused;
  if (error)
    co_return Error{"handshake-cut",
                    "the connection ended before the peer said anything: " + error.message()};
  if (std::memcmp(theirs.data(), preamble.data(), preamble.size() - 1) != 0) {
    co_return Error{
        "not-a-peer",
        "the other end belongs to the cluster but does not speak gossipd's peer protocol"};
  }
  if (theirs.back() != static_cast<std::byte>(preamble.back())) {
    co_return Error{"frame-version", "the peer speaks framing version " +
                                         std::to_string(std::to_integer<int>(theirs.back())) +
                                         ", this node version 1; run the same gossipd on both"};
  }
  co_return std::nullopt;
}

// Closing while unread bytes wait would reset the connection, and the peer might lose our alert.
asio::awaitable<void> Session::linger() {
  const auto self = shared_from_this();
  if (state_ == State::closed) co_return;
  state_ = State::closing;
  deadline_.arm_after(shared_->limits.close_timeout);
  stream_.shutdown_send();
  co_await stream_.drain(linger_bytes_max);
  deadline_.cancel();
  state_ = State::closed;
  stream_.close();
}

void Session::open() {
  GOSSIPD_ASSERT(state_ == State::establishing);
  state_ = State::open;
  parts_ = 2;
  ++shared_->counters.sessions_opened;
  shared_->tasks.spawn(read_loop(shared_from_this()));
  shared_->tasks.spawn(write_loop(shared_from_this()));
  if (shared_->handler != nullptr) shared_->handler->on_session_open(id_, info_);
}

SessionCounters Session::counters() const {
  SessionCounters counters = counters_;
  counters.wire = stream_.tap().session;
  return counters;
}

void Session::send(Lane lane, SharedBytes message) {
  GOSSIPD_ASSERT(state_ == State::open);
  const PeerLimits& limits = shared_->limits;
  GOSSIPD_ASSERT(message && !message->empty());
  GOSSIPD_ASSERT(message->size() <= (lane == Lane::control ? limits.frame.control_bytes_max
                                                           : limits.frame.bulk_bytes_max));
  if (lane == Lane::control) {
    if (control_.size() >= limits.control_queue_max) {
      return abort(Error{"control-queue-full", "the peer does not take its messages: " +
                                                   std::to_string(control_.size()) + " wait"});
    }
    control_.push_back(std::move(message));
  } else {
    if (bulk_queued_bytes_ + message->size() > limits.bulk_queue_bytes_max) {
      return abort(Error{"bulk-queue-full", "more bulk data was queued than " +
                                                std::to_string(limits.bulk_queue_bytes_max) +
                                                " bytes"});
    }
    bulk_queued_bytes_ += message->size();
    bulk_.push_back(std::move(message));
  }
  wake_writer_.cancel();
}

void Session::close(const Error& reason) {
  if (state_ != State::open) return;
  state_ = State::closing;
  reason_ = reason;
  // A bulk message half sent stays half sent: the goodbye tells the peer to drop it.
  bulk_.clear();
  bulk_queued_bytes_ = 0;
  deadline_.arm_after(shared_->limits.close_timeout);
  wake_writer_.cancel();
}

void Session::abort(const Error& reason) {
  if (state_ == State::closed) return;
  state_ = State::closed;
  if (!reason_) reason_ = reason;
  deadline_.cancel();
  stream_.close();
  wake_writer_.cancel();
}

void Session::on_deadline() {
  switch (state_) {
    case State::establishing:
      return abort(Error{"handshake-timeout", "the peer did not finish the handshake in time"});
    case State::open:
      return abort(
          broken_.value_or(Error{"write-stalled", "the peer did not take any bytes for too long"}));
    case State::closing: return abort(Error{"cut", "the close took too long"});
    case State::closed: return;
  }
}

asio::awaitable<void> Session::read_loop([[maybe_unused]] std::shared_ptr<Session> self) {
  FrameDecoder decoder(shared_->limits.frame);
  Bytes buffer(read_bytes_max);
  while (state_ != State::closed) {
    const auto [error, count] = co_await stream_.read_some(buffer);
    if (error) {
      abort(broken_.value_or(cut_error(error)));
    } else if (state_ == State::open && shared_->handler != nullptr) {
      shared_->handler->on_bytes(id_);
      decoder.feed(std::span<const std::byte>(buffer).first(count));
      deliver(decoder);
    }
  }
  part_ended();
}

void Session::deliver(FrameDecoder& decoder) {
  while (state_ == State::open && shared_->handler != nullptr) {
    const auto message = decoder.next();
    if (!message) break;
    if (message->kind == FrameKind::goodbye) {
      return abort(
          Error{"closed-by-peer", "the peer closed the session: " + printable(message->payload)});
    }
    const Lane lane = message->kind == FrameKind::control ? Lane::control : Lane::bulk;
    ++(lane == Lane::control ? counters_.control_in : counters_.bulk_in);
    ++(lane == Lane::control ? shared_->counters.total.control_in
                             : shared_->counters.total.bulk_in);
    shared_->handler->on_message(id_, lane, message->payload);
  }
  if (decoder.error()) close(Error{to_code(*decoder.error()), to_text(*decoder.error())});
}

asio::awaitable<void> Session::write_loop([[maybe_unused]] std::shared_ptr<Session> self) {
  while (state_ != State::closed) {
    check_invariants();
    if (!fill_batch()) {
      if (state_ == State::closing) break;
      (void)co_await wake_writer_.async_wait(asio::as_tuple(asio::use_awaitable));
      continue;
    }
    if (state_ == State::open) deadline_.arm_after(shared_->limits.write_stall_timeout);
    const error_code error = co_await stream_.write_all(batch_);
    if (state_ == State::open) deadline_.cancel();
    if (error) {
      broken_ = cut_error(error);
      break;
    }
    after_write();
  }
  // The peer may have said why it goes before it went: the reader finds that, or the end.
  if (broken_ && state_ == State::open) deadline_.arm_after(shared_->limits.close_timeout);
  if (state_ == State::closing) stream_.shutdown_send();  // the reader now waits for the peer
  part_ended();
}

// Takes all control frames that fit, then bulk. False if there is nothing to write.
bool Session::fill_batch() {
  batch_.clear();
  batch_bulk_bytes_ = 0;
  append_control();
  if (state_ == State::open) append_bulk_chunk();
  if (state_ == State::closing && control_.empty() && !goodbye_written_) append_goodbye();
  return !batch_.empty();
}

void Session::append_control() {
  while (!control_.empty()) {
    const Bytes& message = *control_.front();
    if (!batch_.empty() && batch_.size() + frame_header_bytes + message.size() > batch_bytes_max)
      return;
    const auto length = static_cast<std::uint32_t>(message.size());
    append_frame(
        FrameHeader{.kind = FrameKind::control, .first = true, .length = length, .total = length},
        message, batch_);
    control_.pop_front();
    ++counters_.control_out;
    ++shared_->counters.total.control_out;
  }
}

void Session::append_bulk_chunk() {
  if (bulk_.empty() || !control_.empty()) return;
  if (batch_.size() + frame_header_bytes + chunk_bytes_min > batch_bytes_max) return;
  const Bytes& message = *bulk_.front();
  const std::size_t length =
      std::min({message.size() - bulk_sent_, batch_bytes_max - frame_header_bytes - batch_.size(),
                shared_->limits.frame.chunk_bytes_max});
  append_frame(FrameHeader{.kind = FrameKind::bulk,
                           .first = bulk_sent_ == 0,
                           .length = static_cast<std::uint32_t>(length),
                           .total = static_cast<std::uint32_t>(message.size())},
               std::span<const std::byte>(message).subspan(bulk_sent_, length), batch_);
  bulk_sent_ += length;
  batch_bulk_bytes_ = length;
  if (bulk_sent_ < message.size()) return;
  bulk_.pop_front();
  bulk_sent_ = 0;
  ++counters_.bulk_out;
  ++shared_->counters.total.bulk_out;
}

void Session::append_goodbye() {
  std::string words = reason_->code + ": " + reason_->text;
  words.resize(std::min(words.size(), goodbye_bytes_max));
  const auto length = static_cast<std::uint32_t>(words.size());
  append_frame(
      FrameHeader{.kind = FrameKind::goodbye, .first = true, .length = length, .total = length},
      std::as_bytes(std::span(words)), batch_);
  goodbye_written_ = true;
}

void Session::after_write() {
  if (state_ != State::open || batch_bulk_bytes_ == 0) return;
  bulk_queued_bytes_ -= batch_bulk_bytes_;
  if (shared_->handler != nullptr) shared_->handler->on_bulk_sent(id_, batch_bulk_bytes_);
}

void Session::part_ended() {
  if (--parts_ > 0) return;
  state_ = State::closed;
  deadline_.cancel();
  stream_.close();
  const Error reason = reason_.value_or(Error{"cut", "the connection was lost"});
  ++shared_->counters.sessions_closed[reason.code];
  shared_->sessions.erase(id_);
  if (shared_->handler != nullptr) shared_->handler->on_session_closed(id_, reason);
}

void Session::check_invariants() const {
  GOSSIPD_ASSERT(control_.size() <= shared_->limits.control_queue_max);
  GOSSIPD_ASSERT(bulk_queued_bytes_ <= shared_->limits.bulk_queue_bytes_max);
  GOSSIPD_ASSERT(bulk_sent_ == 0 || state_ != State::open || bulk_sent_ < bulk_.front()->size());
}

}  // namespace gossipd
