#include "net/peer/certificates.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "net/peer/openssl_handles.h"
#include "net/peer/secret_file.h"
#include "net/peer/tls.h"

namespace gossipd {
namespace {

void free_infos(STACK_OF(X509_INFO) * infos) { sk_X509_INFO_pop_free(infos, X509_INFO_free); }
using openssl::Certificate;
using openssl::Key;
using Infos = openssl::Handle<STACK_OF(X509_INFO), free_infos>;
using File = openssl::Bio;
using Check = openssl::Handle<X509_STORE_CTX, X509_STORE_CTX_free>;
using Context = std::shared_ptr<SSL_CTX>;

constexpr std::size_t subject_bytes_max = 200;
constexpr int soon_days = 7;

std::string openssl_reason() {
  const unsigned long error = ERR_peek_last_error();
  const char* reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  ERR_clear_error();
  return reason == nullptr ? "unknown reason" : reason;
}

Error bad(const char* setting, const std::string& file, const std::string& what) {
  ERR_clear_error();
  return Error{"certificate", std::string("peer_tls.") + setting + ": " + file + " " + what};
}

// Never asks on the terminal; there is none.
int no_passphrase(char* /*buffer*/, int /*size*/, int /*writing*/, void* /*data*/) { return -1; }

std::optional<Error> read_authorities(const std::string& file, SSL_CTX* context) {
  if (auto error = why_not_readable_now(file))
    return Error{error->code, "peer_tls.ca: " + error->text};
  const File in(BIO_new_file(file.c_str(), "r"));
  if (!in) return bad("ca", file, std::string("cannot be read: ") + std::strerror(errno));
  const Infos infos(PEM_X509_INFO_read_bio(in.get(), nullptr, &no_passphrase, nullptr));
  const int count = infos ? sk_X509_INFO_num(infos.get()) : 0;
  if (count > peer_authorities_max)
    return bad("ca", file,
               "holds more than " + std::to_string(peer_authorities_max) + " certificates");
  X509_STORE* store = SSL_CTX_get_cert_store(context);
  bool authority = false;
  // An authority below a root may be trusted by itself: not everything the root signs is a node of
  // this cluster.
  unsigned long flags = X509_V_FLAG_PARTIAL_CHAIN;
  for (int i = 0; i < count; ++i) {
    const X509_INFO* info = sk_X509_INFO_value(infos.get(), i);
    if (info->x509 != nullptr) {
      if (X509_check_ca(info->x509) == 0)
        return bad("ca", file,
                   "holds the certificate of " + printable_subject(info->x509) +
                       ", which is no authority's (CA:TRUE); name the file of the authority that "
                       "signs your nodes");
      if (X509_STORE_add_cert(store, info->x509) != 1)
        return bad("ca", file, "cannot be used: " + openssl_reason());
      authority = true;
    }
    if (info->crl != nullptr) {
      if (X509_STORE_add_crl(store, info->crl) != 1)
        return bad("ca", file, "cannot be used: " + openssl_reason());
      flags |= X509_V_FLAG_CRL_CHECK;
    }
  }
  if (!authority) return bad("ca", file, "holds no certificate in PEM form");
  X509_STORE_set_flags(store, flags);
  return std::nullopt;
}

std::optional<Error> read_chain(const std::string& file, SSL_CTX* context) {
  if (auto error = why_not_readable_now(file))
    return Error{error->code, "peer_tls.certificate: " + error->text};
  const File in(BIO_new_file(file.c_str(), "r"));
  if (!in) return bad("certificate", file, std::string("cannot be read: ") + std::strerror(errno));
  const Certificate own(PEM_read_bio_X509(in.get(), nullptr, &no_passphrase, nullptr));
  if (!own) return bad("certificate", file, "holds no certificate in PEM form");
  if (SSL_CTX_use_certificate(context, own.get()) != 1)
    return bad("certificate", file, "cannot be used: " + openssl_reason());
  for (int i = 0;; ++i) {
    const Certificate next(PEM_read_bio_X509(in.get(), nullptr, &no_passphrase, nullptr));
    if (!next) break;
    if (i == peer_chain_depth_max)
      return bad(
          "certificate", file,
          "holds more than " + std::to_string(peer_chain_depth_max) + " intermediate certificates");
    if (SSL_CTX_add1_chain_cert(context, next.get()) != 1)
      return bad("certificate", file, "cannot be used: " + openssl_reason());
  }
  ERR_clear_error();  // clears the end-of-file error
  return std::nullopt;
}

std::optional<Error> read_key(const PeerCertificateFiles& files, SSL_CTX* context) {
  const Result<SecretText> text = read_secret_file(files.key, SharedKeyFile::refuse);
  if (!text && text.error().code == "key-missing")
    return bad("key", files.key, "does not exist; it is the private key of " + files.certificate);
  if (!text) return Error{text.error().code, "peer_tls.key: " + text.error().text};
  const File in(BIO_new_mem_buf(text->text().data(), static_cast<int>(text->text().size())));
  const Key key(in ? PEM_read_bio_PrivateKey(in.get(), nullptr, &no_passphrase, nullptr) : nullptr);
  if (!key && ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_BAD_PASSWORD_READ)
    return bad("key", files.key,
               "is encrypted, and nobody is there to type its passphrase; decrypt it with: openssl "
               "pkey -in " +
                   files.key + " -out FILE");
  if (!key) return bad("key", files.key, "holds no private key in PEM form");
  if (X509_check_private_key(SSL_CTX_get0_certificate(context), key.get()) != 1)
    return bad("key", files.key, "is not the key of the certificate in " + files.certificate);
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1)
    return bad("key", files.key, "cannot be used: " + openssl_reason());
  return std::nullopt;
}

// nullopt if the authorities of `context` accept `certificate`.
std::optional<std::string> verify(SSL_CTX* context, X509* certificate, STACK_OF(X509) * others,
                                  int purpose, unsigned long flags) {
  const Check check(X509_STORE_CTX_new());
  if (!check ||
      X509_STORE_CTX_init(check.get(), SSL_CTX_get_cert_store(context), certificate, others) != 1)
    return openssl_reason();
  X509_VERIFY_PARAM* how = X509_STORE_CTX_get0_param(check.get());
  X509_VERIFY_PARAM_set_flags(how, flags);
  X509_VERIFY_PARAM_set_purpose(how, purpose);
  X509_VERIFY_PARAM_set_depth(how, peer_chain_depth_max);
  if (X509_verify_cert(check.get()) == 1) return std::nullopt;
  ERR_clear_error();
  return X509_verify_cert_error_string(X509_STORE_CTX_get_error(check.get()));
}

// Every node dials and is dialled, so its certificate must be valid for both.
std::optional<Error> check_own(const PeerCertificateFiles& files, SSL_CTX* context) {
  STACK_OF(X509)* chain = nullptr;
  SSL_CTX_get0_chain_certs(context, &chain);
  for (const auto& [purpose, name] : {std::pair(X509_PURPOSE_SSL_CLIENT, "client"),
                                      std::pair(X509_PURPOSE_SSL_SERVER, "server")}) {
    const auto objection = verify(context, SSL_CTX_get0_certificate(context), chain, purpose,
                                  X509_V_FLAG_NO_CHECK_TIME);
    if (objection)
      return bad(
          "certificate", files.certificate,
          "does not stand before " + files.ca + " as a TLS " + name + ": " + *objection +
              "; have that authority sign it, for extendedKeyUsage clientAuth and serverAuth");
  }
  return std::nullopt;
}

// Each name once, with what `until` says lasts longest. Without an end it lasts for ever.
template <typename T>
using Lasting = std::vector<std::pair<const X509_NAME*, const T*>>;
template <typename T>
void keep_longest(Lasting<T>& kept, const X509_NAME* name, const T* one,
                  const ASN1_TIME* (*until)(const T*)) {
  const auto same =
      std::ranges::find_if(kept, [&](const auto& k) { return X509_NAME_cmp(k.first, name) == 0; });
  if (same == kept.end()) return kept.emplace_back(name, one), void();
  const ASN1_TIME* const end = until(one);
  const ASN1_TIME* const before = until(same->second);
  if (before != nullptr && (end == nullptr || ASN1_TIME_compare(end, before) > 0))
    same->second = one;
}

// How it stands with what is valid between these; nullopt: well, for the next days.
std::optional<std::string> trouble(const ASN1_TIME* from, const ASN1_TIME* until) {
  if (from != nullptr && X509_cmp_current_time(from) > 0) return " is not valid yet";
  if (until == nullptr) return std::nullopt;
  if (X509_cmp_current_time(until) <= 0) return " has expired";
  int days = 0, rest_s = 0;
  if (ASN1_TIME_diff(&days, &rest_s, nullptr, until) != 1 || days >= soon_days) return std::nullopt;
  return days == 0 ? " expires within a day"
                   : " expires in " + std::to_string(days) + (days == 1 ? " day" : " days");
}

std::string printable_name(const X509_NAME* name) {
  std::array<char, subject_bytes_max> text{};
  if (X509_NAME_oneline(name, text.data(), static_cast<int>(text.size())) == nullptr) return "?";
  std::string out = text.data();
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < 0x20 || c > 0x7e || c == '"'; }, '?');
  return out;
}

}  // namespace

std::string printable_subject(X509* certificate) {
  return certificate == nullptr ? "?" : printable_name(X509_get_subject_name(certificate));
}

Result<PeerCertificates> PeerCertificates::read(const PeerCertificateFiles& files) {
  ERR_clear_error();
  const Context context(SSL_CTX_new(TLS_method()), SSL_CTX_free);
  GOSSIPD_ASSERT(context != nullptr);
  require_fresh_tls_1_3(context.get());
  SSL_CTX_set_mode(context.get(), SSL_MODE_NO_AUTO_CHAIN);  // sends exactly what the file holds
  SSL_CTX_set_verify_depth(context.get(), peer_chain_depth_max);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                     &remember_refused_certificate);
  if (auto error = read_authorities(files.ca, context.get())) return *error;
  if (auto error = read_chain(files.certificate, context.get())) return *error;
  if (auto error = read_key(files, context.get())) return *error;
  if (auto error = check_own(files, context.get())) return *error;
  return PeerCertificates(context, printable_subject(SSL_CTX_get0_certificate(context.get())));
}

std::optional<std::string> PeerCertificates::objection(SSL* session) const {
  X509* peer = SSL_get0_peer_certificate(session);
  if (peer == nullptr) return "it showed none";
  const int purpose =
      SSL_is_server(session) == 1 ? X509_PURPOSE_SSL_CLIENT : X509_PURPOSE_SSL_SERVER;
  const auto objection = verify(context_.get(), peer, SSL_get0_verified_chain(session), purpose, 0);
  return objection ? std::optional(printable_subject(peer) + ": " + *objection) : std::nullopt;
}

std::optional<std::string> PeerCertificates::out_of_date() const {
  const X509* own = SSL_CTX_get0_certificate(context_.get());
  const bool early = X509_cmp_current_time(X509_get0_notBefore(own)) > 0;
  if (!early && X509_cmp_current_time(X509_get0_notAfter(own)) > 0) return std::nullopt;
  return "peer_tls.certificate: " + subject_ + (early ? " is not valid yet" : " has expired") +
         ": peers will refuse it; renew it, or set the clock of this machine, and start again";
}

std::vector<std::string> PeerCertificates::date_warnings() const {
  std::vector<std::string> out;
  const X509* own = SSL_CTX_get0_certificate(context_.get());
  if (auto now = out_of_date())
    out.push_back(std::move(*now));
  else if (const auto soon = trouble(nullptr, X509_get0_notAfter(own)))
    out.push_back("peer_tls.certificate: " + subject_ + *soon +
                  ": then peers will refuse it; renew it and send SIGHUP to gossipd");
  Lasting<X509> authorities;
  Lasting<X509_CRL> lists;
  const STACK_OF(X509_OBJECT)* trusted =
      X509_STORE_get0_objects(SSL_CTX_get_cert_store(context_.get()));
  for (int i = 0; i < sk_X509_OBJECT_num(trusted); ++i) {
    X509_OBJECT* object = sk_X509_OBJECT_value(trusted, i);
    if (const X509* authority = X509_OBJECT_get0_X509(object))
      keep_longest(authorities, X509_get_subject_name(authority), authority, &X509_get0_notAfter);
    if (const X509_CRL* list = X509_OBJECT_get0_X509_CRL(object))
      keep_longest(lists, X509_CRL_get_issuer(list), list, &X509_CRL_get0_nextUpdate);
  }
  for (const auto& [name, authority] : authorities)
    if (const auto wrong = trouble(X509_get0_notBefore(authority), X509_get0_notAfter(authority)))
      out.push_back("peer_tls.ca: the authority " + printable_name(name) + *wrong +
                    ": out of date, it makes nodes refuse whatever it signed; put its successor "
                    "into that file on every node, renew the certificates, then take it out");
  for (const auto& [name, list] : lists)
    if (const auto wrong = trouble(X509_CRL_get0_lastUpdate(list), X509_CRL_get0_nextUpdate(list)))
      out.push_back("peer_tls.ca: the revocation list of " + printable_name(name) + *wrong +
                    ": out of date, it makes nodes refuse every certificate of that authority; "
                    "put a newer one (openssl ca -gencrl) in its place on every node and send "
                    "SIGHUP to gossipd, or set the clock of this machine");
  return out;
}

}  // namespace gossipd
