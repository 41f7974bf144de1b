#include <doctest/doctest.h>

#include "daemon/config/bootstrap.h"
#include "daemon/disk/finished_mark.h"
#include "daemon/finish_watch.h"
#include "tests/unit/daemon_support.h"

using namespace gossipd;

namespace {

constexpr FinishWatch::Final nothing{}, whole{.on_disk = true, .evaluated = true};
constexpr Duration patience = std::chrono::seconds(60);

Instant at(int seconds) { return Instant{std::chrono::seconds(seconds)}; }

MemberView member(Phase phase, MemberState state = MemberState::alive) {
  MemberView view;
  view.record.name = "box2";
  view.record.phase = phase;
  view.record.state = state;
  return view;
}

std::uint32_t ordinal(const std::string& bootstrap,
                      const std::map<std::string, std::string>& environment,
                      const std::string& host = "box1") {
  const auto read = read_ordinal(bootstrap, environment, host);
  REQUIRE_MESSAGE(read, read.error().text);
  REQUIRE(*read);
  return **read;
}

std::string mistake(const std::string& bootstrap,
                    const std::map<std::string, std::string>& environment,
                    const std::string& host = "box1") {
  const auto read = read_ordinal(bootstrap, environment, host);
  return read ? "" : read.error().text;
}

}  // namespace

TEST_CASE("a node has finished when its model is on disk and every living member has finished") {
  FinishWatch watch(patience);
  CHECK_FALSE(watch.look(Phase::finished, 9, nothing, {}, at(1)));
  CHECK_FALSE(watch.look(Phase::finished, 9, whole, {member(Phase::finishing)}, at(2)));
  const auto dead = {member(Phase::training, MemberState::failed),
                     member(Phase::training, MemberState::left), member(Phase::finished)};
  const auto end = watch.look(Phase::finished, 9, whole, dead, at(3));
  REQUIRE(end);
  CHECK_FALSE(end->failed);
}

TEST_CASE("a member that never finishes is named, and holds nobody up for ever") {
  FinishWatch watch(patience);
  const std::vector<MemberView> others = {member(Phase::waiting_for_data)};
  CHECK_FALSE(watch.look(Phase::finished, 9, whole, others, at(0)));
  CHECK_FALSE(watch.look(Phase::finished, 9, whole, others, at(59)));
  // finishing anew, since the model has moved: the patience begins again
  CHECK_FALSE(watch.look(Phase::finishing, 9, whole, others, at(60)));
  CHECK_FALSE(watch.look(Phase::finished, 9, whole, others, at(61)));
  CHECK_FALSE(watch.look(Phase::finished, 9, whole, others, at(120)));
  const auto end = watch.look(Phase::finished, 9, whole, others, at(121));
  REQUIRE(end);
  CHECK_FALSE(end->failed);
  CHECK(end->why.find("box2 (waiting-for-data)") != std::string::npos);
}

TEST_CASE("no evaluation is waited for for ever, and the end says that there is none") {
  FinishWatch watch(patience);
  CHECK_FALSE(watch.look(Phase::finished, 9, {.on_disk = true}, {}, at(0)));
  const auto end = watch.look(Phase::finished, 9, {.on_disk = true}, {}, at(60));
  REQUIRE(end);
  // Whether something is held out or takes long to evaluate is not known here.
  CHECK(end->why.find("membership.finish_cap_ms") != std::string::npos);
}

TEST_CASE("a job has failed when the model is broken and nobody living has another") {
  FinishWatch watch(patience);
  CHECK_FALSE(watch.look(Phase::broken, 9, nothing, {member(Phase::broken)}, at(0)));
  CHECK_FALSE(watch.look(Phase::broken, 9, nothing, {member(Phase::training)}, at(59)));
  CHECK_FALSE(watch.look(Phase::broken, 9, nothing, {member(Phase::broken)}, at(60)));
  const auto end = watch.look(Phase::broken, 9, nothing, {member(Phase::broken)}, at(119));
  REQUIRE(end);
  CHECK(end->failed);
}

TEST_CASE("a model that breaks again and again has failed; one that recovers has not") {
  const auto breaks = [](Step steps_between) {
    FinishWatch watch(patience);
    std::optional<FinishWatch::End> end;
    for (int i = 0; i < 5 && !end; ++i) {
      end = watch.look(Phase::broken, 1 + i * steps_between, nothing, {}, at(2 * i));
      if (!end)
        end = watch.look(Phase::training, 1 + i * steps_between, nothing, {}, at(2 * i + 1));
    }
    return end;
  };
  const auto failed = breaks(3);
  REQUIRE(failed);
  CHECK(failed->failed);
  CHECK_FALSE(breaks(FinishWatch::sound_after_steps + 1));
}

TEST_CASE("the mark of a finished job is read as written, and a damaged one is none") {
  const TemporaryDirectory directory;
  const FinishedMark mark{JobHash{0xfedcba9876543210}, 600'000};
  CHECK_FALSE(read_finished_mark(directory.path()));
  REQUIRE_FALSE(write_finished_mark(directory.path(), mark));
  CHECK(read_finished_mark(directory.path()) == mark);
  for (const char* text :
       {"", "{", "[]", "{\"job\":7,\"budget_samples\":1}", "{\"job\":\"zz\",\"budget_samples\":1}",
        "{\"job\":\"0000000000000001\",\"budget_samples\":-1}",
        "{\"job\":\"0000000000000001\",\"budget_samples\":1e99}"}) {
    directory.write("finished.json", text);
    CHECK_MESSAGE(!read_finished_mark(directory.path()), text);
  }
}

TEST_CASE("a node's number comes from the command line, the scheduler or the host's name") {
  CHECK(ordinal("7", {{"SLURM_PROCID", "3"}}) == 7);
  CHECK(ordinal("auto", {{"JOB_COMPLETION_INDEX", "2"}, {"SLURM_PROCID", "3"}}) == 2);
  CHECK(ordinal("auto", {{"SLURM_PROCID", "3"}}, "box-1") == 3);
  CHECK(ordinal("auto", {{"SLURM_ARRAY_TASK_ID", "11"}, {"SLURM_ARRAY_TASK_MIN", "10"}}) == 1);
  CHECK(ordinal("auto", {{"SLURM_ARRAY_TASK_ID", "10"},
                         {"SLURM_ARRAY_TASK_MIN", "10"},
                         {"SLURM_PROCID", "0"},
                         {"SLURM_STEP_NUM_TASKS", "1"}}) == 0);
  CHECK(ordinal("auto", {}, "gossipd-0") == 0);
  CHECK(ordinal("auto", {}, "gossipd-12.gossipd.default.svc") == 12);
  const auto none = read_ordinal("", {{"SLURM_PROCID", "0"}}, "box-0");
  REQUIRE(none);
  CHECK_FALSE(*none);
}

TEST_CASE("what is no number of a node is refused with the way out") {
  for (const char* given : {"-1", "first", "1.5", "4294967296", "0x1", "auto1", " 1"})
    CHECK_MESSAGE(mistake(given, {}).find("neither auto nor") != std::string::npos, given);
  CHECK(mistake("auto", {}).find("--bootstrap N") != std::string::npos);
  CHECK(mistake("auto", {}, "gossipd-").find("--bootstrap N") != std::string::npos);
  CHECK(mistake("auto", {{"SLURM_PROCID", "x"}}).find("SLURM_PROCID") != std::string::npos);
  CHECK(mistake("auto", {{"SLURM_ARRAY_TASK_ID", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}})
            .find("several processes") != std::string::npos);
}
