#include "models/external/packet_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "core/base/lasting_error.h"

namespace gossipd {

namespace {

constexpr int backlog = 16;
constexpr std::size_t groups_max = 65536;

Error listen_error(const char* code, const std::string& path, const std::string& reason) {
  return Error{code, "trainer.socket: cannot listen at " + path + ": " + reason};
}

// Of an errno; what somebody has to put right first is not tried again by a service manager.
Error listen_error(const std::string& path, int error) {
  return listen_error(error == ENOENT || is_lasting(error) ? "bad-config" : "listen", path,
                      std::string(std::strerror(error)) +
                          "; set trainer.socket to a path that this user may write to");
}

// A path too long for sockaddr_un is reached through its directory. `directory` must stay open.
bool address_of(const std::string& path, Descriptor& directory, sockaddr_un& out) {
  out = {};
  out.sun_family = AF_UNIX;
  std::string name = path;
  if (name.size() >= sizeof out.sun_path) {
    const std::filesystem::path whole(path);
    directory = Descriptor(::open(whole.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!directory.is_open()) return false;
    name = "/proc/self/fd/" + std::to_string(directory.number()) + "/" + whole.filename().string();
  }
  if (name.empty() || name.size() >= sizeof out.sun_path) return errno = ENAMETOOLONG, false;
  std::memcpy(out.sun_path, name.data(), name.size());
  return true;
}

// What a process before has left.
std::optional<Error> clear(const std::string& path, const sockaddr_un& address) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return std::nullopt;
  if (!S_ISSOCK(found.st_mode))
    return listen_error("bad-config", path,
                        "a file lies there that is no socket; remove it, or set "
                        "trainer.socket to another path");
  const Descriptor probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::connect(probe.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
      errno == EAGAIN)
    return listen_error("listen", path,
                        "another process listens there; give each daemon a socket of its "
                        "own by trainer.socket");
  if (::unlink(path.c_str()) != 0) return listen_error(path, errno);
  return std::nullopt;
}

bool is_in_group(int socket, gid_t group) {
  std::vector<gid_t> groups(64);
  while (true) {
    auto bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) == 0) {
      groups.resize(bytes / sizeof(gid_t));
      return std::ranges::find(groups, group) != groups.end();
    }
    if (errno != ERANGE || groups.size() >= groups_max) return false;
    groups.resize(groups_max);
  }
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

Alarm::Alarm() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  GOSSIPD_ASSERT(event_.is_open());
}

void Alarm::ring() const {
  const std::uint64_t one = 1;
  (void)!::write(number(), &one, sizeof one);
}

void Alarm::silence() const {
  std::uint64_t count = 0;
  (void)!::read(number(), &count, sizeof count);
}

Result<Descriptor> listen_for_packets(const std::string& path) {
  Descriptor directory;
  sockaddr_un address{};
  if (!address_of(path, directory, address)) return listen_error(path, errno);
  if (auto error = clear(path, address)) return *error;
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // Before it has a name, so that nobody else ever has access; and after, whatever the umask.
  if (!socket.is_open() || ::fchmod(socket.number(), 0660) != 0 ||
      ::bind(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::chmod(address.sun_path, 0660) != 0 || ::listen(socket.number(), backlog) != 0)
    return listen_error(path, errno);
  return socket;
}

// After the shutdown nothing more can arrive, so what is taken away here is all.
PacketSocket::~PacketSocket() {
  if (!descriptor_.is_open()) return;
  ::shutdown(number(), SHUT_RDWR);
  std::byte unread{};
  ssize_t count = 1;
  while (count > 0 || (count < 0 && errno == EINTR))
    count = ::recv(number(), &unread, sizeof unread, MSG_DONTWAIT);
}

PacketSocket::Sent PacketSocket::send(std::span<const std::byte> packet, int passed) const {
  iovec part{const_cast<std::byte*>(packet.data()), packet.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (passed >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &passed, sizeof passed);
  }
  while (::sendmsg(number(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == ENOBUFS ? Sent::full : Sent::closed;
  }
  return Sent::yes;
}

// Descriptors that a peer passes are closed by the kernel: there is no room for them.
PacketSocket::Received PacketSocket::receive(std::span<std::byte> buffer) const {
  while (true) {
    const ssize_t count = ::recv(number(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count > 0) return {Received::Kind::packet, buffer.first(static_cast<std::size_t>(count))};
    if (count == 0) return {Received::Kind::closed, {}};
    // Of a peer that has gone without reading all: said once, before what it has sent.
    if (errno == EINTR || errno == ECONNRESET) continue;
    return {errno == EAGAIN ? Received::Kind::nothing : Received::Kind::closed, {}};
  }
}

Result<PeerProcess> allowed_peer(const PacketSocket& socket, gid_t group) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  const bool known = ::getsockopt(socket.number(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0;
  const bool own = peer.uid == ::geteuid() || peer.uid == 0;
  if (!known || !(own || peer.gid == group || is_in_group(socket.number(), group)))
    return Error{"not-allowed", "user " + std::to_string(peer.uid) +
                                    " is not the daemon's, and not in the group of its socket (" +
                                    std::to_string(group) +
                                    "); run both as one user, or put the user into the group of "
                                    "trainer.socket"};
  PeerProcess out;
  out.id = peer.pid;
  if (peer.pid > 0)
    out.process = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
  return out;
}

gid_t group_of(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 ? found.st_gid : ::getegid();
}

}  // namespace gossipd
