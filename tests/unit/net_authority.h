// tests/unit/net_authority.h - an authority that signs and revokes certificates for tests, like an
// operator's.
#pragma once

#include <doctest/doctest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "net/peer/certificates.h"

namespace gossipd::test {

struct FreeOpenSsl {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_CRL* list) const { X509_CRL_free(list); }
};

// What a test varies of a certificate.
struct Wanted {
  long from_s = -3600;  // from now
  long until_s = 3600;
  const char* purposes = "clientAuth,serverAuth";
};

class Authority {
 public:
  // `above` signs it; null: self-signed. Its certificate is ca().
  Authority(const std::filesystem::path& folder, const std::string& name,
            const Authority* above = nullptr)
      : folder_(folder), name_(name) {
    key_.reset(EVP_EC_gen("P-256"));
    certificate_ = make(key_.get(), name, above == nullptr ? *this : *above, {}, true);
    write(ca(), [this](std::FILE* file) { return PEM_write_X509(file, certificate_.get()); });
  }

  [[nodiscard]] std::string ca() const { return (folder_ / (name_ + ".ca.pem")).string(); }

  // Files of a node that this authority signed for, to be verified against `trusted` (this one's
  // own unless given).
  PeerCertificateFiles issue(const std::string& node, const Wanted& wanted = {},
                             const Authority* trusted = nullptr) {
    const std::unique_ptr<EVP_PKEY, FreeOpenSsl> key(EVP_EC_gen("P-256"));
    last_ = make(key.get(), node, *this, wanted, false);
    const PeerCertificateFiles files{(trusted == nullptr ? *this : *trusted).ca(),
                                     (folder_ / (node + ".pem")).string(),
                                     (folder_ / (node + ".key")).string()};
    write(files.certificate, [&](std::FILE* file) {
      const bool below = trusted != nullptr && trusted != this;
      return PEM_write_X509(file, last_.get()) == 1 &&
             (!below || PEM_write_X509(file, certificate_.get()) == 1);
    });
    write(files.key, [&](std::FILE* file) {
      return PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
    REQUIRE(::chmod(files.key.c_str(), 0600) == 0);
    return files;
  }

  // Appends a list to ca() that revokes the last certificate issued, valid for so long from now.
  void revoke_last(long until_s = 3600) {
    const std::unique_ptr<X509_CRL, FreeOpenSsl> list(X509_CRL_new());
    REQUIRE(X509_CRL_set_version(list.get(), X509_CRL_VERSION_2) == 1);
    REQUIRE(X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(certificate_.get())) == 1);
    ASN1_TIME* time = ASN1_TIME_new();
    REQUIRE(X509_CRL_set1_lastUpdate(list.get(), X509_gmtime_adj(time, -7200)) == 1);
    X509_REVOKED* revoked = X509_REVOKED_new();
    REQUIRE(X509_REVOKED_set_serialNumber(revoked, X509_get_serialNumber(last_.get())) == 1);
    REQUIRE(X509_REVOKED_set_revocationDate(revoked, time) == 1);
    REQUIRE(X509_CRL_add0_revoked(list.get(), revoked) == 1);
    REQUIRE(X509_CRL_set1_nextUpdate(list.get(), X509_gmtime_adj(time, until_s)) == 1);
    ASN1_TIME_free(time);
    REQUIRE(X509_CRL_sign(list.get(), key_.get(), EVP_sha256()) > 0);
    write(
        ca(), [&](std::FILE* file) { return PEM_write_X509_CRL(file, list.get()); }, "a");
  }

 private:
  using Certificate = std::unique_ptr<X509, FreeOpenSsl>;

  static void extend(X509* certificate, int kind, const char* value) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value);
    REQUIRE(extension != nullptr);
    REQUIRE(X509_add_ext(certificate, extension, -1) == 1);
    X509_EXTENSION_free(extension);
  }

  static Certificate make(EVP_PKEY* key, const std::string& name, const Authority& signer,
                          const Wanted& wanted, bool authority) {
    static long serial = 0;
    Certificate made(X509_new());
    X509* x = made.get();
    X509_set_version(x, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(x), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(x), wanted.from_s);
    X509_gmtime_adj(X509_getm_notAfter(x), wanted.until_s);
    X509_set_pubkey(x, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(
        x, X509_get_subject_name(signer.certificate_ ? signer.certificate_.get() : x));
    extend(x, NID_basic_constraints, authority ? "critical,CA:TRUE" : "CA:FALSE");
    if (!authority) extend(x, NID_ext_key_usage, wanted.purposes);
    REQUIRE(X509_sign(x, signer.key_.get(), EVP_sha256()) > 0);
    return made;
  }

  static void write(const std::string& path, const auto& put, const char* mode = "w") {
    std::FILE* file = std::fopen(path.c_str(), mode);
    REQUIRE(file != nullptr);
    const bool written = put(file);
    REQUIRE((std::fclose(file) == 0 && written));
  }

  std::filesystem::path folder_;
  std::string name_;
  std::unique_ptr<EVP_PKEY, FreeOpenSsl> key_;
  Certificate certificate_;
  Certificate last_;
};

inline PeerCertificates certificates(const PeerCertificateFiles& files) {
  const auto read = PeerCertificates::read(files);
  REQUIRE_MESSAGE(read, (read ? "" : read.error().text));
  return *read;
}

}  // namespace gossipd::test
