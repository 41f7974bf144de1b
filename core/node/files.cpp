// The file of a job (a TorchScript model): asked for piece by piece from one member at a time,
// handed on to whoever asks.
#include <algorithm>

#include "core/node/node_impl.h"
#include "core/wire/file_piece.h"

namespace gossipd {
namespace {

constexpr Duration piece_timeout = std::chrono::seconds(30);  // then another member is asked
constexpr Duration ask_again = std::chrono::seconds(2);       // when all have been asked in vain
// that may wait on one session: a peer asks for one piece at a time
constexpr std::size_t served_bytes_max = 2 * 1024 * 1024;
constexpr std::size_t reads_max = 4;  // of the disk, likewise
// come too late, from a member that is no longer asked
constexpr std::uint32_t unasked_pieces_max = 8;

}  // namespace

void NodeImpl::want_file(const JobFile& file, Instant now) {
  GOSSIPD_ASSERT(file.bytes > 0 && file.bytes <= job_file_bytes_max);
  fetch_ = Fetch{};
  fetch_->file = file;
  log(Level::info,
      "event=file-wanted hash=" + to_hex(file) + " bytes=" + std::to_string(file.bytes));
  carry_on_fetching(now);
}

// Asks the next member when nobody is being asked, or who was asked is silent or gone.
void NodeImpl::carry_on_fetching(Instant now) {
  if (!fetch_) return;
  if (fetch_->session != SessionId{}) {
    const auto session = sessions_.find(fetch_->session);
    if (session != sessions_.end() && now - fetch_->asked < piece_timeout) return;
    if (session != sessions_.end()) fetch_->without.insert(session->first);
    fetch_->session = SessionId{};
  }
  if (now < fetch_->again) return;
  for (auto& [id, session] : sessions_)
    if (session.established && !fetch_->without.contains(id)) return ask_for_piece(session, now);
  fetch_->without.clear();
  fetch_->again = now + ask_again;
}

void NodeImpl::ask_for_piece(Session& session, Instant now) {
  fetch_->session = session.id;
  fetch_->asked = now;
  send(session, FileRequest{fetch_->file, fetch_->offset});
}

void NodeImpl::on_file_request(Session& session, const FileRequest& request) {
  if (request.file.bytes == 0 || request.file.bytes > job_file_bytes_max ||
      request.offset >= request.file.bytes)
    return;
  if (session.bulk_outstanding > served_bytes_max || session.reads_waiting >= reads_max) return;
  ++session.reads_waiting;
  const auto left =
      std::min<std::uint64_t>(request.file.bytes - request.offset, file_piece_bytes_max);
  emit(FileReadEffect{session.id, request.file, request.offset, static_cast<std::size_t>(left)});
}

void NodeImpl::on_file_read(SessionId id, const JobFile& file, std::uint64_t offset,
                            const Bytes& bytes) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  found->second.reads_waiting -= std::min<std::size_t>(found->second.reads_waiting, 1);
  if (bytes.empty()) return send(found->second, FileAbsent{file});
  auto message = std::make_shared<const Bytes>(encode_file_piece({offset, bytes}));
  found->second.bulk_outstanding += message->size();
  emit(SendEffect{id, Lane::bulk, std::move(message)});
}

void NodeImpl::on_file_absent(Session& session, const FileAbsent& absent, Instant now) {
  if (!fetch_ || fetch_->session != session.id || fetch_->file != absent.file) return;
  fetch_->without.insert(session.id);
  fetch_->session = SessionId{};
  carry_on_fetching(now);
}

void NodeImpl::on_file_piece(Session& session, std::span<const std::byte> message, Instant now) {
  const auto piece = decode_file_piece(message);
  if (!piece) return refuse(session, piece.error(), now);
  // What comes late from a member that is no longer asked changes nothing.
  if (!fetch_ || fetch_->session != session.id || piece->offset != fetch_->offset) {
    if (++session.unasked_pieces > unasked_pieces_max)
      on_flood(session, "pieces of a file come that nobody has asked for", now);
    return;
  }
  session.unasked_pieces = 0;
  if (piece->bytes.size() > fetch_->file.bytes - fetch_->offset)
    return refuse(session, Error{"malformed", "a piece of a file goes beyond its end"}, now);
  fetch_->offset += piece->bytes.size();
  emit(FilePieceEffect{fetch_->file, piece->offset,
                       Bytes(piece->bytes.begin(), piece->bytes.end())});
  if (fetch_->offset < fetch_->file.bytes) return ask_for_piece(session, now);
  log(Level::info, "event=file-arrived hash=" + to_hex(fetch_->file) + " from=" + who(session));
  fetch_.reset();
}

}  // namespace gossipd
