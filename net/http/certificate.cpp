#include "net/http/certificate.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
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
using Names = openssl::Handle<GENERAL_NAMES, GENERAL_NAMES_free>;

constexpr const char* common_name = "gossipd";
constexpr std::size_t names_max = 32;  // as addresses come and go

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

std::string address_name(int family, const unsigned char* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(family, address, text.data(), text.size());
  return std::string("IP:") + text.data();
}

// As "DNS:box1" or "IP:10.0.0.11"; nothing for a name that a certificate cannot hold.
std::optional<std::string> alternative_name(const std::string& name) {
  std::array<unsigned char, 16> address{};
  for (const int family : {AF_INET, AF_INET6})
    if (::inet_pton(family, name.c_str(), address.data()) == 1)
      return address_name(family, address.data());
  const bool is_name =
      !name.empty() &&
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") ==
          std::string::npos;
  return is_name ? std::optional("DNS:" + name) : std::nullopt;
}

std::vector<std::string> alternative_names(X509* certificate) {
  std::vector<std::string> out;
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    int kind = 0;
    const auto* value = static_cast<const ASN1_STRING*>(
        GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names.get(), i), &kind));
    if (kind != GEN_DNS && kind != GEN_IPADD) continue;
    const unsigned char* bytes = ASN1_STRING_get0_data(value);
    const int length = ASN1_STRING_length(value);
    if (kind == GEN_DNS)
      out.push_back("DNS:" + std::string(bytes, bytes + length));
    else if (length == 4 || length == 16)
      out.push_back(address_name(length == 4 ? AF_INET : AF_INET6, bytes));
  }
  return out;
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ",") + name;
  return out;
}

Certificate read_certificate(const std::string& path) {
  const Memory file(BIO_new_file(path.c_str(), "r"));
  return Certificate(file ? PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr) : nullptr);
}

Key read_key(const std::string& path) {
  const Memory file(BIO_new_file(path.c_str(), "r"));
  return Key(file ? PEM_read_bio_PrivateKey(file.get(), nullptr, nullptr, nullptr) : nullptr);
}

bool is_self_made(X509* certificate) {
  std::array<char, 64> subject{};
  X509_NAME* const name = X509_get_subject_name(certificate);
  return X509_NAME_oneline(name, subject.data(), subject.size()) != nullptr &&
         subject.data() == std::string("/CN=") + common_name &&
         X509_NAME_cmp(name, X509_get_issuer_name(certificate)) == 0;
}

// Why that certificate is made anew; empty: it is not.
std::string defect_of(X509* certificate, const std::vector<std::string>& wanted) {
  if (!is_self_made(certificate)) return "";
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) return "has expired";
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) return "is not valid yet";
  const std::vector<std::string> has = alternative_names(certificate);
  for (const std::string& name : wanted)
    if (std::ranges::find(has, name) == has.end()) return "does not name " + name;
  return "";
}

// Why neither can be used, as after a crash of the machine; empty: they can, or somebody else has
// made them. An error where they cannot be read at the moment, or by this user.
Result<std::string> damage_of(const CertificateFiles& files, X509* certificate) {
  for (const std::string& path : {files.certificate, files.key}) {
    if (auto error = why_not_readable_now(path)) return *error;
    if (::access(path.c_str(), R_OK) != 0)
      return Error{"certificate", path + " cannot be read: " + std::strerror(errno)};
  }
  if (certificate == nullptr) return std::string("is damaged");
  if (!is_self_made(certificate)) return std::string();
  const Key key = read_key(files.key);
  const bool fits = key && X509_check_private_key(certificate, key.get()) == 1;
  return std::string(fits ? "" : "has no key that fits");
}

// For a person to look at. What does not go away is written over.
void set_aside(const CertificateFiles& files) {
  for (const std::string& path : {files.certificate, files.key})
    (void)std::rename(path.c_str(), (path + ".corrupt").c_str());
}

bool add_extension(X509* certificate, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// `before`: the one whose place it takes, or null. Its beginning is long ago and its end no earlier
// than before, so whatever this machine's clock says now, a client with a right one accepts it.
Certificate make_certificate(EVP_PKEY* key, const std::vector<std::string>& names, X509* before) {
  Certificate certificate(X509_new());
  X509* x = certificate.get();
  std::uint64_t serial = 0;
  if (x == nullptr || RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) != 1)
    return nullptr;
  X509_NAME* subject = X509_get_subject_name(x);
  const bool made =
      X509_set_version(x, X509_VERSION_3) == 1 &&
      ASN1_INTEGER_set_uint64(X509_get_serialNumber(x), serial >> 1) == 1 &&
      ASN1_TIME_set(X509_getm_notBefore(x), 0) != nullptr &&
      X509_time_adj_ex(X509_getm_notAfter(x), certificate_days, 0, nullptr) != nullptr &&
      X509_set_pubkey(x, key) == 1 &&
      X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>(common_name), -1, -1,
                                 0) == 1 &&
      X509_set_issuer_name(x, subject) == 1 &&
      add_extension(x, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
      add_extension(x, NID_subject_alt_name, joined(names)) &&
      (before == nullptr ||
       ASN1_TIME_compare(X509_get0_notAfter(before), X509_get0_notAfter(x)) <= 0 ||
       X509_set1_notAfter(x, X509_get0_notAfter(before)) == 1) &&
      X509_sign(x, key, EVP_sha256()) > 0;
  return made ? std::move(certificate) : nullptr;
}

}  // namespace

Result<std::string> ensure_certificate(const CertificateFiles& files,
                                       const std::vector<std::string>& names) {
  std::error_code ignored;
  const bool is_there = std::filesystem::exists(files.certificate, ignored) &&
                        std::filesystem::exists(files.key, ignored);
  std::vector<std::string> wanted;
  for (const std::string& name : names)
    if (auto held = alternative_name(name);
        held && std::ranges::find(wanted, *held) == wanted.end())
      wanted.push_back(std::move(*held));
  Certificate before = is_there ? read_certificate(files.certificate) : nullptr;
  std::string defect = before ? defect_of(before.get(), wanted) : "";
  const Result<std::string> damage = is_there ? damage_of(files, before.get()) : std::string();
  if (!damage) return damage.error();
  if (!damage->empty()) {
    set_aside(files);
    before.reset();
    defect = *damage;
  } else if (is_there && defect.empty()) {
    return std::string();
  }
  if (before)
    for (std::string& name : alternative_names(before.get()))
      if (wanted.size() < names_max && std::ranges::find(wanted, name) == wanted.end())
        wanted.push_back(std::move(name));
  const Key key = before ? read_key(files.key) : Key(EVP_EC_gen("P-256"));
  if (!key) return failed("no key for " + files.certificate);
  const Certificate certificate = make_certificate(key.get(), wanted, before.get());
  const Memory certificate_text(BIO_new(BIO_s_mem())), key_text(BIO_new(BIO_s_mem()));
  if (!certificate || !certificate_text || !key_text ||
      PEM_write_bio_X509(certificate_text.get(), certificate.get()) != 1 ||
      PEM_write_bio_PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) !=
          1)
    return failed("cannot make " + files.certificate);
  // The key first: the certificate's presence implies both.
  if (!before)
    if (auto error =
            write_secret_file(files.key, SecretText(text_of(key_text.get())), Replace::yes))
      return *error;
  if (auto error = write_secret_file(files.certificate, SecretText(text_of(certificate_text.get())),
                                     Replace::yes))
    return *error;
  return defect;
}

Result<std::string> certificate_fingerprint(const std::string& path) {
  if (auto error = why_not_readable_now(path)) return *error;
  const Certificate certificate = read_certificate(path);
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
