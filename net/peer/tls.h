// net/peer/tls.h - TLS 1.3 with the cluster key as external pre-shared key; no certificates.
//
// One cipher suite (its hash must be the PSK's), ephemeral key exchange always (so a key that
// leaks later opens no recorded traffic), no tickets, no early data. A peer that offers a
// certificate instead of the key is refused twice over: nothing is trusted, and required_psk_used() is
// checked after the handshake. Includes Asio: for the sources of net alone.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "core/base/result.h"
#include "net/peer/cluster_key.h"

namespace gossipd {

// What one handshake learnt on the way, for the sentence about its failure.
struct TlsAttempt {
  std::string unknown_identity;  // inbound: the peer named this key, not ours
};

class TlsContext {
 public:
  explicit TlsContext(const ClusterKey& key);
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  [[nodiscard]] boost::asio::ssl::context& context() { return context_; }
  // `attempt` must outlive the handshake.
  static void attach(SSL* ssl, TlsAttempt& attempt);
  [[nodiscard]] static bool required_psk_used(SSL* ssl);
  // For errors of OpenSSL's own: {"wrong-key", …} or {"tls", …}.
  [[nodiscard]] Error explain(const boost::system::error_code& error, const TlsAttempt& attempt, bool outbound) const;

 private:
  friend struct PskCallbacks;

  ClusterKey key_;
  std::string identity_;
  boost::asio::ssl::context context_;
};

}  // namespace gossipd
