// net/peer/tls.h - TLS 1.3 between peers: with a cluster key as external pre-shared key, or with
// certificates of its authority.
//
// Always with ephemeral key exchange (so a key that leaks later opens no recorded traffic), without
// tickets and early data; with a key there is one cipher suite (its hash must be the PSK's). A peer
// that offers the wrong kind of proof is refused twice: nothing is trusted, and proved() is checked
// after the handshake. Includes Asio: for the sources of net only.
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

// What one handshake has learnt, for the sentence about its failure.
struct TlsAttempt {
  std::uint64_t key = 0;         // outbound: offered; inbound: offered by the peer and held by us
  std::string identity;          // outbound: of that key
  std::string unknown_identity;  // inbound: the peer named this key, not ours
  std::string refused_certificate;  // its subject and its defect
  std::string way_out;              // of that defect
};

// At least TLS 1.3, every session from the start: no tickets, no cache.
void require_fresh_tls_1_3(SSL_CTX* context);
// OpenSSL's verify callback: notes the defect in the TlsAttempt and changes nothing.
int remember_refused_certificate(int good, X509_STORE_CTX* chain);

class TlsContext {
 public:
  explicit TlsContext(Keyring keys);
  explicit TlsContext(PeerCertificates certificates);
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  [[nodiscard]] boost::asio::ssl::context& context() { return context_; }
  [[nodiscard]] bool has_keys() const { return keys_.has_value(); }  // otherwise certificates
  // The keys to dial with, in order; with certificates a single 0, which offers none.
  [[nodiscard]] std::vector<std::uint64_t> keys_to_offer() const;
  void set_keys(Keyring keys);  // for later handshakes; only for a context that has keys
  // A session under that key may go on; always so with certificates.
  [[nodiscard]] bool accepts(std::uint64_t key) const {
    return !keys_ || keys_->find(key) != nullptr;
  }
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

  std::optional<Keyring> keys_;  // either keys or certificates
  std::optional<PeerCertificates> certificates_;
  boost::asio::ssl::context context_;
};

}  // namespace gossipd
