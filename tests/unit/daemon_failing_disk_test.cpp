// A disk or a server that fails for a while: nothing is taken for missing, and a restart may help.
#include <doctest/doctest.h>
#include <fcntl.h>

#include <cerrno>

#include <sys/resource.h>
#include <sys/stat.h>

#include "core/model/job_hash.h"
#include "daemon/config/config.h"
#include "daemon/disk/durable_file.h"
#include "daemon/disk/state_store.h"
#include "models/files/model_file.h"
#include "models/job/toml_reader.h"
#include "tests/unit/daemon_state_support.h"

using namespace gossipd;

namespace {

// While it lives, stat() of the path fails on this thread.
class FailingStat {
 public:
  explicit FailingStat(std::filesystem::path path) : path_(std::move(path)) { now_ = this; }
  ~FailingStat() { now_ = nullptr; }
  FailingStat(const FailingStat&) = delete;
  FailingStat& operator=(const FailingStat&) = delete;
  static bool fails(const char* path) { return now_ != nullptr && now_->path_ == path; }

 private:
  inline static thread_local FailingStat* now_ = nullptr;
  const std::filesystem::path path_;
};

}  // namespace

extern "C" int stat(const char* path, struct stat* out) noexcept {
  if (!FailingStat::fails(path)) return ::fstatat(AT_FDCWD, path, out, 0);
  errno = EIO;
  return -1;
}

TEST_CASE("a text file that cannot be opened for want of a descriptor is not called missing") {
  const TemporaryDirectory directory;
  const std::string file = directory.write("job.toml", "name = 'tiny'\n");
  rlimit usual{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const rlimit none{0, usual.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const Result<std::string> text = read_text_file(file);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
  REQUIRE_FALSE(text);
  CHECK(text.error().code == "io-error");
  CHECK(mentions(text.error().text, "job.toml: cannot be opened: Too many open files; look for"));
  CHECK(read_text_file(directory.path() / "gone").error().code == "not-found");
  CHECK(read_text_file(file + "/below").error().code == "not-found");
}

TEST_CASE("a node file on a disk that fails is no wrong configuration; a missing one is") {
  const auto code = [](const std::string& file) {
    return read_command_line({"--config", file, "--state-dir", "/nowhere"}, {}).error().code;
  };
  CHECK(code("/proc/self/mem") == "io-error");  // nothing is mapped at its beginning
  CHECK(code("/nowhere/node.toml") == "bad-config");
}

TEST_CASE("a model's file that cannot be looked at now is not called missing") {
  const TemporaryDirectory directory;
  const std::string file = directory.write("model.pt", "a model");
  {
    const FailingStat failing(file);
    const Result<JobFile> found = identify_file(file);
    REQUIRE_FALSE(found);
    CHECK(found.error().code == "io-error");
    CHECK(mentions(found.error().text, "model.pt: cannot be read: Input/output error"));
  }
  CHECK(identify_file(file));
  CHECK(identify_file(directory.path() / "gone").error().code == "bad-config");
}

TEST_CASE("a state directory is gone where its lock is, not where the disk fails") {
  const TemporaryDirectory directory;
  const std::filesystem::path at = directory.path() / "state";
  const auto store = StateStore::open(at);
  REQUIRE(store);
  {
    const FailingStat failing(at / "lock");
    const std::optional<Error> error = store->save_state(some_state(1));
    REQUIRE(error);
    CHECK(error->code == "io-error");
    CHECK(mentions(error->text, "lock: cannot be looked at: Input/output error"));
  }
  CHECK_FALSE(store->save_state(some_state(1)));
  std::filesystem::rename(at, directory.path() / "away");
  CHECK(store->check_lock()->code == "state-gone");
  directory.write("state", "");
  CHECK(store->check_lock()->code == "state-gone");
  std::filesystem::remove(at);
  const auto another = StateStore::open(at);
  REQUIRE(another);
  CHECK(store->check_lock()->code == "state-gone");
}

TEST_CASE("the job before is not settled while a disk that fails hides what is to be set aside") {
  for (const char* const hidden : {"checkpoints", "history.jsonl"}) {
    CAPTURE(hidden);
    const TemporaryDirectory directory;
    const std::filesystem::path at = directory.path() / "state";
    const auto store = StateStore::open(at);
    REQUIRE(store);
    const std::string before = "name = \"tiny\"\n";
    NodeState state = some_state(1);
    state.former_job = job_hash_of(before);
    state.former_generation = 2;
    const std::filesystem::path former = at / "jobs" / ("2-" + to_hex(state.former_job));
    REQUIRE_FALSE(store->save_job(before));
    REQUIRE_FALSE(store->save_state(state));
    REQUIRE_FALSE(write_durably(store->checkpoint_path("current"), "old model"));
    REQUIRE_FALSE(write_durably(at / "history.jsonl", "old history"));
    {
      const FailingStat failing(at / hidden);
      const std::optional<Error> error = store->set_former_job_aside(state);
      REQUIRE(error);
      CHECK(error->code == "io-error");
      CHECK(mentions(error->text, "Input/output error"));
    }
    CHECK(state.former_job == job_hash_of(before));
    CHECK(store->load_state()->state->former_job == state.former_job);
    std::filesystem::rename(at / "job.toml", at / "whole");
    std::filesystem::create_symlink("/proc/self/mem", at / "job.toml");  // it cannot be read
    const std::optional<Error> unread = store->set_former_job_aside(state);
    REQUIRE(unread);
    CHECK(unread->code == "io-error");
    std::filesystem::rename(at / "whole", at / "job.toml");
    REQUIRE_FALSE(store->set_former_job_aside(state));
    CHECK(*read_whole(former / "checkpoints" / "current.safetensors") == "old model");
    CHECK(*read_whole(former / "history.jsonl") == "old history");
    CHECK(*read_whole(former / "job.toml") == before);
  }
}
