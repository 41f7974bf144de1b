// net/peer/certificates.h - certificates of the operator's authority: the alternative to a key as
// proof of membership.
//
// Each node has a private key and an X.509 certificate (v3, for TLS client and server) that the
// authority signed. Both ends of a session verify the other's against that authority only. Names
// are not compared, since nodes move: every holder of a certificate from the authority is a member.
// The authority's file may hold several (to replace one while running) and their revocation lists.
// They are asked about the nodes' own certificates, not about intermediate authorities.
// A list that is out of date refuses every certificate of its authority, as it may lack a name.
// Files are read once; a shared value, any thread.
#pragma once

#include <openssl/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"

namespace gossipd {

struct PeerCertificateFiles {
  // PEM: one or more authorities, optionally with revocation lists, then one for each
  std::string ca;
  std::string certificate;  // PEM: the node's own first, then intermediate authorities
  std::string key;          // PEM, not encrypted, readable by its owner only
};

inline constexpr int peer_chain_depth_max = 4;   // intermediate authorities
inline constexpr int peer_authorities_max = 64;  // certificates and revocation lists in one file

class PeerCertificates {
 public:
  // Reads the three files and verifies the node's own certificate as a peer will, except for the
  // time, which may be wrong at boot. Error "certificate" names the setting, the file and the
  // remedy; "io-error": a file cannot be read, which may pass.
  [[nodiscard]] static Result<PeerCertificates> read(const PeerCertificateFiles& files);

  // TLS 1.3 with these; copy the handle. Never null.
  [[nodiscard]] SSL_CTX* context() const { return context_.get(); }
  // of the node's own certificate, printable
  [[nodiscard]] const std::string& subject() const { return subject_; }
  // Why the peer of a session verified earlier would be refused now, or nullopt.
  [[nodiscard]] std::optional<std::string> objection(SSL* session) const;
  // A sentence if the node's own certificate is not valid now.
  [[nodiscard]] std::optional<std::string> out_of_date() const;
  // A sentence on each thing that is out of date now or will be within a week: that certificate, an
  // authority, a revocation list. Of several of one authority the one that lasts longest counts.
  [[nodiscard]] std::vector<std::string> date_warnings() const;

 private:
  PeerCertificates(std::shared_ptr<SSL_CTX> context, std::string subject)
      : context_(std::move(context)), subject_(std::move(subject)) {}

  std::shared_ptr<SSL_CTX> context_;
  std::string subject_;
};

// The subject's name, for logs: bounded printable ASCII, since it comes from outside.
[[nodiscard]] std::string printable_subject(X509* certificate);

}  // namespace gossipd
