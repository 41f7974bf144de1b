// Damaged state files: each byte, at random, too deep, cut short.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "core/base/random.h"
#include "daemon/disk/durable_file.h"
#include "daemon/rest/history_file.h"
#include "models/files/model_file.h"
#include "tests/unit/daemon_state_support.h"

using namespace gossipd;

TEST_CASE(
    "a state file damaged at any byte is refused, set aside, and the previous one used with the "
    "reason") {
  const TemporaryDirectory directory;
  const auto store = StateStore::open(directory.path());
  REQUIRE(store);
  const std::string whole = format_node_state(some_state(2), now_s);
  const auto content = nlohmann::json::parse(whole)["state"];
  directory.write("node.previous.json", format_node_state(some_state(1), now_s));
  std::size_t refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    CAPTURE(at);
    std::string damaged = whole;
    damaged[at] ^= 0x10;
    if (parse_node_state(damaged, now_s)) {
      REQUIRE(nlohmann::json::parse(damaged)["state"] == content);
      continue;
    }
    ++refused;
    std::filesystem::remove(directory.path() / "node.corrupt.json");
    directory.write("node.json", damaged);
    const auto loaded = store->load_state();
    REQUIRE(loaded);
    REQUIRE(loaded->state.has_value());
    CHECK(loaded->state->incarnation == 1);
    CHECK(mentions(loaded->fallback_reason, "node.json"));
    CHECK(std::filesystem::exists(directory.path() / "node.corrupt.json"));
  }
  CHECK(refused > whole.size() * 9 / 10);
}

TEST_CASE("a changed digit of a state that still parses is refused by its checksum") {
  std::string changed = format_node_state(some_state(2), now_s);
  const std::string words = "\"incarnation\":2";
  const std::size_t at = changed.find(words);
  REQUIRE(at != std::string::npos);
  changed[at + words.size() - 1] = '3';
  const auto state = parse_node_state(changed, now_s);
  REQUIRE_FALSE(state);
  CHECK(mentions(state.error().text, "wrong checksum"));
}

TEST_CASE(
    "of 200 states damaged at random each is refused and the one before it loaded; of 200 with "
    "both damaged none starts") {
  const std::string good = format_node_state(some_state(2), now_s),
                    before = format_node_state(some_state(1), now_s);
  Random random(17);
  const auto damage = [&random](std::string text) {
    const std::size_t at = random.below(text.size());
    switch (random.below(6)) {
      case 0: return text.substr(0, at);
      case 1:
        return text.replace(at, 1, 1,
                            static_cast<char>(text[at] ^ static_cast<char>(1 + random.below(255))));
      case 2: return text.insert(at, 1 + random.below(100'000), "[{\"\\\0"[random.below(5)]);
      // blocks that were never written
      case 3: return text.replace(at, text.size() - at, text.size() - at, '\0');
      case 4: return std::string(random.below(4096), static_cast<char>(random.next()));
      default: return text.erase(at, 1 + random.below(64)) + text;
    }
  };
  const auto damaged = [&](const std::string& text) {
    std::string bad = damage(text);
    // Only what is no part of the content may be lost, such as the line's end.
    while (parse_node_state(bad, now_s)) {
      REQUIRE(nlohmann::json::parse(bad)["state"] == nlohmann::json::parse(text)["state"]);
      bad = damage(text);
    }
    return bad;
  };
  const TemporaryDirectory directory;
  const auto store = StateStore::open(directory.path());
  REQUIRE(store);
  for (int i = 0; i < 200; ++i) {
    CAPTURE(i);
    directory.write("node.previous.json", before);
    directory.write("node.json", damaged(good));
    const auto loaded = store->load_state();
    REQUIRE(loaded);
    REQUIRE(loaded->state);
    CHECK(loaded->state->incarnation == 1);
    CHECK_FALSE(loaded->fallback_reason.empty());
    directory.write("node.json", damaged(good));
    directory.write("node.previous.json", damaged(before));
    const auto none = store->load_state();
    REQUIRE_FALSE(none);
    CHECK(none.error().code == "bad-state");
  }
}

TEST_CASE("a state that nests deeper than any is refused before anything recurses on it") {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  for (const std::string& text :
       {deep, R"({"format":1,"checksum":"0","state":)" + deep + "}", std::string(1'000'000, '{')}) {
    const auto state = parse_node_state(text, now_s);
    REQUIRE_FALSE(state);
    CHECK(mentions(state.error().text, "nests deeper"));
  }
}

TEST_CASE("a state with more members than a node keeps is refused") {
  NodeState crowded = some_state(1);
  const MemberRecord member = crowded.members.at(0);
  while (crowded.members.size() < members_max) crowded.members.push_back(member);
  CHECK(parse_node_state(format_node_state(crowded, now_s), now_s));
  crowded.members.push_back(member);
  const auto state = parse_node_state(format_node_state(crowded, now_s), now_s);
  REQUIRE_FALSE(state);
  CHECK(mentions(state.error().text, "too many members"));
}

TEST_CASE("files that cannot be read for want of a descriptor are kept, and the reason is told") {
  const TemporaryDirectory directory;
  const std::string text = "a model";
  const JobFiles files(directory.path() / "files");
  REQUIRE_FALSE(write_durably(directory.path() / "model", text));
  const Result<JobFile> content = identify_file(directory.path() / "model");
  REQUIRE(content);
  REQUIRE_FALSE(files.keep(directory.path() / "model", *content));
  History history(1.0);
  history.add({});
  REQUIRE_FALSE(save_history(directory.path(), history.take_unsaved()));
  rlimit usual{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const rlimit none{0, usual.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const Result<StoredHistory> stored = load_history(directory.path());
  const Result<bool> held = files.holds(*content);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
  REQUIRE_FALSE(stored);
  CHECK(stored.error().code == "io-error");
  CHECK(mentions(stored.error().text, "history.jsonl: cannot open it: Too many open files"));
  REQUIRE_FALSE(held);
  CHECK(held.error().code == "io-error");
  CHECK(mentions(held.error().text, "cannot be read: Too many open files"));
  CHECK(load_history(directory.path())->points.size() == 1);
  CHECK(*files.holds(*content));
  // Read and wrong, it goes.
  REQUIRE_FALSE(write_durably(files.path(*content), "another"));
  CHECK_FALSE(*files.holds(*content));
  CHECK_FALSE(std::filesystem::exists(files.path(*content)));
}

TEST_CASE("a truncated state file falls back; with no whole file the daemon refuses to start") {
  const TemporaryDirectory directory;
  const auto store = StateStore::open(directory.path());
  REQUIRE(store);
  REQUIRE_FALSE(store->save_state(some_state(1)).has_value());
  directory.write("node.json", "");
  const auto loaded = store->load_state();
  REQUIRE_FALSE(loaded);
  CHECK(loaded.error().code == "bad-state");
  CHECK(mentions(loaded.error().text, "start as a new node"));
}
