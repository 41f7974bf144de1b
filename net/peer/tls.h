// net/peer/tls.h - TLS 1.3 between peers: with a key of the cluster as external pre-shared key, or
// with certificates of its authority.
//
// Always with ephemeral key exchange (so a key that leaks later opens no recorded traffic), no
// tickets, no early data; with a key one cipher suite (its hash must be the PSK's). A peer that
// offers the one where the other is asked for is refused twice over: nothing is trusted, and
// proved() is asked after the handshake. Includes Asio: for the sources of net alone.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "net/peer/certificates.h"
#include "net/peer/keyring.h"

namespace gossipd {

// What one handshake learnt on the way, for the sentence about its failure.
struct TlsAttempt {
  std::uint64_t key = 0;         // outbound: to offer; inbound: that the peer offered and we hold
  std::string identity;          // outbound: of that key
  std::string unknown_identity;  // inbound: the peer named this key, not ours
  std::string refused_certificate;  // whose it is and what is wrong with it
};

// Nothing before TLS 1.3, and each session from the start: no tickets, no cache.
void require_fresh_tls_1_3(SSL_CTX* context);
// OpenSSL's verify callback: notes in the TlsAttempt what was wrong, and changes nothing.
int remember_refused_certificate(int good, X509_STORE_CTX* chain);

class TlsContext {
 public:
  explicit TlsContext(Keyring keys);
  explicit TlsContext(PeerCertificates certificates);
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  [[nodiscard]] boost::asio::ssl::context& context() { return context_; }
  [[nodiscard]] bool has_keys() const { return keys_.has_value(); }  // no: certificates
  // What to dial with, one after the other; with certificates the one word that no key is offered.
  [[nodiscard]] std::vector<std::uint64_t> keys_to_offer() const;
  void set_keys(Keyring keys);  // of handshakes from now on; for a context that has keys
  // `attempt` must outlive the handshake.
  static void attach(SSL* ssl, TlsAttempt& attempt);
  // After a handshake: the peer holds a key that is still ours, or a certificate of the authority.
  [[nodiscard]] bool proved(SSL* ssl, const TlsAttempt& attempt) const;
  // For errors of OpenSSL's own: {"wrong-key", …}, {"wrong-certificate", …} or {"tls", …}.
  [[nodiscard]] Error explain(const boost::system::error_code& error, const TlsAttempt& attempt,
                              bool outbound) const;

 private:
  friend struct PskCallbacks;
  [[nodiscard]] Error explain_key(const boost::system::error_code& error, const TlsAttempt& attempt,
                                  bool outbound) const;
  [[nodiscard]] Error explain_certificate(const boost::system::error_code& error,
                                          const TlsAttempt& attempt) const;

  std::optional<Keyring> keys_;  // one of the two
  std::optional<PeerCertificates> certificates_;
  boost::asio::ssl::context context_;
};

}  // namespace gossipd
