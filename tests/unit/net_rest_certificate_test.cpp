// The certificate that a daemon makes for its REST: when it is kept, and when made anew.
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstring>
#include <filesystem>

#include "net/http/certificate.h"
#include "net/peer/openssl_handles.h"
#include "net_authority.h"
#include "net_http_service.h"

using namespace gossipd;
using namespace gossipd::test;

namespace {

constexpr long day_s = 86'400;

void write(const std::string& path, auto print) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  REQUIRE(file != nullptr);
  CHECK(print(file) == 1);
  REQUIRE(std::fclose(file) == 0);
}

void write_text(const std::string& path, const char* text) {
  write(path, [text](std::FILE* file) { return std::fputs(text, file) >= 0 ? 1 : 0; });
}

// As ensure_certificate() makes one for `name`, but valid between these seconds from now.
void make(const CertificateFiles& files, long from_s, long until_s, const char* name,
          const char* subject = "gossipd") {
  const openssl::Key key(EVP_EC_gen("P-256"));
  const openssl::Certificate made(X509_new());
  X509* x = made.get();
  X509_set_version(x, X509_VERSION_3);
  X509_gmtime_adj(X509_getm_notBefore(x), from_s);
  X509_gmtime_adj(X509_getm_notAfter(x), until_s);
  X509_set_pubkey(x, key.get());
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(subject), -1, -1, 0);
  X509_set_issuer_name(x, X509_get_subject_name(x));
  X509_EXTENSION* names = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, name);
  REQUIRE(X509_add_ext(x, names, -1) == 1);
  X509_EXTENSION_free(names);
  REQUIRE(X509_sign(x, key.get(), EVP_sha256()) > 0);
  write(files.certificate, [x](std::FILE* file) { return PEM_write_X509(file, x); });
  write(files.key, [&key](std::FILE* file) {
    return PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
}

openssl::Certificate read(const std::string& path) {
  const openssl::Bio file(BIO_new_file(path.c_str(), "r"));
  return openssl::Certificate(PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr));
}

std::string ensured(const CertificateFiles& files, const std::vector<std::string>& names) {
  const auto why = ensure_certificate(files, names);
  REQUIRE_MESSAGE(why, (why ? "" : why.error().text));
  return *why;
}

}  // namespace

TEST_CASE("a self-made certificate that a wrong clock has made useless is made anew, once") {
  const TemporaryFolder folder;
  const CertificateFiles files{folder.path / "c.pem", folder.path / "k.pem"};
  for (const auto& [from_s, until_s, why] :
       {std::tuple(-20'000 * day_s, -16'350 * day_s, "has expired"),
        std::tuple(5'000 * day_s, 8'650 * day_s, "is not valid yet")}) {
    make(files, from_s, until_s, "DNS:box1,IP:10.0.0.11");
    const openssl::Certificate before = read(files.certificate);
    CHECK(ensured(files, {"box1", "10.0.0.11"}) == why);
    CHECK(ensured(files, {"box1", "10.0.0.11"}).empty());
    const openssl::Certificate now = read(files.certificate);
    CHECK(X509_cmp_current_time(X509_get0_notBefore(now.get())) < 0);
    CHECK(X509_cmp_current_time(X509_get0_notAfter(now.get())) > 0);
    // A clock that is wrong now must not shorten it.
    CHECK(ASN1_TIME_compare(X509_get0_notAfter(now.get()), X509_get0_notAfter(before.get())) >= 0);
    CHECK(EVP_PKEY_eq(X509_get0_pubkey(now.get()), X509_get0_pubkey(before.get())) == 1);
  }
}

TEST_CASE("a self-made certificate that lacks a name gets it, and keeps those that it had") {
  const TemporaryFolder folder;
  const CertificateFiles files{folder.path / "c.pem", folder.path / "k.pem"};
  CHECK(ensured(files, {"localhost", "box1", "10.0.0.11", "no name/"}).empty());
  CHECK(ensured(files, {"localhost", "10.0.0.12", "::1"}) == "does not name IP:10.0.0.12");
  X509* const now = read(files.certificate).release();
  for (const char* name : {"localhost", "box1"}) CHECK(X509_check_host(now, name, 0, 0, {}) == 1);
  for (const char* address : {"10.0.0.11", "10.0.0.12", "::1"})
    CHECK(X509_check_ip_asc(now, address, 0) == 1);
  X509_free(now);
  // As where an address comes and goes.
  CHECK(ensured(files, {"localhost", "10.0.0.11"}).empty());
}

TEST_CASE("a certificate that somebody else has made stays as it is") {
  const TemporaryFolder folder;
  const CertificateFiles files{folder.path / "c.pem", folder.path / "k.pem"};
  make(files, -2 * day_s, -day_s, "DNS:box1", "box1.example");
  const auto before = certificate_fingerprint(files.certificate);
  CHECK(ensured(files, {"box1", "10.0.0.11"}).empty());
  CHECK(*certificate_fingerprint(files.certificate) == *before);
}

TEST_CASE("a certificate that a crash has damaged, or whose key has, is set aside and made anew") {
  for (const bool of_key : {false, true})
    for (const char* const left : {"", "-----BEGIN CERTIFICATE-----\nMIIB"}) {
      const TemporaryFolder folder;
      const CertificateFiles files{folder.path / "c.pem", folder.path / "k.pem"};
      CHECK(ensured(files, {"box1"}).empty());
      write_text(of_key ? files.key : files.certificate, left);
      CHECK(ensured(files, {"box1"}) == (of_key ? "has no key that fits" : "is damaged"));
      CHECK(certificate_fingerprint(files.certificate));
      CHECK(std::filesystem::file_size((of_key ? files.key : files.certificate) + ".corrupt") ==
            std::strlen(left));
      CHECK(std::filesystem::exists(files.certificate + ".corrupt"));
      CHECK(ensured(files, {"box1"}).empty());
    }
}

TEST_CASE("a certificate beside the key of another is made anew with one that fits") {
  const TemporaryFolder folder;
  const CertificateFiles files{folder.path / "c.pem", folder.path / "k.pem"},
      others{folder.path / "other-c.pem", folder.path / "other-k.pem"};
  CHECK(ensured(files, {"box1"}).empty());
  CHECK(ensured(others, {"box1"}).empty());
  std::filesystem::rename(others.key, files.key);
  CHECK(ensured(files, {"box1"}) == "has no key that fits");
  CHECK(ensured(files, {"box1"}).empty());
  // One that somebody else has made stays, whatever its key.
  make(files, -day_s, day_s, "DNS:box1", "box1.example");
  write_text(files.key, "");
  CHECK(ensured(files, {"box1"}).empty());
}

TEST_CASE("a server's own certificate is enough, whoever signed it; a wrong name is called one") {
  const TemporaryFolder folder;
  Authority company(folder.path, "company");
  const PeerCertificateFiles files = company.issue("localhost");
  Service service(
      {.bearer_token = "sesame", .tls = CertificateFiles{files.certificate, files.key}});
  service.start();
  const auto call = [&](const std::string& host, const std::string& ca_file) {
    return http_call({.server = {host, service.where.port},
                      .tls = true,
                      .ca_file = ca_file,
                      .target = "/livez",
                      .timeout = std::chrono::seconds(30)});
  };
  CHECK(call("localhost", company.ca()));
  CHECK(call("localhost", files.certificate));
  const auto wrong_name = call("127.0.0.1", company.ca());
  CHECK(wrong_name.error().code == "untrusted");
  CHECK(wrong_name.error().text.find("mismatch; name the host as") != std::string::npos);
}
