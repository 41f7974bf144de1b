// The file of a job: whom to ask for the next piece, and how much to hand out.
#include <doctest/doctest.h>

#include "core/node/job_transfer.h"

using namespace gossipd;
using namespace std::chrono_literals;
using Piece = JobTransfer::Piece;

namespace {

constexpr JobFile file{.hash_high = 1, .hash_low = 2, .bytes = 600'000};
constexpr std::size_t piece = file_piece_bytes_max, rest = file.bytes - 2 * piece;
constexpr SessionId a{1}, b{2}, c{3};
const Instant start{100s};

struct Receiver {
  Receiver() { transfer.want(file); }
  // The session that is asked now; 0: none.
  SessionId asks(const std::vector<SessionId>& members, Duration after) {
    const auto ask = transfer.next_ask(members, start + after);
    if (ask) CHECK(ask->request.file == file);
    return ask ? ask->session : SessionId{};
  }
  Piece hear(SessionId from, std::uint64_t offset, std::size_t bytes) {
    const Bytes content(bytes);
    return transfer.on_piece(from, FilePiece{offset, content});
  }
  Piece hears_all(SessionId from) {
    CHECK(hear(from, 0, piece) == Piece::taken);
    CHECK(hear(from, piece, piece) == Piece::taken);
    return hear(from, 2 * piece, rest);
  }
  JobTransfer transfer;
};

}  // namespace

TEST_CASE("pieces are asked for one by one, of one member, until the file is whole") {
  Receiver receiver;
  CHECK(receiver.asks({a, b}, 0s) == a);
  CHECK(receiver.asks({a, b}, 1s) == SessionId{});  // the answer is awaited
  CHECK(receiver.hear(a, 0, piece) == Piece::taken);
  const JobTransfer::Ask next = receiver.transfer.ask_on(start + 2s);
  CHECK(next.session == a);
  CHECK(next.request.offset == piece);
  CHECK(receiver.transfer.progress()->bytes == piece);
  CHECK(receiver.hear(a, piece, piece) == Piece::taken);
  CHECK(receiver.hear(a, 2 * piece, rest) == Piece::last);
  CHECK_FALSE(receiver.transfer.progress());
  CHECK(receiver.asks({a, b}, 3s) == SessionId{});
}

TEST_CASE("another member is asked when the first is silent, gone or without the file") {
  Receiver silent;
  CHECK(silent.asks({a, b}, 0s) == a);
  CHECK(silent.asks({a, b}, JobTransfer::piece_timeout - 1ms) == SessionId{});
  CHECK(silent.asks({a, b}, JobTransfer::piece_timeout) == b);

  Receiver gone;
  CHECK(gone.asks({a, b}, 0s) == a);
  gone.transfer.on_session_end(a);
  CHECK(gone.asks({b}, 1s) == b);

  Receiver without;
  CHECK(without.asks({a, b}, 0s) == a);
  CHECK_FALSE(without.transfer.on_absent(b, file));
  CHECK_FALSE(without.transfer.on_absent(a, JobFile{.bytes = 1}));
  CHECK(without.transfer.on_absent(a, file));
  CHECK(without.asks({a, b}, 1s) == b);
}

TEST_CASE("when all members were asked in vain they are asked again after a while") {
  Receiver receiver;
  CHECK(receiver.asks({a}, 0s) == a);
  CHECK(receiver.transfer.on_absent(a, file));
  CHECK(receiver.asks({a}, 1s) == SessionId{});
  CHECK(receiver.asks({a}, 1s + JobTransfer::ask_again - 1ms) == SessionId{});
  CHECK(receiver.asks({a}, 1s + JobTransfer::ask_again) == a);
}

TEST_CASE("unrequested pieces change nothing, and many in a row are a flood") {
  Receiver receiver;
  CHECK(receiver.asks({a}, 0s) == a);
  CHECK(receiver.hear(a, 7, 10) == Piece::unasked);  // not the offset that was asked for
  for (std::uint32_t i = 0; i < JobTransfer::unasked_pieces_max; ++i)
    CHECK(receiver.hear(b, 0, 10) == Piece::unasked);
  CHECK(receiver.hear(b, 0, 10) == Piece::flood);
  CHECK(receiver.transfer.progress()->bytes == 0);
  // A piece that was asked for starts the count anew.
  CHECK(receiver.hear(a, 0, piece) == Piece::taken);
  for (std::uint32_t i = 0; i < JobTransfer::unasked_pieces_max; ++i)
    CHECK(receiver.hear(a, 0, 10) == Piece::unasked);
}

TEST_CASE("a piece that is not as long as was asked for is not taken") {
  for (const std::size_t bytes : {std::size_t{1}, piece - 1, piece + 1, std::size_t{file.bytes}}) {
    Receiver receiver;
    CHECK(receiver.asks({a, b}, 0s) == a);
    CHECK(receiver.hear(a, 0, bytes) == Piece::wrong_length);
    CHECK(receiver.transfer.progress()->bytes == 0);
  }
}

TEST_CASE("after a wrong file its only source is asked last") {
  Receiver receiver;
  for (const SessionId liar : {a, b}) {
    CHECK(receiver.asks({a, b, c}, 0s) == liar);
    CHECK(receiver.hears_all(liar) == Piece::last);
    receiver.transfer.want(file);  // it was wrong
  }
  CHECK(receiver.asks({a, b, c}, 0s) == c);
  CHECK(receiver.transfer.on_absent(c, file));
  CHECK(receiver.asks({a, b, c}, 1s) == a);  // rather than nobody
}

TEST_CASE("after a wrong file of several sources all pieces come from one") {
  Receiver receiver;
  CHECK(receiver.asks({a, b}, 0s) == a);
  CHECK(receiver.hear(a, 0, piece) == Piece::taken);
  CHECK(receiver.asks({a, b}, JobTransfer::piece_timeout) == b);
  CHECK(receiver.hear(b, piece, piece) == Piece::taken);
  CHECK(receiver.hear(b, 2 * piece, rest) == Piece::last);
  receiver.transfer.want(file);
  CHECK(receiver.asks({a, b}, 0s) == a);
  CHECK(receiver.hear(a, 0, piece) == Piece::taken);
  CHECK(receiver.asks({a, b}, JobTransfer::piece_timeout) == b);
  CHECK(receiver.transfer.progress()->bytes == 0);
  CHECK(receiver.hears_all(b) == Piece::last);
}

TEST_CASE("a session's requests are dropped while too many reads or bytes are under way for it") {
  JobTransfer provider;
  const FileRequest request{file, 0};
  CHECK(provider.on_request(a, request, JobTransfer::served_bytes_max + 1) == 0);
  for (std::size_t i = 0; i < JobTransfer::reads_max; ++i)
    CHECK(provider.on_request(a, request, 0) == file_piece_bytes_max);
  CHECK(provider.on_request(a, request, 0) == 0);
  CHECK(provider.on_request(b, request, 0) > 0);  // each session for itself
  provider.on_read(a);
  CHECK(provider.on_request(a, request, 0) > 0);
  CHECK(provider.on_request(a, request, 0) == 0);
}

TEST_CASE("a request beyond the file or for none is not answered, and the last piece is shorter") {
  JobTransfer provider;
  CHECK(provider.on_request(a, {file, file.bytes}, 0) == 0);
  CHECK(provider.on_request(a, {JobFile{}, 0}, 0) == 0);
  CHECK(provider.on_request(a, {JobFile{.bytes = job_file_bytes_max + 1}, 0}, 0) == 0);
  CHECK(provider.on_request(a, {file, file.bytes - 5}, 0) == 5);
}
