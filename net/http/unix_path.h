// net/http/unix_path.h - the file of a Unix socket: cleared before bind, recognised before removal.
//
// Includes Asio: for the sources of net only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <optional>
#include <string>
#include <utility>

#include "core/base/result.h"

namespace gossipd {

using FileIdentity = std::pair<dev_t, ino_t>;  // {0, 0}: no file
[[nodiscard]] FileIdentity file_at(const std::string& path);

// Why nothing can listen there: "bad-config" where that stays so until somebody changes the path or
// its rights, else "listen".
[[nodiscard]] Error unix_listen_error(const std::string& path, int error);
// Removes a socket that a crash left behind; anything else of that name stays and is an error, with
// the codes above.
[[nodiscard]] std::optional<Error> clear_socket_path(boost::asio::io_context& io,
                                                     const std::string& path);

}  // namespace gossipd
