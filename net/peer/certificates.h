// net/peer/certificates.h - certificates of the operator's own authority: the other way, beside a
// key, to prove who belongs to a cluster.
//
// Each node has a private key and an X.509 certificate (v3, for TLS client and server) that the
// authority signed. Both ends of a session verify the other's against that authority alone; the
// names in it are not compared with anything, since nodes move: whoever the authority signed for is
// a member. Its file may hold several authorities (to change one at work) and their revocation
// lists. Files are read once; a shared value, any thread.
#pragma once

#include <openssl/types.h>

#include <memory>
#include <optional>
#include <string>

#include "core/base/result.h"

namespace gossipd {

struct PeerCertificateFiles {
  // PEM: the authority's certificate, perhaps several, perhaps with revocation lists (then of each
  // of them)
  std::string ca;
  std::string certificate;  // PEM: the node's own first, then intermediate authorities
  std::string key;          // PEM, not encrypted, readable by its owner only
};

inline constexpr int peer_chain_depth_max = 4;   // intermediate authorities
inline constexpr int peer_authorities_max = 64;  // certificates and revocation lists in one file

class PeerCertificates {
 public:
  // Reads the three and holds the node's own certificate against the authority as a peer will, but
  // for the time, which may be wrong at boot. Error "certificate" names the setting, the file and
  // the way out.
  [[nodiscard]] static Result<PeerCertificates> read(const PeerCertificateFiles& files);

  // TLS 1.3 with these, to copy the handle of. Never null.
  [[nodiscard]] SSL_CTX* context() const { return context_.get(); }
  // of the own one, printable
  [[nodiscard]] const std::string& subject() const { return subject_; }
  // Why the peer of a session that was verified once would not be accepted now; nullopt if it
  // would.
  [[nodiscard]] std::optional<std::string> objection(SSL* session) const;
  // A sentence if the own certificate is not valid now.
  [[nodiscard]] std::optional<std::string> out_of_date() const;

 private:
  PeerCertificates(std::shared_ptr<SSL_CTX> context, std::string subject)
      : context_(std::move(context)), subject_(std::move(subject)) {}

  std::shared_ptr<SSL_CTX> context_;
  std::string subject_;
};

// Whose it is, for logs: the name comes from outside, so printable ASCII of bounded length.
[[nodiscard]] std::string printable_subject(X509* certificate);

}  // namespace gossipd
