#include <doctest/doctest.h>

#include "daemon/init/job_draft.h"
#include "daemon/init/shell_word.h"
#include "models/job/epochs.h"
#include "models/job/job.h"

using namespace gossipd;

namespace {

DataLook look_of(double mean, double deviation) {
  DataLook look{.words = "safetensors files of classes", .train_samples = 90};
  look.spec.kind = DataSpec::Kind::safetensors;
  look.spec.shape = {5};
  look.spec.train_files = {"train.safetensors"};
  look.spec.validation_fraction = 0.1;
  look.spec.mean = {mean};
  look.spec.deviation = {deviation};
  return look;
}

DataLook look_of_integers() {
  DataLook look = look_of(0, 1);
  look.spec.vocabulary = 50;
  return look;
}

std::string draft_of(const DataLook& look, const std::string& model = "") {
  const auto draft = draft_job(look, {.name = "test", .model_file = model});
  REQUIRE_MESSAGE(draft, (draft ? "" : draft.error().text));
  return *draft;
}

bool holds(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

}  // namespace

TEST_CASE("a draft has numbers of any size, and its job has the same") {
  for (const double value : {1e-6, 1.2345e-05, 0.00071807, 0.286, 0.2860405, 1.0, 1125.25,
                             123456.7891, 1e6, 999999.123456}) {
    CAPTURE(value);
    for (const double sign : {1.0, -1.0}) {
      const auto text = with_budget(draft_of(look_of(sign * value, value)), 90, "draft");
      REQUIRE(text);
      const auto job = Job::parse(*text, "draft");
      REQUIRE_MESSAGE(job, (job ? "" : job.error().text));
      CHECK(job->data.mean.at(0) == sign * value);
      CHECK(job->data.deviation.at(0) == value);
    }
  }
}

TEST_CASE("a draft writes ordinary numbers with four decimals") {
  const std::string draft = draft_of(look_of(0.286, 0.353));
  CHECK(holds(draft, "\nmean = 0.2860   "));
  CHECK(holds(draft, "\ndeviation = 0.3530\n"));
  CHECK(holds(draft, "\nvalidation_fraction = 0.1000 "));
}

TEST_CASE("a draft says where a deviation is not measured") {
  DataLook look = look_of(3, 1);
  CHECK_FALSE(holds(draft_of(look), "nothing differs"));
  look.constant_channels = 1;
  CHECK(holds(draft_of(look), "\ndeviation = 1.0000                  # 1 where nothing differs"));
}

TEST_CASE("a draft has what there is to note of the data, in lines that a terminal shows") {
  DataLook look = look_of(0, 1);
  CHECK_FALSE(holds(draft_of(look), "# Note"));
  look.notes = {"one " + std::string(60, 'x') + " two three four", "another"};
  const std::string draft = draft_of(look);
  CHECK(
      holds(draft, "\n# Note: one " + std::string(60, 'x') + " two\n#   three four\n# Note: ano"));
}

TEST_CASE("a draft has room for the means and deviations of 2048 columns, whatever their digits") {
  DataLook look = look_of(0, 1);
  look.spec.shape = {2048};
  look.spec.mean = std::vector<double>(2048, -999999.1234);
  look.spec.deviation = std::vector<double>(2048, 0.000001234);
  const std::string draft = draft_of(look);
  CHECK(holds(draft, "# measured: inputs become (value - mean) / deviation\nmean = [\n  -999"));
  const auto text = with_budget(draft, 90, "draft");
  REQUIRE(text);
  const auto job = Job::parse(*text, "draft");
  REQUIRE_MESSAGE(job, (job ? "" : job.error().text));
  CHECK(job->data.mean == look.spec.mean);
  CHECK(job->data.deviation == look.spec.deviation);
}

TEST_CASE("a draft for integers as inputs has their vocabulary and normalises nothing") {
  const std::string draft = draft_of(look_of_integers(), "/models/net.pt");
  CHECK(holds(draft, "\nvocabulary = 50 "));
  CHECK_FALSE(holds(draft, "\nmean"));
  CHECK_FALSE(holds(draft, "\ndeviation"));
  CHECK(holds(draft_of(look_of(0, 1), "/models/net.pt"), "\nmean = 0.0000"));
}

TEST_CASE(
    "a draft with a list that is long takes several lines for it, and its job has all of it") {
  DataLook look{.words = "folders of images", .train_samples = 5000};
  look.spec.kind = DataSpec::Kind::images;
  look.spec.shape = {3, 64, 64};
  look.spec.train_files = {"train"};
  look.spec.validation_fraction = 0.1;
  for (int i = 1000; i < 3000; ++i) look.spec.class_names.push_back("a class " + std::to_string(i));
  look.spec.classes = 2000;
  const std::string draft = draft_of(look);
  CHECK(holds(draft, "\nclass_names = [\n  \"a class 1000\", \"a class 1001\","));
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = draft.find('\n', begin)) < draft.size(); begin = end + 1)
    if (draft[begin] == ' ') CHECK(end - begin <= 80);
  const auto text = with_budget(draft, 5000, "draft");
  REQUIRE(text);
  const auto job = Job::parse(*text, "draft");
  REQUIRE_MESSAGE(job, (job ? "" : job.error().text));
  CHECK(job->data.class_names == look.spec.class_names);
  look.spec.class_names.clear();
  CHECK(holds(draft_of(look), "\nclasses = 2000                      # train/'s folders, whose"));
}

TEST_CASE("integers as inputs need a model of one's own, and the error says so") {
  const auto draft = draft_job(look_of_integers(), {.name = "test", .model_file = ""});
  REQUIRE_FALSE(draft);
  CHECK(
      draft.error().text.starts_with("no built-in model takes integers as inputs; give your own "
                                     "with --model FILE"));
}

TEST_CASE("a word for a shell is quoted only where it needs it") {
  CHECK(shell_word("/data/fashion-mnist_2.0/a=b,c:d@e+f%") ==
        "/data/fashion-mnist_2.0/a=b,c:d@e+f%");
  CHECK(shell_word("/Daten/Äpfel") == "/Daten/Äpfel");
  CHECK(shell_word("") == "''");
  CHECK(shell_word("my data") == "'my data'");
  CHECK(shell_word("it's") == "'it'\\''s'");
  for (const std::string hostile : {"~/x", "$HOME", "a`b`", "a\"b", "a\\b", "a*", "a;b", "a&b",
                                    "#a", "a|b", "(a)", "{a,b}", "a?", "[a]", "a>b", "a!b", "a\tb"})
    CHECK(shell_word(hostile) == "'" + hostile + "'");
}
