#include "core/node/job_transfer.h"

#include <algorithm>
#include <utility>

namespace gossipd {
namespace {

std::size_t piece_bytes(const JobFile& file, std::uint64_t offset) {
  return static_cast<std::size_t>(
      std::min<std::uint64_t>(file.bytes - offset, file_piece_bytes_max));
}

}  // namespace

void JobTransfer::want(const JobFile& file) {
  GOSSIPD_ASSERT(file.bytes > 0 && file.bytes <= job_file_bytes_max);
  fetch_ = Fetch{};
  fetch_->file = file;
  if (!whole_ || whole_->file != file) return;
  fetch_->is_repeated = true;
  if (whole_->sources.size() == 1) doubted_.insert(*whole_->sources.begin());
}

std::optional<JobTransfer::Progress> JobTransfer::progress() const {
  if (!fetch_) return std::nullopt;
  return Progress{fetch_->file, fetch_->offset};
}

std::optional<JobTransfer::Ask> JobTransfer::next_ask(const std::vector<SessionId>& members,
                                                      Instant now) {
  if (!fetch_) return std::nullopt;
  if (fetch_->asked != SessionId{}) {
    if (now - fetch_->asked_at < piece_timeout) return std::nullopt;
    fetch_->without.insert(fetch_->asked);
    fetch_->asked = SessionId{};
  }
  if (now < fetch_->again) return std::nullopt;
  std::erase_if(doubted_, [&members](SessionId id) { return !std::ranges::count(members, id); });
  fetch_->asked = choose(members);
  if (fetch_->asked == SessionId{}) {
    fetch_->without.clear();
    fetch_->again = now + ask_again;
    return std::nullopt;
  }
  if (fetch_->is_repeated && !fetch_->sources.contains(fetch_->asked)) {
    fetch_->sources.clear();
    fetch_->offset = 0;
  }
  return ask_on(now);
}

// 0: all were asked in vain.
SessionId JobTransfer::choose(const std::vector<SessionId>& members) const {
  SessionId doubted{};
  for (const SessionId id : members) {
    if (fetch_->without.contains(id)) continue;
    if (!doubted_.contains(id)) return id;
    if (doubted == SessionId{}) doubted = id;
  }
  return doubted;
}

JobTransfer::Ask JobTransfer::ask_on(Instant now) {
  GOSSIPD_ASSERT(fetch_ && fetch_->asked != SessionId{});
  fetch_->asked_at = now;
  return {fetch_->asked, FileRequest{fetch_->file, fetch_->offset}};
}

bool JobTransfer::on_absent(SessionId session, const JobFile& file) {
  if (!fetch_ || fetch_->asked != session || fetch_->file != file) return false;
  fetch_->without.insert(session);
  fetch_->asked = SessionId{};
  return true;
}

JobTransfer::Piece JobTransfer::on_piece(SessionId session, const FilePiece& piece) {
  // A member that is no longer asked may still send what it was asked for.
  if (!fetch_ || fetch_->asked != session || piece.offset != fetch_->offset)
    return ++counts_[session].unasked_pieces > unasked_pieces_max ? Piece::flood : Piece::unasked;
  counts_[session].unasked_pieces = 0;
  if (piece.bytes.size() != piece_bytes(fetch_->file, fetch_->offset)) return Piece::wrong_length;
  fetch_->offset += piece.bytes.size();
  fetch_->sources.insert(session);
  if (fetch_->offset < fetch_->file.bytes) return Piece::taken;
  whole_ = std::exchange(fetch_, std::nullopt);
  return Piece::last;
}

std::size_t JobTransfer::on_request(SessionId session, const FileRequest& request,
                                    std::size_t bytes_waiting) {
  if (request.file.bytes == 0 || request.file.bytes > job_file_bytes_max ||
      request.offset >= request.file.bytes)
    return 0;
  std::size_t& reads = counts_[session].reads;
  if (bytes_waiting > served_bytes_max || reads >= reads_max) return 0;
  ++reads;
  return piece_bytes(request.file, request.offset);
}

void JobTransfer::on_read(SessionId session) {
  const auto found = counts_.find(session);
  if (found != counts_.end() && found->second.reads > 0) --found->second.reads;
}

void JobTransfer::on_session_end(SessionId session) {
  counts_.erase(session);
  if (!fetch_) return;
  fetch_->without.erase(session);
  if (fetch_->asked == session) fetch_->asked = SessionId{};
}

}  // namespace gossipd
