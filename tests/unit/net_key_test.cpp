#include <sys/stat.h>

#include <cerrno>
#include <fstream>

#include "net/hard_links.h"
#include "net/peer/keyring.h"
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
  // no draft is left
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);
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

TEST_CASE("a file system without links, or with none left, is told from a name that is taken") {
  for (const int error : {EPERM, EOPNOTSUPP, ENOSYS, EMLINK}) CHECK(knows_no_links(error));
  for (const int error : {0, EEXIST, ENOENT, ENOSPC, EACCES, EROFS}) CHECK(!knows_no_links(error));
}

TEST_CASE("two generated keys differ in id and secret") {
  const auto a = generate_cluster_key(), b = generate_cluster_key();
  REQUIRE((a && b));
  CHECK(a->id != b->id);
  CHECK(a->secret != b->secret);
}

TEST_CASE(
    "a key file open to others is refused with the command that mends it, or allowed on request") {
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

TEST_CASE("a credential of systemd may show the rights of its access list as its group's") {
  const TemporaryFolder folder, elsewhere;
  ::setenv("CREDENTIALS_DIRECTORY", folder.path.c_str(), 1);
  const auto code = [](const std::filesystem::path& path, mode_t mode) {
    write_file(path, format_cluster_key(test_key(1, 1)), mode);
    const auto read = read_cluster_key(path);
    std::filesystem::remove(path);
    return read ? std::string() : read.error().code;
  };
  CHECK(code(folder.path / "cluster.key", 0440).empty());
  for (const mode_t mode : {0444, 0460, 0450, 0404})
    CHECK(code(folder.path / "cluster.key", mode) == "key-permissions");
  CHECK(code(elsewhere.path / "cluster.key", 0440) == "key-permissions");
  CHECK(code(folder.path.string() + "-beside", 0440) == "key-permissions");
  CHECK(code(folder.path / ".." / elsewhere.path.filename() / "key", 0440) == "key-permissions");
  ::unsetenv("CREDENTIALS_DIRECTORY");
  CHECK(code(folder.path / "cluster.key", 0440) == "key-permissions");
}

TEST_CASE("a file that is no key file is refused with its path and the reason") {
  const TemporaryFolder folder;
  const std::string path = folder.path / "cluster.key";
  CHECK(read_cluster_key(path).error().code == "key-missing");
  CHECK(read_cluster_key(folder.path).error().code == "key-read");
  CHECK(read_cluster_key("/proc/self/mem").error().code == "io-error");  // as of a failing disk
  const std::string good = format_cluster_key(test_key(0xabc, 1));
  std::string short_secret = good.substr(0, good.size() - 2) + "\n";
  std::string not_hex = good;
  not_hex[good.size() - 3] = 'g';
  for (const std::string& text : {std::string(), std::string("gossipd-key-2 1 2\n"), short_secret,
                                  not_hex, good + good, std::string(10'000, 'a')}) {
    CAPTURE(text.substr(0, 40));
    write_file(path, text, 0600);
    const auto refused = read_cluster_key(path);
    REQUIRE(!refused);
    CHECK(refused.error().code == "key-format");
    CHECK(refused.error().text.find(path) != std::string::npos);
    if (text.size() < 1000) {
      const std::string ring = read_keyring(path).error().text;
      CHECK(ring.find("copy it from another member") != std::string::npos);
      CHECK(ring.find(".previous") == std::string::npos);  // there is none
    }
  }
  write_file(path, good, 0600);
  CHECK(read_cluster_key(path)->id == 0xabc);
}

TEST_CASE(
    "a digit mistyped in a key line is found by its checksum, and a line of an earlier release has "
    "none") {
  const std::string good = format_cluster_key(test_key(0xabc, 1));
  REQUIRE(parse_cluster_key(good));
  // Every digit of id, secret and checksum, changed to another one.
  for (std::size_t at = good.find(' ') + 1; at < good.size() - 1; ++at) {
    if (good[at] == ' ') continue;
    std::string typo = good;
    typo[at] = good[at] == '7' ? '3' : '7';
    CAPTURE(typo);
    REQUIRE(!parse_cluster_key(typo));
    CHECK(parse_cluster_key(typo).error().text.find("checksum") != std::string::npos);
  }
  const std::string old = good.substr(0, good.rfind(' ')) + "\n";
  REQUIRE(parse_cluster_key(old));
  CHECK(*parse_cluster_key(old) == test_key(0xabc, 1));
  CHECK(!parse_cluster_key(good.substr(0, good.size() - 1) + " more\n"));
  Keyring ring(test_key(1, 1));
  ring.remember_retired(0x22);
  std::string text = format_keyring(ring);
  CHECK(*parse_keyring(text) == ring);
  text[text.rfind("22 ")] = '3';
  REQUIRE(!parse_keyring(text));
  CHECK(parse_keyring(text).error().text.find("line 2: its checksum does not fit") !=
        std::string::npos);
}

TEST_CASE(
    "a key file that is rewritten leaves the one before beside it, and an unreadable one says "
    "where that is") {
  const TemporaryFolder folder;
  const std::string path = folder.path / "cluster.key";
  REQUIRE(!write_keyring(path, Keyring(test_key(1, 1))));
  CHECK(!std::filesystem::exists(path + ".previous"));
  REQUIRE(!write_keyring(path, Keyring(test_key(2, 2))));
  // the second changes nothing
  for (int i = 0; i < 2; ++i) REQUIRE(!write_keyring(path, Keyring(test_key(3, 3))));
  CHECK(read_keyring(path)->in_use().id == 3);
  REQUIRE(read_keyring(path + ".previous"));  // also readable only by its owner
  CHECK(read_keyring(path + ".previous")->in_use().id == 2);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 2);
  write_file(path, "spoilt\n", 0600);
  REQUIRE(!read_keyring(path));
  CHECK(read_keyring(path).error().text.find(path + ".previous") != std::string::npos);
}

TEST_CASE("what a crash left of an earlier rewriting of a key file is gone after the next") {
  const TemporaryFolder folder;
  const std::string path = folder.path / "cluster.key";
  REQUIRE(!write_keyring(path, Keyring(test_key(1, 1))));
  // The crash came after the file got its second name.
  std::filesystem::create_hard_link(path, path + ".previous");
  const std::filesystem::path old_draft = path + ".new-4194305", draft = path + ".new-4194306",
                              others = path + ".new-box";
  for (const auto& left : {old_draft, draft, others}) write_file(left, "secret", 0600);
  for (const auto& left : {old_draft, others})
    std::filesystem::last_write_time(
        left, std::filesystem::file_time_type::clock::now() - std::chrono::hours(25));
  REQUIRE(!write_keyring(path, Keyring(test_key(2, 2))));
  CHECK(read_keyring(path)->in_use().id == 2);
  CHECK(read_keyring(path + ".previous")->in_use().id == 1);
  CHECK(!std::filesystem::exists(old_draft));
  CHECK(std::filesystem::exists(draft));  // may be one that another process writes now
  CHECK(std::filesystem::exists(others));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 4);
}

TEST_CASE("an operator's own files beside a key file stay, however old and named") {
  const TemporaryFolder folder;
  const std::string path = folder.path / "k", draft = path + ".new-1234";
  const std::vector<std::string> own = {path + ".new-20261129", path + ".new-", path + ".link-"};
  const auto write_old = [](const std::string& name) {
    write_file(name, "secret", 0600);
    std::filesystem::last_write_time(
        name, std::filesystem::file_time_type::clock::now() - std::chrono::hours(25));
  };
  for (const std::string& name : own) write_old(name);
  write_old(draft);
  write_file(path, "taken", 0600);
  REQUIRE(write_secret_file(path, SecretText("key"), Replace::no));
  CHECK(std::filesystem::exists(draft));  // nothing was written, so nothing is cleared away
  REQUIRE(!write_secret_file(path, SecretText("key"), Replace::yes));
  CHECK(!std::filesystem::exists(draft));
  for (const std::string& name : own) CHECK_MESSAGE(std::filesystem::exists(name), name);
}

TEST_CASE("a keyring is changed step by step and its file reads back the same") {
  const TemporaryFolder folder;
  const std::string path = folder.path / "cluster.key";
  Keyring ring(test_key(1, 1));
  CHECK(ring.install(test_key(1, 9))->code == "key-known");
  REQUIRE(!ring.install(test_key(2, 2)));
  CHECK(ring.in_use().id == 1);
  CHECK(ring.use(3)->code == "key-unknown");
  CHECK(ring.retire(1)->code == "key-in-use");
  REQUIRE(!ring.use(2));
  CHECK(ring.in_use().id == 2);
  CHECK(ring.find(1) != nullptr);
  REQUIRE(!ring.retire(1));
  CHECK(ring.find(1) == nullptr);
  CHECK(ring.install(test_key(1, 1))->code == "key-retired");
  REQUIRE(!ring.install(test_key(3, 3)));
  for (int i = 0; i < 2; ++i) REQUIRE(!write_keyring(path, ring));  // over the first one
  const auto read = read_keyring(path);
  REQUIRE(read);
  CHECK(*read == ring);
  CHECK(read->was_retired(1));
  for (std::uint64_t id = 4; ring.keys().size() < keyring_keys_max; ++id)
    REQUIRE(!ring.install(test_key(id, id)));
  CHECK(ring.install(test_key(99, 99))->code == "keyring-full");
}

TEST_CASE("a key file of one key is a keyring, and what is wrong in one is named with its line") {
  const std::string one = format_cluster_key(test_key(1, 1)),
                    two = format_cluster_key(test_key(2, 2));
  REQUIRE(parse_keyring(one));
  CHECK(*parse_keyring(one) == Keyring(test_key(1, 1)));
  CHECK(parse_keyring(one + "\n" + two)->keys().size() == 2);
  const auto says = [](const std::string& text, const std::string& what) {
    const auto read = parse_keyring(text);
    REQUIRE_FALSE(read);
    CHECK(read.error().code == "key-format");
    CHECK_MESSAGE(read.error().text.find(what) != std::string::npos, read.error().text);
  };
  says("", "no key");
  says(one + "nonsense\n", "line 2");
  says(one + two + one, "line 3");
  says(one + "gossipd-key-retired 12\n", "line 2");
  says(one + "gossipd-key-retired 0000000000000001\n", "said to be retired");
}
