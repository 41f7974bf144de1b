#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "daemon/rest/history_file.h"
#include "tests/unit/daemon_support.h"

using namespace gossipd;

namespace {

HistoryPoint point(double time_s, bool evaluated = false) {
  HistoryPoint p;
  p.time_s = time_s;
  p.step = static_cast<Step>(time_s);
  p.cluster_samples = 32 * p.step;
  p.loss = 1.5;
  if (evaluated)
    p.evaluation = Figures{.loss = 0.5, .accuracy = 0.9, .top5_accuracy = {}, .perplexity = {}};
  return p;
}

void save(const TemporaryDirectory& directory, History& history) {
  REQUIRE_FALSE(save_history(directory.path(), history.take_unsaved()));
}

StoredHistory loaded(const TemporaryDirectory& directory) {
  Result<StoredHistory> stored = load_history(directory.path());
  REQUIRE_MESSAGE(stored, (stored ? "" : stored.error().text));
  return std::move(*stored);
}

std::size_t lines_in(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count(text, '\n'));
}

}  // namespace

TEST_CASE("a history is read as it was written, in appended pieces") {
  const TemporaryDirectory directory;
  CHECK(loaded(directory).interval_s == 0);
  History history(2.0);
  for (int i = 0; i < 30; ++i) {
    history.add(point(2.0 * i, i % 7 == 0));
    if (i % 4 == 0) save(directory, history);
  }
  HistoryPoint broken = point(100);
  broken.loss = std::nan("");
  history.add(broken);
  save(directory, history);
  CHECK(history.take_unsaved().points.empty());

  const StoredHistory stored = loaded(directory);
  CHECK(stored.warning.empty());
  CHECK(stored.whole);
  CHECK(stored.interval_s == 2.0);
  REQUIRE(stored.points.size() == history.points().size());
  CHECK(stored.points[7].evaluation->accuracy == 0.9);
  CHECK_FALSE(stored.points[8].evaluation);
  CHECK(stored.points[8].cluster_samples == history.points()[8].cluster_samples);
  CHECK(std::isnan(stored.points.back().loss));
}

TEST_CASE("over months of restarts the file has no more lines than the history has points") {
  const TemporaryDirectory directory;
  double time_s = 0;
  for (int life = 0; life < 6; ++life) {
    History history(2.0);
    StoredHistory stored = loaded(directory);
    CHECK(stored.warning.empty());
    if (stored.interval_s > 0)
      history.restore(stored.interval_s, std::move(stored.points), stored.whole);
    for (int i = 0; i < 3000; ++i) {
      history.add(point(time_s += 2.0));
      if (i % 5 == 0) save(directory, history);
    }
    save(directory, history);
    CHECK(lines_in(read_file(directory.path() / "history.jsonl")) <= History::points_max + 1);
  }
  const StoredHistory stored = loaded(directory);
  CHECK(stored.points.size() <= History::points_max);
  CHECK(stored.points.front().time_s == 2.0);
  CHECK(stored.points.back().time_s > time_s - 2 * stored.interval_s);
}

TEST_CASE("a point that did not get to the file comes with the whole history the next time") {
  const TemporaryDirectory directory;
  History history(1.0);
  history.add(point(0));
  save(directory, history);
  history.add(point(1));
  (void)history.take_unsaved();
  history.not_saved();
  history.add(point(2));
  save(directory, history);
  CHECK(loaded(directory).points.size() == 3);
}

TEST_CASE("a line that a crash cut off is dropped, other damage is set aside and named") {
  const TemporaryDirectory directory;
  History history(1.0);
  for (int i = 0; i < 5; ++i) history.add(point(i));
  save(directory, history);
  const std::string whole = read_file(directory.path() / "history.jsonl");

  directory.write("history.jsonl", whole.substr(0, whole.size() - 3));
  StoredHistory stored = loaded(directory);
  CHECK(stored.points.size() == 4);
  CHECK_FALSE(stored.whole);  // nothing is appended to half a line
  CHECK(stored.warning.empty());

  const std::string header = whole.substr(0, whole.find('\n') + 1);
  for (const std::string& damage :
       {std::string("nonsense\n"), std::string("{\"format\":2,\"interval_s\":1}\n"),
        std::string("{\"format\":1,\"interval_s\":0}\n"),
        std::string("{\"format\":1,\"interval_s\":1e300}\n"), header + "{\"time_s\":-1}\n",
        header + std::string(100'000, '[') + "\n", header + "{\"time_s\":1e400}\n",
        whole + whole.substr(header.size()), header + std::string(3, '\0') + "\n"}) {
    directory.write("history.jsonl", damage);
    stored = loaded(directory);
    CHECK_MESSAGE(stored.warning.find("history.jsonl: is damaged") != std::string::npos,
                  damage.substr(0, 60));
    CHECK_FALSE(std::filesystem::exists(directory.path() / "history.jsonl"));
    CHECK(std::filesystem::exists(directory.path() / "history.corrupt.jsonl"));
  }
  std::filesystem::create_directory(directory.path() / "history.jsonl");
  CHECK(loaded(directory).points.empty());
  CHECK_FALSE(loaded(directory).whole);
}
