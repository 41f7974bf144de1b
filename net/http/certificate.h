// net/http/certificate.h - the certificate of REST under TLS.
//
// An operator may provide one (PEM). Otherwise the daemon makes a self-signed one; clients that
// hold a copy of it (gossipctl --ca-file, curl --cacert) recognise the daemon. Handles only files;
// the key's has mode 0600.
#pragma once

#include <string>
#include <vector>

#include "core/base/result.h"

namespace gossipd {

struct CertificateFiles {
  std::string certificate;  // PEM; the node's own first, then its signers
  std::string key;          // PEM, not encrypted
};

inline constexpr int certificate_days = 3650;

// Makes an ECDSA key (P-256) and a certificate for `names` (host names and IP addresses), where the
// files are not there. A certificate made here that is out of date, as after it was made while the
// clock was wrong, or that lacks a name is made anew with its key: for its names as well, and valid
// for no less long. Where one is damaged or its key does not fit, both files are set aside as
// *.corrupt and made anew. Returns why, or "". Errors "certificate" (OpenSSL's reason, or this user
// may not read them), "io-error" (may pass), and those of write_secret_file().
[[nodiscard]] Result<std::string> ensure_certificate(const CertificateFiles& files,
                                                     const std::vector<std::string>& names);

// SHA-256 of a file's first certificate, as "AB:CD:…". Errors "certificate", "io-error"
// (may pass).
[[nodiscard]] Result<std::string> certificate_fingerprint(const std::string& path);

}  // namespace gossipd
