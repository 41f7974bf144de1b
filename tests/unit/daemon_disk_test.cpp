// The disk writer and its callers: order, folding, an unresponsive disk, a log's queue, modes of
// files.
#include <doctest/doctest.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <vector>

#include "daemon/disk/bounded_answers.h"
#include "daemon/disk/disk_writer.h"
#include "daemon/disk/durable_file.h"
#include "daemon/disk/state_store.h"
#include "daemon/log/log.h"
#include "daemon/log/log_queue.h"
#include "tests/unit/daemon_support.h"

using namespace gossipd;
using namespace std::chrono_literals;

namespace {

constexpr Duration patience = 60s;

// A disk that does not answer until open().
class Gate {
 public:
  DiskWriter::Task task() {
    return [this]() -> std::optional<Error> {
      reached_.set_value();
      opened_.wait();
      return std::nullopt;
    };
  }
  void wait_until_reached() { reached_.get_future().wait(); }
  void open() { open_.set_value(); }

 private:
  std::promise<void> reached_, open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

mode_t mode_of(const std::filesystem::path& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 0777;
}

}  // namespace

TEST_CASE("tasks are carried out in the order of asking, and each says on the loop how it ended") {
  EventLoop loop;
  DiskWriter writer(loop);
  std::vector<std::string> ended;
  const auto says = [&](const char* what) {
    return [&ended, what](const std::optional<Error>& error) {
      ended.push_back(what + (error ? ": " + error->code : std::string()));
    };
  };
  writer.write(
      "a", [] { return std::nullopt; }, says("a"));
  writer.write(
      "b",
      []() -> std::optional<Error> {
        return Error{"no-space", "full"};
      },
      says("b"));
  writer.write_newest(
      "c", [] { return std::nullopt; }, says("c"));
  bool all = false;
  writer.after_all([&] { all = true; });
  CHECK(ended.empty());  // callbacks come only from the loop
  REQUIRE(loop.run_until([&] { return all; }, patience));
  CHECK(ended == std::vector<std::string>{"a", "b: no-space", "c"});
  const DiskView view = writer.view(EventLoop::now());
  CHECK(view.written == 2);
  CHECK(view.failed == 1);
  CHECK(view.waiting == 0);
  CHECK(view.writing.empty());
}

TEST_CASE(
    "of the states that wait only the newest is written, behind all that was asked for before it") {
  EventLoop loop;
  DiskWriter writer(loop);
  Gate gate;
  std::vector<std::string> written, told;
  const auto put = [&](const std::string& what) {
    return [&written, what]() -> std::optional<Error> {
      written.push_back(what);  // by the one thread of the writer, read when it is idle
      return std::nullopt;
    };
  };
  const auto tell = [&](const std::string& what) {
    return [&told, what](const std::optional<Error>&) { told.push_back(what); };
  };
  writer.write_newest("node.json", gate.task(), tell("state 0"));
  gate.wait_until_reached();
  for (const int state : {1, 2})
    writer.write_newest("node.json", put("state " + std::to_string(state)),
                        tell("state " + std::to_string(state)));
  writer.write("job.toml", put("job"), tell("job"));
  writer.write_newest("node.json", put("state 3"), tell("state 3"));
  CHECK(writer.view(EventLoop::now()).waiting == 2);
  bool all = false;
  writer.after_all([&] { all = true; });
  gate.open();
  REQUIRE(loop.run_until([&] { return all; }, patience));
  CHECK(written == std::vector<std::string>{"job", "state 3"});
  CHECK(told == std::vector<std::string>{"state 0", "job", "state 3"});
  CHECK(writer.view(EventLoop::now()).replaced == 2);
}

TEST_CASE("who asked to be told after a state that a newer one replaces is told after that one") {
  EventLoop loop;
  DiskWriter writer(loop);
  Gate gate, held;
  std::vector<std::string> told;
  const auto tell = [&](const std::string& what) {
    return [&told, what](const std::optional<Error>&) { told.push_back(what); };
  };
  const DiskWriter::Task nothing = [] { return std::nullopt; };
  writer.write_newest("node.json", gate.task(), tell("state 0"));
  gate.wait_until_reached();
  writer.after_all([&] { told.emplace_back("after state 0"); });
  writer.write_newest("node.json", nothing, tell("state 1"));
  writer.after_all([&] { told.emplace_back("after state 1"); });
  writer.write("job.toml", nothing, tell("job"));
  writer.write_newest("node.json", held.task(), tell("state 2"));
  gate.open();
  held.wait_until_reached();
  REQUIRE(loop.run_until([&] { return told.size() >= 3; }, patience));
  CHECK(told == std::vector<std::string>{"state 0", "after state 0", "job"});
  held.open();
  REQUIRE(loop.run_until([&] { return told.size() >= 5; }, patience));
  CHECK(told[3] == "state 2");
  CHECK(told[4] == "after state 1");
}

TEST_CASE(
    "while a write does not end the loop goes on, and the view says which file it is and for how "
    "long") {
  EventLoop loop;
  DiskWriter writer(loop);
  Gate gate;
  bool ended = false, all = false;
  writer.write("node.json", gate.task(), [&](const std::optional<Error>&) { ended = true; });
  gate.wait_until_reached();
  writer.after_all([&] { all = true; });
  const DiskView view = writer.view(EventLoop::now() + 6s);
  CHECK(view.writing == "node.json");
  CHECK(view.writing_s >= 6);
  CHECK(view.slowest_s == view.writing_s);
  CHECK(takes_long(view));
  CHECK_FALSE(takes_long(writer.view(EventLoop::now())));
  bool went_on = false;
  loop.post([&] { went_on = true; });
  REQUIRE(loop.run_until([&] { return went_on; }, patience));
  CHECK_FALSE(ended);
  CHECK_FALSE(all);
  gate.open();
  REQUIRE(loop.run_until([&] { return all; }, patience));
  CHECK(ended);
}

TEST_CASE("a writer whose directory is another node's by now carries out no task, and says why") {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "state";
  const Result<StateStore> first = StateStore::open(path);
  REQUIRE(first);
  EventLoop loop;
  DiskWriter writer(loop, [&first] { return first->check_lock(); });
  std::vector<std::string> ended;
  const auto write = [&] {
    bool all = false;
    writer.write(
        "history.jsonl", [&path] { return write_durably(path / "history.jsonl", "points"); },
        [&](const std::optional<Error>& error) { ended.push_back(error ? error->text : "done"); });
    writer.after_all([&] { all = true; });
    REQUIRE(loop.run_until([&] { return all; }, patience));
  };
  write();
  std::filesystem::remove_all(path);
  const Result<StateStore> second = StateStore::open(path);
  REQUIRE(second);
  write();
  REQUIRE(ended.size() == 2);
  CHECK(ended[0] == "done");
  CHECK(ended[1].starts_with(path.string() + ": was removed or replaced"));
  CHECK_FALSE(std::filesystem::exists(path / "history.jsonl"));
  CHECK(writer.view(EventLoop::now()).failed == 1);
}

TEST_CASE("an answer comes once: with what was waited for, or late") {
  BoundedAnswers answers;
  std::vector<int> said;
  const Instant start{};
  const auto say = [&](int value) { said.push_back(value); };
  const auto in_time = answers.bounded<int>(say, -1, start + 5s);
  const auto too_late = answers.bounded<int>(say, -2, start + 5s);
  const auto later = answers.bounded<int>(say, -3, start + 10s);
  in_time(1);
  answers.expire(start + 4s);
  CHECK(said == std::vector{1});
  answers.expire(start + 5s);
  CHECK(said == std::vector{1, -2});
  too_late(2);
  later(3);
  answers.expire(start + 20s);
  CHECK(said == std::vector{1, -2, 3});
}

TEST_CASE("what comes after a late answer is told apart, and nothing of an answer in time") {
  BoundedAnswers answers;
  std::vector<int> said, afterwards;
  const auto say = [&](int value) { said.push_back(value); };
  const auto tell = [&](int value) { afterwards.push_back(value); };
  const auto in_time = answers.bounded<int>(say, -1, Instant{} + 5s, tell);
  const auto too_late = answers.bounded<int>(say, -2, Instant{} + 5s, tell);
  in_time(1);
  answers.expire(Instant{} + 5s);
  CHECK(afterwards.empty());
  too_late(2);
  CHECK(said == std::vector{1, -2});
  CHECK(afterwards == std::vector{2});
}

TEST_CASE(
    "a log whose disk hangs keeps nobody: lines wait up to a bound, and those beyond are counted") {
  struct HangingSink final : spdlog::sinks::sink {
    std::promise<void> reached, open;
    std::shared_future<void> opened = open.get_future().share();
    std::vector<std::string> lines;
    void log(const spdlog::details::log_msg& message) override {
      if (lines.empty()) reached.set_value();
      opened.wait();
      lines.emplace_back(message.payload.data(), message.payload.size());
    }
    void flush() override {}
    void set_pattern(const std::string&) override {}
    void set_formatter(std::unique_ptr<spdlog::formatter>) override {}
  };
  const auto sink = std::make_shared<HangingSink>();
  const auto queue = std::make_shared<LogQueue>(sink);
  spdlog::logger logger("test", queue);
  logger.info("first");
  sink->reached.get_future().wait();  // the thread holds it, and hangs
  CHECK_FALSE(queue->drain(1ms));
  for (std::size_t i = 0; i < LogQueue::lines_max + 10; ++i) logger.info("line");
  sink->open.set_value();
  REQUIRE(queue->drain(60s));
  logger.info("last");
  REQUIRE(queue->drain(60s));
  CHECK(sink->lines.size() == LogQueue::lines_max + 3);
  CHECK(sink->lines.front() == "first");
  CHECK(sink->lines[sink->lines.size() - 2].find("event=log-lines-dropped count=10 ") == 0);
  CHECK(sink->lines.back() == "last");
}

TEST_CASE("a log that cannot be written loses lines, counts them, and keeps the process alive") {
  struct FullSink final : spdlog::sinks::sink {
    std::atomic<bool> full{true};
    std::vector<std::string> lines;
    void log(const spdlog::details::log_msg& message) override {
      if (full) throw spdlog::spdlog_ex("No space left on device");
      lines.emplace_back(message.payload.data(), message.payload.size());
    }
    void flush() override {}
    void set_pattern(const std::string&) override {}
    void set_formatter(std::unique_ptr<spdlog::formatter>) override {}
  };
  const auto sink = std::make_shared<FullSink>();
  const auto queue = std::make_shared<LogQueue>(sink);
  spdlog::logger logger("test", queue);
  for (int i = 0; i < 3; ++i) {
    logger.info("lost");
    // The thread may take the lines in any batches: the count is the same.
    if (i == 0) REQUIRE(queue->drain(60s));
  }
  REQUIRE(queue->drain(60s));
  sink->full = false;
  logger.info("written");
  REQUIRE(queue->drain(60s));
  REQUIRE(sink->lines.size() == 2);
  CHECK(sink->lines[0].find("event=log-lines-dropped count=3 ") == 0);
  CHECK(sink->lines[1] == "written");
}

TEST_CASE("a FIFO is refused as a log file: it would hold the node up until it is read") {
  const TemporaryDirectory directory;
  const std::string path = (directory.path() / "fifo").string();
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const auto error = open_log({.level = "info", .file = path, .node = "n"});
  REQUIRE(error);
  CHECK(error->text.find(path + " is a FIFO") != std::string::npos);
}

TEST_CASE("only its owner can read the state directory, also one created with wider permissions") {
  const TemporaryDirectory directory;
  const std::filesystem::path state = directory.path() / "state";
  for (const auto& made : {state, state / "checkpoints"}) {
    std::filesystem::create_directories(made);
    REQUIRE(::chmod(made.c_str(), 0755) == 0);
  }
  const auto store = StateStore::open(state);
  REQUIRE(store);
  NodeState node;
  node.id = NodeId{1};
  REQUIRE_FALSE(store->save_state(node));
  REQUIRE_FALSE(store->save_job("name = 'tiny'\n"));
  const JobFile file{.hash_high = 1, .hash_low = 2, .bytes = 3};
  CHECK_FALSE(store->files().add_piece(
      file, 0, Bytes(3)));  // it is not the file of that hash, but the directory is made
  for (const char* name : {"", "checkpoints", "files"}) CHECK(mode_of(state / name) == 0700);
  for (const char* name : {"node.json", "job.toml", "lock"}) CHECK(mode_of(state / name) == 0600);
}

TEST_CASE(
    "a directory that others use as well stays open to them when it becomes a state directory") {
  const TemporaryDirectory directory;
  const std::filesystem::path shared = directory.path() / "shared";
  std::filesystem::create_directories(shared);
  std::ofstream(shared / "theirs.txt") << "x";
  REQUIRE(::chmod(shared.c_str(), 0755) == 0);
  for (int start = 0; start < 2; ++start) {
    const auto store = StateStore::open(shared);
    REQUIRE(store);
    CHECK(mode_of(shared) == 0755);
    CHECK(mode_of(shared / "checkpoints") == 0700);
  }
}

TEST_CASE("where no state directory can be is told without making one, as the operator's mistake") {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "file";
  std::ofstream(file) << "x";
  for (const std::filesystem::path& wrong :
       {file, file / "state", directory.path() / std::string(300, 'a')}) {
    const auto tried = StateStore::try_directory(wrong);
    REQUIRE(tried);
    CHECK(tried->code == "bad-config");
    CHECK(tried->text.starts_with(wrong.string()));
    const auto opened = StateStore::open(wrong);
    REQUIRE_FALSE(opened);
    CHECK(opened.error().code == "bad-config");
  }
  const std::filesystem::path fresh = directory.path() / "a" / "state";
  CHECK_FALSE(StateStore::try_directory(fresh));
  CHECK_FALSE(std::filesystem::exists(directory.path() / "a"));
  CHECK(StateStore::open(fresh));
  CHECK_FALSE(StateStore::try_directory(fresh));
}
