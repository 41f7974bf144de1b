// Peers with certificates: which are admitted, which refused, and what both ends report.
#include <boost/asio/ssl.hpp>
#include <fstream>

#include "net_authority.h"
#include "net_test_support.h"

using namespace gossipd;
using namespace gossipd::test;
using namespace std::chrono_literals;

namespace {

// Dials once and returns both ends' reasons for the failure.
struct Refusal {
  Error dialler, listener;
};
Refusal refusal(EventLoop& loop, Node& dialler, Node& listener) {
  dialler.transport.dial(listener.listen());
  REQUIRE(loop.run_until(
      [&] { return !dialler.seen.failed.empty() && !listener.seen.rejected.empty(); }, patience));
  CHECK(dialler.seen.opened.empty());
  CHECK(listener.seen.opened.empty());
  stop_all(loop, {&dialler, &listener});
  return {dialler.seen.failed[0].second, listener.seen.rejected[0]};
}
Refusal refusal(const auto& dialler_has, const auto& listener_has) {
  EventLoop loop;
  Node listener(loop, listener_has), dialler(loop, dialler_has);
  return refusal(loop, dialler, listener);
}

void exchange(EventLoop& loop, Node& a, Node& b, const Endpoint& where) {
  const std::size_t before = b.seen.opened.size();
  a.transport.dial(where);
  REQUIRE_MESSAGE(
      loop.run_until([&] { return a.seen.opened.size() == 1 && b.seen.opened.size() > before; },
                     patience),
      (a.seen.failed.empty() ? "no session" : a.seen.failed.back().second.text));
  const std::size_t received = b.seen.received.size();
  a.transport.send(a.seen.session(), Lane::control, shared("to b"));
  b.transport.send(b.seen.session(), Lane::bulk, shared("to a"));
  REQUIRE(loop.run_until(
      [&] { return a.seen.received.size() == 1 && b.seen.received.size() > received; }, patience));
}

bool mentions(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

std::string mistake(const PeerCertificateFiles& files) {
  const auto read = PeerCertificates::read(files);
  return read ? "" : read.error().text;
}

// A listener's reason against a foreign TLS client, which `setup` makes.
Error reject_client(const PeerCertificates& ours,
                    const std::function<void(asio::ssl::context&)>& setup) {
  EventLoop loop;
  Node listener(loop, ours);
  const Endpoint where = listener.listen();
  asio::ssl::context context(asio::ssl::context::tls_client);
  setup(context);
  asio::ssl::stream<tcp::socket> client(loop.io(), context);
  client.lowest_layer().connect({asio::ip::make_address(where.host), where.port});
  client.async_handshake(asio::ssl::stream_base::client, [](const boost::system::error_code&) {});
  REQUIRE(loop.run_until([&] { return !listener.seen.rejected.empty(); }, patience));
  CHECK(listener.seen.opened.empty());
  stop_all(loop, {&listener});
  return listener.seen.rejected[0];
}

}  // namespace

TEST_CASE(
    "nodes whose certificates one authority signed exchange messages both ways, on any address") {
  const TemporaryFolder folder;
  Authority authority(folder.path, "authority");
  EventLoop loop;
  Node a(loop, certificates(authority.issue("box1"))),
      b(loop, certificates(authority.issue("box2")));
  exchange(loop, a, b, {"127.0.0.1", b.listen("").port});
  stop_all(loop, {&a, &b});
}

TEST_CASE(
    "an authority below the trusted one may sign, and is sent along; one that is trusted alone "
    "needs no root") {
  const TemporaryFolder folder;
  Authority root(folder.path, "root"), below(folder.path, "below", &root),
      other(folder.path, "other", &root);
  EventLoop loop;
  Node a(loop, certificates(root.issue("box1"))),
      b(loop, certificates(below.issue("box2", {}, &root)));
  exchange(loop, a, b, b.listen());
  stop_all(loop, {&a, &b});

  // A node that trusts only `below` accepts no other certificate of the root.
  const Refusal refused =
      refusal(certificates(other.issue("box3", {}, &root)), certificates(below.issue("box4")));
  CHECK(refused.listener.code == "wrong-certificate");
}

TEST_CASE("a certificate of another authority is refused with that reason on both ends") {
  const TemporaryFolder folder;
  Authority ours(folder.path, "ours"), theirs(folder.path, "theirs");
  const Refusal refused =
      refusal(certificates(theirs.issue("box2")), certificates(ours.issue("box1")));
  CHECK(refused.dialler.code == "wrong-certificate");
  CHECK(refused.listener.code == "wrong-certificate");
  CHECK(mentions(refused.dialler.text, "CN=box1"));  // the dialler checks first
  CHECK(mentions(refused.listener.text, "another authority"));
  // Its own dates are known, so it is not said to have expired.
  CHECK(mentions(refused.listener.text, "ours is valid now"));
  CHECK(mentions(refused.listener.text, "the peer's clock is wrong"));
}

TEST_CASE(
    "an expired and a future certificate are refused with that reason on both ends, whoever "
    "dials") {
  const TemporaryFolder folder;
  Authority authority(folder.path, "authority");
  const PeerCertificates good = certificates(authority.issue("box1"));
  for (const auto& [wanted, words] :
       {std::pair(Wanted{.from_s = -7200, .until_s = -3600}, "expired"),
        std::pair(Wanted{.from_s = 3600, .until_s = 7200}, "not yet valid")}) {
    CAPTURE(words);
    const PeerCertificates bad = certificates(authority.issue("box2", wanted));
    REQUIRE(bad.out_of_date());
    const Refusal from_bad = refusal(bad, good), to_bad = refusal(good, bad);
    for (const Error& error :
         {from_bad.dialler, from_bad.listener, to_bad.dialler, to_bad.listener})
      CHECK(error.code == "wrong-certificate");
    for (const Error& error : {from_bad.listener, to_bad.dialler}) {
      CHECK(mentions(error.text, words));
      CHECK(mentions(error.text, "CN=box2"));
      CHECK(mentions(error.text, "or this machine's clock is wrong"));
    }
    CHECK(mentions(from_bad.dialler.text, "does not accept our certificate"));
    CHECK(mentions(from_bad.dialler.text, "ours is out of date"));
  }
  CHECK(!good.out_of_date());
}

TEST_CASE(
    "a node with a key and one with certificates refuse each other and both say so, whoever "
    "dials") {
  const TemporaryFolder folder;
  Authority authority(folder.path, "authority");
  const PeerCertificates certificate = certificates(authority.issue("box1"));
  const ClusterKey key = test_key(0x11, 1);
  const Refusal key_dials = refusal(key, certificate),
                certificate_dials = refusal(certificate, key);
  CHECK(key_dials.dialler.code == "wrong-key");
  CHECK(mentions(key_dials.dialler.text, "uses certificates"));
  CHECK(key_dials.listener.code == "wrong-certificate");
  CHECK(mentions(key_dials.listener.text, "has a cluster key instead"));
  CHECK(certificate_dials.dialler.code == "wrong-certificate");
  CHECK(mentions(certificate_dials.dialler.text, "has a cluster key and no certificate"));
  CHECK(certificate_dials.listener.code == "wrong-key");
  CHECK(mentions(certificate_dials.listener.text, "started with certificates"));
}

TEST_CASE("a plain node and one with certificates refuse each other and both say so") {
  const TemporaryFolder folder;
  Authority authority(folder.path, "authority");
  const PeerCertificates certificate = certificates(authority.issue("box1"));
  const Refusal refused = refusal(std::optional<Keyring>(), certificate);
  CHECK(refused.dialler.code == "peer-speaks-tls");
  CHECK(refused.listener.code == "peer-speaks-plain");
}

TEST_CASE("a TLS client without certificate, or with a version before 1.3, is refused") {
  const TemporaryFolder folder;
  Authority authority(folder.path, "authority");
  const PeerCertificates ours = certificates(authority.issue("box1"));
  const Error without = reject_client(ours, [](asio::ssl::context&) {});
  CHECK(without.code == "wrong-certificate");
  CHECK(mentions(without.text, "shows no certificate"));
  const PeerCertificateFiles files = authority.issue("box2");
  const Error old = reject_client(ours, [&](asio::ssl::context& context) {
    context.use_certificate_chain_file(files.certificate);
    context.use_private_key_file(files.key, asio::ssl::context::pem);
    SSL_CTX_set_max_proto_version(context.native_handle(), TLS1_2_VERSION);
  });
  CHECK(old.code == "tls");
}

TEST_CASE(
    "a certificate that is taken back ends its session when the list is read, and no other, and "
    "comes in no more") {
  const TemporaryFolder folder;
  Authority authority(folder.path, "authority");
  EventLoop loop;
  const PeerCertificateFiles files = authority.issue("box1");
  Node first(loop, certificates(files)), good(loop, certificates(authority.issue("box2"))),
      stolen(loop, certificates(authority.issue("box3")));
  const Endpoint where = first.listen();
  exchange(loop, good, first, where);
  exchange(loop, stolen, first, where);
  authority.revoke_last();
  first.transport.set_certificates(certificates(files));
  REQUIRE(loop.run_until([&] { return !stolen.seen.closed.empty() && !first.seen.closed.empty(); },
                         patience));
  CHECK(first.seen.closed[0].first == first.seen.opened[1].first);
  CHECK(first.seen.closed[0].second.code == "certificate");
  CHECK(mentions(first.seen.closed[0].second.text, "revoked"));
  stolen.transport.dial(where);
  REQUIRE(loop.run_until(
      [&] { return !stolen.seen.failed.empty() && !first.seen.rejected.empty(); }, patience));
  CHECK(mentions(first.seen.rejected[0].text, "revoked"));
  good.transport.send(good.seen.session(), Lane::control, shared("still here"));
  REQUIRE(loop.run_until([&] { return first.seen.received.size() == 3; }, patience));
  CHECK(good.seen.closed.empty());
  stop_all(loop, {&first, &good, &stolen});
}

TEST_CASE("what is out of date or soon will be is told, each with its way out") {
  const TemporaryFolder folder;
  Authority authority(folder.path, "authority");
  const PeerCertificateFiles files = authority.issue("box1");
  const auto told = [&files] { return certificates(files).date_warnings(); };
  CHECK(told().size() == 2);
  CHECK(mentions(told()[0], "peer_tls.certificate: /CN=box1 expires within a day"));
  CHECK(mentions(told()[1], "peer_tls.ca: the authority /CN=authority expires within a day"));
  (void)authority.issue("stolen");
  constexpr long day_s = 86'400;
  for (const auto& [until_s, words] :
       {std::pair(-60L, " has expired"), std::pair(60L, " expires within a day"),
        std::pair(2 * day_s - 60, " expires in 1 day:"),
        std::pair(5 * day_s + 60, " expires in 5 days:")}) {
    authority.revoke_last(until_s);  // beside the one before, which no longer counts
    REQUIRE(told().size() == 3);
    CHECK(mentions(told()[2], std::string("revocation list of /CN=authority") + words));
    CHECK(mentions(told()[2], "-gencrl"));
  }
  authority.revoke_last(30 * day_s);
  CHECK(told().size() == 2);
}

TEST_CASE("a revocation list that has expired refuses everybody, and the refusal names it") {
  const TemporaryFolder folder;
  Authority authority(folder.path, "authority");
  const PeerCertificateFiles files = authority.issue("box1");
  const PeerCertificates without = certificates(authority.issue("box2"));
  (void)authority.issue("stolen");
  authority.revoke_last(-60);
  const Refusal refused = refusal(without, certificates(files));
  CHECK(refused.listener.code == "wrong-certificate");
  CHECK(mentions(refused.listener.text, "CN=box2: CRL has expired"));
  CHECK(mentions(refused.listener.text, "put a newer one there and send SIGHUP"));
  CHECK(mentions(refused.dialler.text, "its revocation list has expired"));
  authority.revoke_last();
  EventLoop loop;
  Node renewed(loop, certificates(files)), other(loop, without);
  exchange(loop, other, renewed, renewed.listen());
  stop_all(loop, {&renewed, &other});
}

TEST_CASE("files that cannot work are refused with the setting, the reason and a way out") {
  const TemporaryFolder folder;
  Authority authority(folder.path, "authority"), other(folder.path, "other");
  const PeerCertificateFiles good = authority.issue("box1"), second = authority.issue("box2");
  CHECK(mistake(good).empty());
  const auto with = [&good](auto change) {
    PeerCertificateFiles files = good;
    change(files);
    return mistake(files);
  };
  const std::string missing = (folder.path / "missing").string(),
                    text = (folder.path / "text").string();
  std::ofstream(text) << "no PEM\n";
  REQUIRE(::chmod(text.c_str(), 0600) == 0);
  CHECK(mentions(with([&](auto& f) { f.ca = missing; }),
                 "peer_tls.ca: " + missing + " cannot be read: No such file"));
  CHECK(mentions(with([&](auto& f) { f.ca = text; }), "holds no certificate"));
  const std::string failing = "/proc/self/mem";  // as on a disk that fails
  for (const PeerCertificateFiles& files :
       {PeerCertificateFiles{failing, good.certificate, good.key},
        {good.ca, failing, good.key},
        {good.ca, good.certificate, failing}}) {
    CHECK(PeerCertificates::read(files).error().code == "io-error");
    CHECK(mentions(mistake(files), failing));
  }
  CHECK(mentions(with([&](auto& f) { f.ca = good.certificate; }), "no authority's"));
  CHECK(mentions(with([&](auto& f) { f.ca = other.ca(); }), "does not stand before"));
  CHECK(mentions(with([&](auto& f) { f.certificate = missing; }), "peer_tls.certificate"));
  CHECK(mentions(with([&](auto& f) { f.certificate = text; }), "holds no certificate"));
  CHECK(mentions(with([&](auto& f) { f.key = missing; }), "does not exist"));
  CHECK(mentions(with([&](auto& f) { f.key = text; }), "holds no private key"));
  CHECK(mentions(with([&](auto& f) { f.key = second.key; }), "is not the key of the certificate"));
  CHECK(
      mentions(mistake(authority.issue("server", {.purposes = "serverAuth"})), "as a TLS client"));
  CHECK(
      mentions(mistake(authority.issue("client", {.purposes = "clientAuth"})), "as a TLS server"));
  REQUIRE(::chmod(second.key.c_str(), 0640) == 0);
  CHECK(mentions(mistake(second), "chmod 600 " + second.key));
}

TEST_CASE("an encrypted private key is refused and nobody is asked for its passphrase") {
  const TemporaryFolder folder;
  Authority authority(folder.path, "authority");
  PeerCertificateFiles files = authority.issue("box1");
  EVP_PKEY* key = EVP_EC_gen("P-256");
  std::FILE* file = std::fopen(files.key.c_str(), "w");
  REQUIRE(PEM_write_PKCS8PrivateKey(file, key, EVP_aes_128_cbc(), "secret", 6, nullptr, nullptr) ==
          1);
  std::fclose(file);
  EVP_PKEY_free(key);
  CHECK(mentions(mistake(files), "is encrypted"));
}
