#include "net/http/certificate.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "net/peer/openssl_handles.h"
#include "net/peer/secret_file.h"

namespace gossipd {
namespace {

using openssl::Certificate;
using openssl::Key;
using Extension = openssl::Handle<X509_EXTENSION, X509_EXTENSION_free>;
using Memory = openssl::Bio;

Error failed(const std::string& what) {
  std::array<char, 256> why{};
  ERR_error_string_n(ERR_get_error(), why.data(), why.size());
  return Error{"certificate", what + ": " + why.data()};
}

std::string text_of(BIO* memory) {
  char* bytes = nullptr;
  const long length = BIO_get_mem_data(memory, &bytes);
  return {bytes, static_cast<std::size_t>(length)};
}

// "DNS:box1,IP:10.0.0.11", without names that a certificate cannot hold.
std::string alternative_names(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) {
    std::array<unsigned char, 16> address{};
    const bool is_address = ::inet_pton(AF_INET, name.c_str(), address.data()) == 1 ||
                            ::inet_pton(AF_INET6, name.c_str(), address.data()) == 1;
    const bool is_name =
        !name.empty() && name.find_first_not_of(
                             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") ==
                             std::string::npos;
    if (is_address || is_name)
      out += (out.empty() ? "" : ",") + std::string(is_address ? "IP:" : "DNS:") + name;
  }
  return out;
}

bool add_extension(X509* certificate, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

Certificate make_certificate(EVP_PKEY* key, const std::vector<std::string>& names) {
  Certificate certificate(X509_new());
  X509* x = certificate.get();
  std::uint64_t serial = 0;
  if (x == nullptr || RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) != 1)
    return nullptr;
  X509_NAME* subject = X509_get_subject_name(x);
  const bool made =
      X509_set_version(x, X509_VERSION_3) == 1 &&
      ASN1_INTEGER_set_uint64(X509_get_serialNumber(x), serial >> 1) == 1 &&
      X509_gmtime_adj(X509_getm_notBefore(x), -86'400) != nullptr &&  // clocks differ
      X509_time_adj_ex(X509_getm_notAfter(x), certificate_days, 0, nullptr) != nullptr &&
      X509_set_pubkey(x, key) == 1 &&
      X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>("gossipd"), -1, -1,
                                 0) == 1 &&
      X509_set_issuer_name(x, subject) == 1 &&
      add_extension(x, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
      add_extension(x, NID_subject_alt_name, alternative_names(names)) &&
      X509_sign(x, key, EVP_sha256()) > 0;
  return made ? std::move(certificate) : nullptr;
}

}  // namespace

std::optional<Error> ensure_certificate(const CertificateFiles& files,
                                        const std::vector<std::string>& names) {
  std::error_code ignored;
  if (std::filesystem::exists(files.certificate, ignored) &&
      std::filesystem::exists(files.key, ignored))
    return std::nullopt;
  const Key key(EVP_EC_gen("P-256"));
  if (!key) return failed("no key for " + files.certificate);
  const Certificate certificate = make_certificate(key.get(), names);
  const Memory certificate_text(BIO_new(BIO_s_mem())), key_text(BIO_new(BIO_s_mem()));
  if (!certificate || !certificate_text || !key_text ||
      PEM_write_bio_X509(certificate_text.get(), certificate.get()) != 1 ||
      PEM_write_bio_PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) !=
          1)
    return failed("cannot make " + files.certificate);
  // The key first: the certificate's presence implies both.
  if (auto error = write_secret_file(files.key, SecretText(text_of(key_text.get())), Replace::yes))
    return error;
  return write_secret_file(files.certificate, SecretText(text_of(certificate_text.get())),
                           Replace::yes);
}

Result<std::string> certificate_fingerprint(const std::string& path) {
  const Memory file(BIO_new_file(path.c_str(), "r"));
  const Certificate certificate(file ? PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr)
                                     : nullptr);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  if (!certificate || X509_digest(certificate.get(), EVP_sha256(), digest.data(), &length) != 1)
    return failed("no certificate can be read from " + path);
  std::string out;
  for (unsigned int i = 0; i < length; ++i) {
    std::array<char, 4> pair{};
    std::snprintf(pair.data(), pair.size(), i == 0 ? "%02X" : ":%02X", digest[i]);
    out += pair.data();
  }
  return out;
}

}  // namespace gossipd
