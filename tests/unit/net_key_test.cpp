#include <sys/stat.h>

#include <fstream>

#include "net/peer/cluster_key.h"
#include "net_test_support.h"

using namespace gossipd;
using namespace gossipd::test;

namespace {

void write_file(const std::filesystem::path& path, const std::string& text, mode_t mode) {
  std::ofstream(path) << text;
  REQUIRE(::chmod(path.c_str(), mode) == 0);
}

}  // namespace

TEST_CASE("a written key file is the owner's alone and reads back the same") {
  const TemporaryFolder folder;
  const std::string path = folder.path / "cluster.key";
  const auto key = generate_cluster_key();
  REQUIRE(key);
  REQUIRE(!write_cluster_key(path, *key));
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  const auto read = read_cluster_key(path);
  REQUIRE(read);
  CHECK(*read == *key);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);  // no draft is left
}

TEST_CASE("an existing key file is never replaced") {
  const TemporaryFolder folder;
  const std::string path = folder.path / "cluster.key";
  REQUIRE(!write_cluster_key(path, test_key(1, 1)));
  const auto error = write_cluster_key(path, test_key(2, 2));
  REQUIRE(error);
  CHECK(error->code == "key-exists");
  CHECK(read_cluster_key(path)->id == 1);
}

TEST_CASE("two generated keys differ in id and secret") {
  const auto a = generate_cluster_key(), b = generate_cluster_key();
  REQUIRE((a && b));
  CHECK(a->id != b->id);
  CHECK(a->secret != b->secret);
}

TEST_CASE("a key file open to others is refused with the command that mends it, or allowed on request") {
  const TemporaryFolder folder;
  const std::string path = folder.path / "cluster.key";
  for (const mode_t mode : {0640, 0604, 0660, 0644}) {
    CAPTURE(mode);
    write_file(path, format_cluster_key(test_key(1, 1)), mode);
    const auto refused = read_cluster_key(path);
    REQUIRE(!refused);
    CHECK(refused.error().code == "key-permissions");
    CHECK(refused.error().text.find("chmod 600 " + path) != std::string::npos);
    CHECK(read_cluster_key(path, SharedKeyFile::allow));
  }
  REQUIRE(::chmod(path.c_str(), 0400) == 0);
  CHECK(read_cluster_key(path));
}

TEST_CASE("what is not a key file is refused with its path and the reason") {
  const TemporaryFolder folder;
  const std::string path = folder.path / "cluster.key";
  CHECK(read_cluster_key(path).error().code == "key-missing");
  CHECK(read_cluster_key(folder.path).error().code == "key-read");
  const std::string good = format_cluster_key(test_key(0xabc, 1));
  std::string short_secret = good.substr(0, good.size() - 2) + "\n";
  std::string not_hex = good;
  not_hex[good.size() - 3] = 'g';
  for (const std::string& text : {std::string(), std::string("gossipd-key-2 1 2\n"), short_secret, not_hex, good + good, std::string(10'000, 'a')}) {
    CAPTURE(text.substr(0, 40));
    write_file(path, text, 0600);
    const auto refused = read_cluster_key(path);
    REQUIRE(!refused);
    CHECK(refused.error().code == "key-format");
    CHECK(refused.error().text.find(path) != std::string::npos);
  }
  write_file(path, good, 0600);
  CHECK(read_cluster_key(path)->id == 0xabc);
}
