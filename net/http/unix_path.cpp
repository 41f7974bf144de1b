#include "net/http/unix_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/local/stream_protocol.hpp>
#include <cstring>

#include "core/base/lasting_error.h"

namespace gossipd {

namespace asio = boost::asio;
using local = asio::local::stream_protocol;

FileIdentity file_at(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 ? FileIdentity(status.st_dev, status.st_ino)
                                             : FileIdentity();
}

Error unix_listen_error(const std::string& path, int error) {
  const bool no_folder = error == ENOENT;
  const char* way_out = no_folder               ? "; create its directory, or name another path"
                        : error == ENAMETOOLONG ? "; name a shorter path"
                        : is_lasting(error)     ? "; name a path that this user may write to"
                                                : "; name another path";
  return Error{no_folder || is_lasting(error) ? "bad-config" : "listen",
               "cannot listen on " + path + ": " + std::strerror(error) + way_out};
}

std::optional<Error> clear_socket_path(asio::io_context& io, const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return std::nullopt;  // bind() reports the rest
  if (!S_ISSOCK(status.st_mode))
    return Error{"bad-config", "cannot listen on " + path +
                                   ": a file that is no socket lies there, and stays; move it "
                                   "away, or name another path"};
  boost::system::error_code error;
  local::socket probe(io);
  probe.open(local(), error);
  // a frozen daemon with a full queue would block us
  if (!error) probe.non_blocking(true, error);
  if (!error) probe.connect(local::endpoint(path), error);
  if (!error || error == asio::error::would_block || error == asio::error::in_progress)
    return Error{"listen", "cannot listen on " + path +
                               ": another process serves it; stop it, or name another path"};
  if (error != asio::error::connection_refused) return unix_listen_error(path, error.value());
  ::unlink(path.c_str());
  return std::nullopt;
}

}  // namespace gossipd
