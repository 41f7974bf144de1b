// core/node/job_transfer.h - moves the file that belongs to a job (a TorchScript model) between
// members, piece by piece.
//
// The problem: the file may have hundreds of megabytes, and any member may vanish, stall or lie
// while it is sent. So a receiver asks one member at a time for one piece at a time, in order, and
// turns to another member when the one it asked is silent, gone or without the file. A provider
// reads at most a few pieces at once for each session, so slow disks and greedy peers cost bounded
// memory. Content is not judged here: the driver hashes the whole file, and wants it again if it is
// wrong. Then all pieces come from one member, and whoever sent a wrong file is asked last.
//
// Pure; the node sends what is returned here. One owner, the core strand.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/wire/control.h"
#include "core/wire/file_piece.h"

namespace gossipd {

class JobTransfer {
 public:
  static constexpr Duration piece_timeout = std::chrono::seconds(30);  // then another is asked
  static constexpr Duration ask_again = std::chrono::seconds(2);  // when all were asked in vain
  // Bulk bytes that may wait on a session before its requests are dropped.
  static constexpr std::size_t served_bytes_max = 2 * 1024 * 1024;
  static constexpr std::size_t reads_max = 4;  // of the disk, under way for one session
  // Pieces in a row from a member that is no longer asked; more are a flood.
  static constexpr std::uint32_t unasked_pieces_max = 8;

  struct Ask {
    SessionId session{};
    FileRequest request;
  };
  struct Progress {
    JobFile file;
    std::uint64_t bytes = 0;  // that have come
  };
  enum class Piece : std::uint8_t {
    unasked,  // changes nothing
    flood,    // likewise, and too many of them: the peer is out of order
    // not as long as was asked for, so a peer could send a file byte by byte: it is out of order
    wrong_length,
    taken,  // the next piece is to be asked for: ask_on()
    last    // the file is whole and no longer wanted
  };

  // ---- the file that this node wants ----
  // Starts from the beginning, also if a transfer of the same file is under way. If that file has
  // come whole and is wanted again, it was wrong.
  void want(const JobFile& file);
  [[nodiscard]] std::optional<Progress> progress() const;
  // The request to send now, if any: to the first of `members` that has not been asked in vain, and
  // if there is a choice to one that has sent no wrong file.
  [[nodiscard]] std::optional<Ask> next_ask(const std::vector<SessionId>& members, Instant now);
  // After Piece::taken: the request for the next piece, to the same member.
  [[nodiscard]] Ask ask_on(Instant now);
  // True: the member that was asked does not have the file, so another is to be asked.
  [[nodiscard]] bool on_absent(SessionId session, const JobFile& file);
  // A piece that is taken belongs at its offset in the wanted file.
  [[nodiscard]] Piece on_piece(SessionId session, const FilePiece& piece);

  // ---- files that others want ----
  // How many bytes to read in answer; 0: the request makes no sense or too much waits already.
  // `bytes_waiting`: bulk bytes that the session has not sent yet.
  [[nodiscard]] std::size_t on_request(SessionId session, const FileRequest& request,
                                       std::size_t bytes_waiting);
  void on_read(SessionId session);  // one read that on_request() admitted is done

  void on_session_end(SessionId session);

 private:
  struct Fetch {
    JobFile file;
    std::uint64_t offset = 0;     // of the next piece; less than file.bytes
    SessionId asked{};            // 0: nobody
    Instant asked_at{};           // of the latest request
    Instant again{};              // nobody is asked before
    std::set<SessionId> without;  // live sessions that were asked in vain
    std::set<SessionId> sources;  // sessions whose pieces were taken, since offset 0
    // An earlier transfer of this file was wrong, so all pieces come from one source.
    bool is_repeated = false;
  };
  [[nodiscard]] SessionId choose(const std::vector<SessionId>& members) const;
  struct Counts {
    std::size_t reads = 0;             // admitted and not done; at most reads_max
    std::uint32_t unasked_pieces = 0;  // since the last piece that was taken
  };

  std::optional<Fetch> fetch_;          // nothing: no file is wanted
  std::optional<Fetch> whole_;          // the last one that was completed
  std::set<SessionId> doubted_;         // sessions that alone sent a wrong file
  std::map<SessionId, Counts> counts_;  // of live sessions that have asked or sent something
};

}  // namespace gossipd
