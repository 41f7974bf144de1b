#include "net/peer/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <string_view>

namespace gossipd {

namespace asio = boost::asio;

namespace {

constexpr std::string_view identity_prefix = "gossipd-";
constexpr const char* cipher_suite = "TLS_AES_128_GCM_SHA256";
// A server that verifies its peer resumes a session only in the context that the session names.
constexpr unsigned char session_context[] = {'g', 'o', 's', 's', 'i', 'p', 'd'};
constexpr unsigned char cipher_suite_id[2] = {0x13, 0x01};
constexpr std::size_t identity_shown_max = 64;

// app_data belongs to Asio, so our data has separate slots.
int context_slot() {
  static const int slot = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return slot;
}
int attempt_slot() {
  static const int slot = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return slot;
}

// The identity comes from the peer and goes to logs: only printable ASCII.
std::string printable(const unsigned char* text, std::size_t length) {
  std::string out(reinterpret_cast<const char*>(text), std::min(length, identity_shown_max));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return out;
}

SSL_SESSION* make_session(SSL* ssl, const ClusterKey& key) {
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, cipher_suite_id);
  SSL_SESSION* session = SSL_SESSION_new();
  const bool ok =
      cipher != nullptr && session != nullptr &&
      SSL_SESSION_set1_master_key(session,
                                  reinterpret_cast<const unsigned char*>(key.secret.data()),
                                  key.secret.size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
      SSL_SESSION_set1_id_context(session, session_context, sizeof session_context) == 1;
  if (ok) return session;
  SSL_SESSION_free(session);
  return nullptr;
}

std::string identity_of(std::uint64_t key) { return std::string(identity_prefix) + to_hex(key); }

// Nothing if the identity names none of our keys.
const ClusterKey* key_named(const Keyring& keys, const unsigned char* identity,
                            std::size_t length) {
  const std::string_view name(reinterpret_cast<const char*>(identity), length);
  std::uint64_t id = 0;
  if (!name.starts_with(identity_prefix) || name.size() != identity_prefix.size() + 16)
    return nullptr;
  if (!from_hex(std::string(name.substr(identity_prefix.size())), id) || identity_of(id) != name)
    return nullptr;
  return keys.find(id);
}

bool says_wrong_key(int reason) {
  return reason == SSL_R_BINDER_DOES_NOT_VERIFY || reason == SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE ||
         reason == SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER ||
         reason == SSL_R_TLSV1_ALERT_DECRYPT_ERROR ||
         reason == SSL_R_TLSV1_ALERT_UNKNOWN_PSK_IDENTITY;
}

// A server with only a key meets a client that offers none.
bool says_no_key_offered(int reason) {
  return reason == SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM || reason == SSL_R_NO_SUITABLE_KEY_SHARE ||
         reason == SSL_R_NO_SHARED_CIPHER;
}

bool says_wrong_certificate(int reason) {
  return reason == SSL_R_TLSV1_ALERT_UNKNOWN_CA || reason == SSL_R_SSLV3_ALERT_BAD_CERTIFICATE ||
         reason == SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED ||
         reason == SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED ||
         reason == SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN ||
         reason == SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE;
}

std::string way_out_of(int defect) {
  switch (defect) {
    case X509_V_ERR_CERT_NOT_YET_VALID:
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "it is to be renewed, or this machine's clock is wrong";
    case X509_V_ERR_CRL_NOT_YET_VALID:
    case X509_V_ERR_CRL_HAS_EXPIRED:
      return "the revocation list in this node's peer_tls.ca is out of date, so every certificate "
             "of "
             "that authority is refused: put a newer one there and send SIGHUP to gossipd, or this "
             "machine's clock is wrong";
    case X509_V_ERR_UNABLE_TO_GET_CRL:
      return "this node's peer_tls.ca has a revocation list of another authority, so it needs one "
             "of "
             "each: append that of the authority which signed it and send SIGHUP to gossipd";
    default: return "both need a valid certificate of the authority in peer_tls.ca";
  }
}

}  // namespace

struct PskCallbacks {
  static const TlsContext& owner(SSL* ssl) {
    return *static_cast<const TlsContext*>(
        SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), context_slot()));
  }

  static TlsAttempt& attempt_of(SSL* ssl) {
    return *static_cast<TlsAttempt*>(SSL_get_ex_data(ssl, attempt_slot()));
  }

  // The dialling side: which key to offer. The identity must outlive the call.
  static int use(SSL* ssl, const EVP_MD* /*hash*/, const unsigned char** id, std::size_t* id_bytes,
                 SSL_SESSION** session) {
    TlsAttempt& attempt = attempt_of(ssl);
    const ClusterKey* key = owner(ssl).keys_->find(attempt.key);
    if (key == nullptr) return 0;  // retired in the meantime
    attempt.identity = identity_of(key->id);
    *session = make_session(ssl, *key);
    *id = reinterpret_cast<const unsigned char*>(attempt.identity.data());
    *id_bytes = attempt.identity.size();
    return *session != nullptr ? 1 : 0;
  }

  // The accepting side: the key of that name. Without one the handshake fails later for want of a
  // certificate, which the peer sees as an alert.
  static int find(SSL* ssl, const unsigned char* id, std::size_t id_bytes, SSL_SESSION** session) {
    TlsAttempt& attempt = attempt_of(ssl);
    const ClusterKey* key = key_named(*owner(ssl).keys_, id, id_bytes);
    *session = nullptr;
    if (key == nullptr) {
      attempt.unknown_identity = printable(id, id_bytes);
      return 1;
    }
    attempt.key = key->id;
    *session = make_session(ssl, *key);
    return *session != nullptr ? 1 : 0;
  }
};

void require_fresh_tls_1_3(SSL_CTX* context) {
  GOSSIPD_ASSERT(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1);
  GOSSIPD_ASSERT(SSL_CTX_set_num_tickets(context, 0) == 1);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
}

int remember_refused_certificate(int good, X509_STORE_CTX* chain) {
  auto* ssl =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(chain, SSL_get_ex_data_X509_STORE_CTX_idx()));
  if (good == 1 || ssl == nullptr) return good;
  auto* attempt = static_cast<TlsAttempt*>(SSL_get_ex_data(ssl, attempt_slot()));
  if (attempt == nullptr) return good;
  const int defect = X509_STORE_CTX_get_error(chain);
  attempt->refused_certificate = printable_subject(X509_STORE_CTX_get0_cert(chain)) + ": " +
                                 X509_verify_cert_error_string(defect);
  attempt->way_out = way_out_of(defect);
  return good;
}

TlsContext::TlsContext(Keyring keys) : keys_(std::move(keys)), context_(asio::ssl::context::tls) {
  SSL_CTX* handle = context_.native_handle();
  require_fresh_tls_1_3(handle);
  GOSSIPD_ASSERT(SSL_CTX_set_ciphersuites(handle, cipher_suite) == 1);
  GOSSIPD_ASSERT(SSL_CTX_set_ex_data(handle, context_slot(), this) == 1);
  GOSSIPD_ASSERT(SSL_CTX_set_session_id_context(handle, session_context, sizeof session_context) ==
                 1);
  SSL_CTX_set_psk_use_session_callback(handle, &PskCallbacks::use);
  SSL_CTX_set_psk_find_session_callback(handle, &PskCallbacks::find);
  context_.set_verify_mode(asio::ssl::verify_peer);  // and no authority is trusted
}

TlsContext::TlsContext(PeerCertificates certificates)
    : certificates_(std::move(certificates)),
      context_((SSL_CTX_up_ref(certificates_->context()), certificates_->context())) {}

std::vector<std::uint64_t> TlsContext::keys_to_offer() const {
  if (!keys_) return {0};
  std::vector<std::uint64_t> ids;
  for (const ClusterKey& key : keys_->keys()) ids.push_back(key.id);
  return ids;
}

void TlsContext::set_keys(Keyring keys) {
  GOSSIPD_ASSERT(keys_.has_value());
  keys_ = std::move(keys);
}

void TlsContext::attach(SSL* ssl, TlsAttempt& attempt) {
  GOSSIPD_ASSERT(SSL_set_ex_data(ssl, attempt_slot(), &attempt) == 1);
}

bool TlsContext::proved(SSL* ssl, const TlsAttempt& attempt) const {
  // OpenSSL calls a handshake with a PSK resumed; tickets, the other kind, are off.
  const bool psk_used = SSL_session_reused(ssl) == 1;
  // A key may have been retired during the handshake.
  if (keys_) return psk_used && accepts(attempt.key);
  return !psk_used && SSL_get0_peer_certificate(ssl) != nullptr &&
         SSL_get_verify_result(ssl) == X509_V_OK;
}

Error TlsContext::explain(const boost::system::error_code& error, const TlsAttempt& attempt,
                          bool outbound) const {
  return keys_ ? explain_key(error, attempt, outbound) : explain_certificate(error, attempt);
}

Error TlsContext::explain_key(const boost::system::error_code& error, const TlsAttempt& attempt,
                              bool outbound) const {
  const std::string ours = "ours is " + identity_of(outbound ? attempt.key : keys_->in_use().id);
  if (!attempt.unknown_identity.empty()) {
    return Error{
        "wrong-key",
        "TLS: the peer's cluster key differs from ours: it has " + attempt.unknown_identity + ", " +
            ours +
            "; it belongs to another cluster, was started with another key file, or one of "
            "the two missed a change of the key"};
  }
  const int reason = ERR_GET_REASON(static_cast<unsigned long>(error.value()));
  if (outbound && reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
    return Error{"wrong-key", "TLS: the peer shows a certificate instead of the cluster key (" +
                                  ours +
                                  "): its cluster uses certificates; start this node with "
                                  "peer_tls.ca, peer_tls.certificate and peer_tls.key"};
  }
  if (!outbound && says_no_key_offered(reason)) {
    return Error{"wrong-key",
                 "TLS: the peer offers no cluster key (" + ours +
                     "): it was started with certificates (peer_tls.*), or is no gossipd"};
  }
  if (says_wrong_key(reason)) {
    return Error{
        "wrong-key",
        std::string("TLS: the peer's cluster key differs from ours (") + ours + "): " +
            (outbound ? "it refused to talk to us; it may belong to another cluster, or one "
                        "of the two missed a change of the key"
                      : "it has the same id but another secret; copy the key file again")};
  }
  return Error{"tls", "TLS handshake failed: " + error.message()};
}

Error TlsContext::explain_certificate(const boost::system::error_code& error,
                                      const TlsAttempt& attempt) const {
  const std::string ours = "ours is " + certificates_->subject();
  if (!attempt.refused_certificate.empty()) {
    return Error{"wrong-certificate",
                 "TLS: the peer's certificate is not accepted: " + attempt.refused_certificate +
                     " (" + ours + "); " + attempt.way_out};
  }
  const int reason = ERR_GET_REASON(static_cast<unsigned long>(error.value()));
  if (says_wrong_certificate(reason)) {
    return Error{
        "wrong-certificate",
        "TLS: the peer does not accept our certificate (" + ours + "): " + error.message() +
            (certificates_->out_of_date()
                 ? "; ours is out of date: renew it, or set the clock of this machine"
                 : "; ours is valid now by this machine's clock: the peer's clock is wrong or this "
                   "one, its revocation list has expired, it trusts another authority, or has a "
                   "cluster key instead")};
  }
  if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE ||
      reason == SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED) {
    return Error{"wrong-certificate", "TLS: the peer shows no certificate (" + ours +
                                          "): it was started without peer_tls.*, or is no gossipd"};
  }
  if (reason == SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE) {
    return Error{"wrong-certificate",
                 "TLS: the peer has a cluster key and no certificate (" + ours +
                     "): it belongs to another cluster, or was started with --key-file"};
  }
  return Error{"tls", "TLS handshake failed: " + error.message()};
}

}  // namespace gossipd
