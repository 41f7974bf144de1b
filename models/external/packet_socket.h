// models/external/packet_socket.h - Unix sockets that keep packets apart (SOCK_SEQPACKET), and who
// is at the other end. Nothing here waits. Errors are values.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/base/result.h"
#include "core/base/types.h"

namespace gossipd {

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();
  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] bool is_open() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

// Makes a poll() on it return, from any thread.
class Alarm {
 public:
  Alarm();
  [[nodiscard]] int number() const { return event_.number(); }
  void ring() const;
  void silence() const;

 private:
  Descriptor event_;
};

// Listens at `path`, mode 0660. A socket that a process before has left there is replaced; one that
// somebody listens at is not. Codes "bad-config", "listen".
[[nodiscard]] Result<Descriptor> listen_for_packets(const std::string& path);

// Ends its connection such that the other end reads all that was sent to it: without care the
// kernel tells of a reset first, where something of the other's was not read.
class PacketSocket {
 public:
  enum class Sent { yes, full, closed };
  struct Received {
    enum class Kind { packet, nothing, closed } kind = Kind::nothing;
    std::span<const std::byte> packet;  // in the buffer that was given
  };

  explicit PacketSocket(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}
  PacketSocket(PacketSocket&&) noexcept = default;
  PacketSocket& operator=(PacketSocket&&) noexcept = default;  // the other one ends the connection
  ~PacketSocket();
  [[nodiscard]] int number() const { return descriptor_.number(); }
  // `passed`: a descriptor that travels with it; -1: none.
  [[nodiscard]] Sent send(std::span<const std::byte> packet, int passed = -1) const;
  // A packet that is longer than `buffer` comes as one that is as long as `buffer`.
  [[nodiscard]] Received receive(std::span<std::byte> buffer) const;

 private:
  Descriptor descriptor_;
};

struct PeerProcess {
  pid_t id = 0;        // 0: of another pid namespace
  Descriptor process;  // readable once it has ended; may be none
};
// Of who has connected. Code "not-allowed": neither this process's user, nor root, nor of the group
// `group`.
[[nodiscard]] Result<PeerProcess> allowed_peer(const PacketSocket&, gid_t group);
[[nodiscard]] gid_t group_of(const std::string& path);

}  // namespace gossipd
