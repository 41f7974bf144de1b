// What gossipctl reads from files and writes into them: tokens, keys, invites, exports.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "net/peer/cluster_key.h"
#include "net/peer/keyring.h"
#include "tests/unit/daemon_fake_server.h"
#include "tests/unit/daemon_made_up.h"
#include "tests/unit/daemon_support.h"

using namespace gossipd;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

bool mentions(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

std::string secret_in(const TemporaryDirectory& directory, const std::string& text) {
  const std::string file = directory.write("token", text);
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  return file;
}

}  // namespace

TEST_CASE("a token is read as the daemon reads it, whatever ends its line, and is one line") {
  MadeUpDaemon daemon;
  HttpServerOptions options;
  options.bearer_token = "0123456789abcdef";
  const FakeServer server(handler_of(daemon), options);
  const TemporaryDirectory directory;
  const auto status_with = [&](const std::string& text) {
    return gossipctl({"status", "--rest", server.address()},
                     {{"GOSSIPCTL_TOKEN_FILE", secret_in(directory, text)}});
  };
  for (const char* end : {"", "\n", "\r\n", " \t\r\n\n"})
    CHECK(status_with(options.bearer_token + end).code == ExitCode::ok);
  for (const char* text : {"0123456789abcdef\nmore\n", "01234567\x1b[2J89abcdef"}) {
    const Ran refused = status_with(text);
    CHECK(refused.code == ExitCode::usage);
    CHECK(mentions(refused.err, "(GOSSIPCTL_TOKEN_FILE) holds more than one line, or control"));
  }
  CHECK(mentions(status_with(" \n").err, "check GOSSIPCTL_TOKEN_FILE and the file's permissions"));
}

TEST_CASE("a token file that cannot be read stops only commands that ask a daemon") {
  const std::map<std::string, std::string> nowhere = {{"GOSSIPCTL_TOKEN_FILE", "/no/token"}};
  const TemporaryDirectory directory;
  const std::string key = directory.path() / "key";
  CHECK(gossipctl({"version"}, nowhere).code == ExitCode::ok);
  CHECK(gossipctl({"completion", "bash"}, nowhere).code == ExitCode::ok);
  CHECK(gossipctl({"key", "generate", key}, nowhere).code == ExitCode::ok);
  CHECK(gossipctl({"checkpoint", "show", directory.path().string()}, nowhere).code ==
        ExitCode::not_found);
  const Ran status = gossipctl({"status", "--rest", "127.0.0.1:1"}, nowhere);
  CHECK(status.code == ExitCode::usage);
  CHECK(mentions(status.err, "no token can be read from /no/token"));
  CHECK(mentions(status.err, "check GOSSIPCTL_TOKEN_FILE"));
  const Ran named = gossipctl({"status", "--token-file", "/no/other"}, nowhere);
  CHECK(mentions(named.err, "from /no/other"));
  CHECK(mentions(named.err, "check --token-file"));
}

TEST_CASE("an invite holds a key that the daemon has, or none") {
  MadeUpDaemon daemon;
  const TemporaryDirectory directory;
  const std::string file = directory.path() / "cluster.key";
  const Result<ClusterKey> key = generate_cluster_key();
  REQUIRE(key);
  REQUIRE(!write_cluster_key(file, *key));
  const FakeServer server(handler_of(daemon));
  const std::vector<std::string> invite = {"invite", "--key-file", file, "--rest",
                                           server.address()};
  const Ran refused = gossipctl(invite);
  CHECK(refused.code == ExitCode::usage);
  CHECK(refused.out.empty());
  CHECK(mentions(refused.err, "the key in " + file + " (" + to_hex(key->id) + ") is none of"));
  CHECK(mentions(refused.err, "name that file with --key-file FILE"));
  daemon.made_up_keys->keys.push_back({.id = key->id, .in_use = true, .sessions = 0});
  CHECK(gossipctl(invite).code == ExitCode::ok);
}

TEST_CASE("an export replaces no checkpoint of a node, by whatever way it is named, and no model") {
  const TemporaryDirectory directory;
  const fs::path folder = directory.path();
  fs::create_directories(folder / "state/checkpoints");
  fs::create_directory_symlink("state/checkpoints", folder / "link");
  directory.write("best.safetensors", "a checkpoint");
  directory.write("mine.pt", "a model");
  directory.write("state/checkpoints/best.safetensors", "a node's");
  const auto exported = [&](const std::string& to, const std::string& model) {
    std::vector<std::string> words = {"checkpoint", "export", folder / "best.safetensors",
                                      folder / to};
    if (!model.empty()) words.insert(words.end(), {"--model", folder / model});
    return gossipctl(words);
  };
  for (const char* to :
       {"state/checkpoints/best.safetensors", "state/checkpoints/./best.safetensors",
        "state/checkpoints/../checkpoints/best.safetensors", "link/best.safetensors"}) {
    CAPTURE(std::string(to));
    const Ran refused = exported(to, "");
    CHECK(refused.code == ExitCode::usage);
    CHECK(mentions(refused.err, "is a checkpoint that a node may resume from"));
  }
  const Ran refused = exported("./mine.pt", "mine.pt");
  CHECK(refused.code == ExitCode::usage);
  CHECK(mentions(refused.err, "is the file of --model"));
}

TEST_CASE("-o json is JSON of the commands that print a path or a key as well") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() / "key";
  CHECK(Json::parse(gossipctl({"-o", "json", "key", "generate", file}).out) ==
        Json{{"file", file}});
  const Json printed = Json::parse(gossipctl({"-o", "json", "key", "generate", "-"}).out);
  CHECK(printed.at("key").is_string());
}
