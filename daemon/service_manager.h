// daemon/service_manager.h - tells systemd, or whoever speaks its protocol, how this process is.
//
// Datagrams to the socket that NOTIFY_SOCKET names (sd_notify(3)): READY=1 when the node listens
// (joining may take for ever, and is no failed start; nor is the founder's wait for a trainer),
// STATUS= when its words change, STOPPING=1 (not where the process starts again by itself: what
// stops is killed after TimeoutStopSec), and WATCHDOG=1 at half of WATCHDOG_USEC from a timer of
// the loop, so that a protocol thread that stands still is noticed. Without a socket nothing
// happens. A send never waits: what the manager does not take is lost. Loop thread only.
#pragma once

#include <string>

#include "net/event_loop.h"

namespace gossipd {

struct ServiceEnvironment {
  std::string socket;   // a path, or '@' and an abstract name; empty: nobody listens
  Duration watchdog{};  // 0: none
};
// NOTIFY_SOCKET, and WATCHDOG_USEC if WATCHDOG_PID is this process or not given.
[[nodiscard]] ServiceEnvironment service_environment();

class ServiceManager {
 public:
  static constexpr std::size_t status_bytes_max = 512;

  ServiceManager(EventLoop& loop, ServiceEnvironment environment);
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  void ready();  // and the watchdog begins
  // Started as far as it goes before somebody acts. That may take for ever, and no loop runs that
  // could send beats: the watchdog waits for ready().
  void waits_for(const std::string& what);
  void status(const std::string& words);
  void stopping();
  // This process runs the program anew: for the manager it goes on. Until ready() the watchdog
  // waits as long as for a start.
  void starting_again();

 private:
  [[nodiscard]] bool watched() const { return environment_.watchdog > Duration{}; }
  void send(const std::string& message) const;
  void on_watchdog();

  const ServiceEnvironment environment_;
  int socket_ = -1;  // -1: nobody listens
  std::string status_;
  Timer watchdog_;
};

}  // namespace gossipd
