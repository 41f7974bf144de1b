#include "daemon/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "core/base/printable.h"

namespace gossipd {

namespace {

constexpr std::int64_t watchdog_us_max = std::int64_t{24} * 3600 * 1'000'000;
constexpr Duration start_limit = std::chrono::minutes(15);  // as TimeoutStartSec of our unit

std::string watchdog_words(Duration period) {
  return "\nWATCHDOG_USEC=" +
         std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(period).count());
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

ServiceEnvironment service_environment() {
  ServiceEnvironment environment;
  environment.socket = variable("NOTIFY_SOCKET");
  const std::string pid = variable("WATCHDOG_PID");
  const auto period_us = number(variable("WATCHDOG_USEC"));
  const bool ours = pid.empty() || number(pid) == ::getpid();
  if (ours && period_us && *period_us > 0 && *period_us <= watchdog_us_max)
    environment.watchdog = std::chrono::microseconds(*period_us);
  return environment;
}

ServiceManager::ServiceManager(EventLoop& loop, ServiceEnvironment environment)
    : environment_(std::move(environment)), watchdog_(loop, [this] { on_watchdog(); }) {
  const std::string& name = environment_.socket;
  const bool known = name.size() > 1 && (name[0] == '/' || name[0] == '@');
  if (known && name.size() < sizeof(sockaddr_un::sun_path))
    socket_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

ServiceManager::~ServiceManager() {
  if (socket_ >= 0) ::close(socket_);
}

void ServiceManager::send(const std::string& message) const {
  if (socket_ < 0) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string& name = environment_.socket;
  std::memcpy(address.sun_path, name.data(), name.size());
  if (name[0] == '@') address.sun_path[0] = '\0';
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  (void)::sendto(socket_, message.data(), message.size(), MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&address), length);
}

void ServiceManager::ready() {
  // The period as well, as the process before this one may have asked for a longer one.
  send("READY=1\nSTATUS=listening" + (watched() ? watchdog_words(environment_.watchdog) : ""));
  on_watchdog();
}

void ServiceManager::waits_for(const std::string& what) {
  send("READY=1\nSTATUS=waiting for " + printable(what).substr(0, status_bytes_max) +
       (watched() ? "\nWATCHDOG_USEC=0" : ""));
}

void ServiceManager::status(const std::string& words) {
  const std::string line = printable(words).substr(0, status_bytes_max);
  if (line == status_) return;
  status_ = line;
  send("STATUS=" + line);
}

void ServiceManager::stopping() { send("STOPPING=1\nSTATUS=stopping"); }

void ServiceManager::starting_again() {
  send("STATUS=starting again" +
       (watched() ? watchdog_words(std::max(environment_.watchdog, start_limit)) : ""));
}

void ServiceManager::on_watchdog() {
  if (!watched() || socket_ < 0) return;
  send("WATCHDOG=1");
  watchdog_.arm_after(environment_.watchdog / 2);
}

}  // namespace gossipd
