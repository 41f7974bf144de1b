// The node's side of JobTransfer: its requests become messages, its pieces effects.
#include "core/node/conductor.h"

namespace gossipd {

void Conductor::want_file(const JobFile& file, Instant now) {
  transfer_.want(file);
  log(Level::info,
      "event=file-wanted hash=" + to_hex(file) + " bytes=" + std::to_string(file.bytes));
  ask_for_file(now);
}

void Conductor::ask_for_file(Instant now) {
  if (!transfer_.progress()) return;
  if (const auto ask = transfer_.next_ask(peers_.established_ids(), now))
    send(*peers_.find(ask->session), ask->request);
}

void Conductor::on_file_request(Session& session, const FileRequest& request) {
  if (const auto bytes = transfer_.on_request(session.id, request, session.bulk_outstanding))
    emit(FileReadEffect{session.id, request.file, request.offset, bytes});
}

void Conductor::on_file_read(SessionId id, const JobFile& file, std::uint64_t offset,
                             const Bytes& bytes) {
  Session* session = peers_.find(id);
  if (session == nullptr) return;
  transfer_.on_read(id);
  if (bytes.empty()) return send(*session, FileAbsent{file});
  auto message = std::make_shared<const Bytes>(encode_file_piece({offset, bytes}));
  send_bulk(*session, std::move(message));
}

void Conductor::on_file_piece(Session& session, std::span<const std::byte> message, Instant now) {
  const auto piece = decode_file_piece(message);
  if (!piece) return refuse(session, piece.error(), now);
  const auto wanted = transfer_.progress();
  const JobTransfer::Piece outcome = transfer_.on_piece(session.id, *piece);
  switch (outcome) {
    case JobTransfer::Piece::unasked: return;
    case JobTransfer::Piece::flood:
      return on_flood(session, "pieces of a file come that nobody has asked for", now);
    case JobTransfer::Piece::wrong_length:
      return refuse(session,
                    Error{"malformed", "a piece of a file is not as long as was asked for"}, now);
    case JobTransfer::Piece::taken:
    case JobTransfer::Piece::last: break;
  }
  emit(FilePieceEffect{wanted->file, piece->offset,
                       Bytes(piece->bytes.begin(), piece->bytes.end())});
  if (outcome == JobTransfer::Piece::taken) return send(session, transfer_.ask_on(now).request);
  log(Level::info, "event=file-arrived hash=" + to_hex(wanted->file) + " from=" + who(session));
}

}  // namespace gossipd
