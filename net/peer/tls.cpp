#include "net/peer/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cstring>

namespace gossipd {

namespace asio = boost::asio;

namespace {

constexpr const char* identity_prefix = "gossipd-";
constexpr const char* cipher_suite = "TLS_AES_128_GCM_SHA256";
// A server that verifies its peer takes up a session only in the context that the session names.
constexpr unsigned char session_context[] = {'g', 'o', 's', 's', 'i', 'p', 'd'};
constexpr unsigned char cipher_suite_id[2] = {0x13, 0x01};
constexpr std::size_t identity_shown_max = 64;

// app_data belongs to Asio, so ours gets slots of its own.
int context_slot() {
  static const int slot = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return slot;
}
int attempt_slot() {
  static const int slot = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return slot;
}

// The identity is the peer's word: shown in logs, so nothing but printable ASCII.
std::string printable(const unsigned char* text, std::size_t length) {
  std::string out(reinterpret_cast<const char*>(text), std::min(length, identity_shown_max));
  std::replace_if(out.begin(), out.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return out;
}

SSL_SESSION* make_session(SSL* ssl, const ClusterKey& key) {
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, cipher_suite_id);
  SSL_SESSION* session = SSL_SESSION_new();
  const bool ok = cipher != nullptr && session != nullptr &&
                  SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key.secret.data()), key.secret.size()) == 1 &&
                  SSL_SESSION_set_cipher(session, cipher) == 1 && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
                  SSL_SESSION_set1_id_context(session, session_context, sizeof session_context) == 1;
  if (ok) return session;
  SSL_SESSION_free(session);
  return nullptr;
}

bool says_wrong_key(int reason) {
  return reason == SSL_R_BINDER_DOES_NOT_VERIFY || reason == SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE ||
         reason == SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER || reason == SSL_R_TLSV1_ALERT_DECRYPT_ERROR ||
         reason == SSL_R_TLSV1_ALERT_UNKNOWN_PSK_IDENTITY || reason == SSL_R_CERTIFICATE_VERIFY_FAILED;
}

}  // namespace

struct PskCallbacks {
  static const TlsContext& owner(SSL* ssl) {
    return *static_cast<const TlsContext*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), context_slot()));
  }

  // The dialling side: which key to offer.
  static int use(SSL* ssl, const EVP_MD* /*hash*/, const unsigned char** id, std::size_t* id_bytes, SSL_SESSION** session) {
    const TlsContext& tls = owner(ssl);
    *session = make_session(ssl, tls.key_);
    *id = reinterpret_cast<const unsigned char*>(tls.identity_.data());
    *id_bytes = tls.identity_.size();
    return *session != nullptr ? 1 : 0;
  }

  // The accepting side: the key of that name. Without one the handshake goes on to fail for want
  // of a certificate, which the peer sees as an alert.
  static int find(SSL* ssl, const unsigned char* id, std::size_t id_bytes, SSL_SESSION** session) {
    const TlsContext& tls = owner(ssl);
    *session = nullptr;
    if (id_bytes != tls.identity_.size() || std::memcmp(id, tls.identity_.data(), id_bytes) != 0) {
      auto* attempt = static_cast<TlsAttempt*>(SSL_get_ex_data(ssl, attempt_slot()));
      if (attempt != nullptr) attempt->unknown_identity = printable(id, id_bytes);
      return 1;
    }
    *session = make_session(ssl, tls.key_);
    return *session != nullptr ? 1 : 0;
  }
};

TlsContext::TlsContext(const ClusterKey& key)
    : key_(key), identity_(identity_prefix + to_hex(key.id)), context_(asio::ssl::context::tls) {
  SSL_CTX* handle = context_.native_handle();
  GOSSIPD_ASSERT(SSL_CTX_set_min_proto_version(handle, TLS1_3_VERSION) == 1);
  GOSSIPD_ASSERT(SSL_CTX_set_ciphersuites(handle, cipher_suite) == 1);
  GOSSIPD_ASSERT(SSL_CTX_set_num_tickets(handle, 0) == 1);
  GOSSIPD_ASSERT(SSL_CTX_set_ex_data(handle, context_slot(), this) == 1);
  GOSSIPD_ASSERT(SSL_CTX_set_session_id_context(handle, session_context, sizeof session_context) == 1);
  SSL_CTX_set_options(handle, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_session_cache_mode(handle, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_psk_use_session_callback(handle, &PskCallbacks::use);
  SSL_CTX_set_psk_find_session_callback(handle, &PskCallbacks::find);
  context_.set_verify_mode(asio::ssl::verify_peer);  // and no authority is trusted
}

void TlsContext::attach(SSL* ssl, TlsAttempt& attempt) {
  GOSSIPD_ASSERT(SSL_set_ex_data(ssl, attempt_slot(), &attempt) == 1);
}

// OpenSSL calls a handshake that used a PSK a resumed one; tickets, the other way, are off.
bool TlsContext::required_psk_used(SSL* ssl) { return SSL_session_reused(ssl) == 1; }

Error TlsContext::explain(const boost::system::error_code& error, const TlsAttempt& attempt, bool outbound) const {
  const std::string ours = "ours is " + identity_;
  if (!attempt.unknown_identity.empty()) {
    return Error{"wrong-key", "TLS: the peer's cluster key differs from ours: it has " + attempt.unknown_identity + ", " + ours +
                                  "; it belongs to another cluster, or was started with another key file"};
  }
  const int reason = ERR_GET_REASON(static_cast<unsigned long>(error.value()));
  if (says_wrong_key(reason)) {
    return Error{"wrong-key", std::string("TLS: the peer's cluster key differs from ours (") + ours + "): " +
                                  (outbound ? "it refused to talk to us; it may belong to another cluster"
                                            : "it has the same id but another secret; copy the key file again")};
  }
  return Error{"tls", "TLS handshake failed: " + error.message()};
}

}  // namespace gossipd
