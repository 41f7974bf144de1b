// tools/gossipctl/client.h - requests to one daemon, and the meaning of failures for people and
// scripts.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "net/http/client.h"
#include "tools/gossipctl/failure.h"
#include "tools/gossipctl/token_file.h"

namespace gossipd {

class DaemonClient {
 public:
  // `token` may be null.
  DaemonClient(std::string address, std::shared_ptr<const TokenFile> token,
               std::chrono::milliseconds timeout, std::string ca_file = {})
      : address_(std::move(address)),
        token_(std::move(token)),
        timeout_(timeout),
        ca_file_(std::move(ca_file)) {}

  // The body of a 2xx answer, or the failure.
  struct Answer {
    bool ok = false;
    std::string body;
    Failure failure;
  };
  [[nodiscard]] Answer get(const std::string& target) const { return call("GET", target, {}); }
  [[nodiscard]] Answer post(const std::string& target, const std::string& body = {}) const {
    return call("POST", target, body);
  }
  [[nodiscard]] DaemonClient with_timeout(std::chrono::milliseconds timeout) const {
    return {address_, token_, timeout, ca_file_};
  }
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }

 private:
  [[nodiscard]] Answer call(const std::string& method, const std::string& target,
                            const std::string& body) const;

  std::string address_;  // [https://]HOST:PORT or unix:PATH
  std::shared_ptr<const TokenFile> token_;
  std::chrono::milliseconds timeout_;
  std::string ca_file_;  // of https
};

}  // namespace gossipd
