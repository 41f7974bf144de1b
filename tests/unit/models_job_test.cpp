#include "models/job/job.h"

#include <set>

#include "models/job/schedule.h"
#include "models_test_support.h"

using namespace gossipd;
using test::contains;
using test::parse_job;

namespace {
const std::string small = "name = 'x'\nbudget_samples = 1000\n";
}

TEST_CASE("A job's canonical text parses to the same job and to itself") {
  for (const std::string& text :
       {small,
        small + "[model]\nkind = 'mlp'\nhidden = [64, 32]\n[schedule]\nkind = 'step'\nmilestones = "
                "[500, 700]\ngamma = 0.3\n",
        small + "[optimizer]\nlearning_rate = 0.1234567890123\nweight_decay = 1e-7\nnesterov = "
                "true\n[schedule]\nkind = 'constant'\n",
        small +
            "[optimizer]\nkind = 'adamw'\nbeta2 = 0.95\nepsilon = 1e-6\nweight_decay = 0.1\n"}) {
    const Job job = parse_job(text);
    const Job again = parse_job(job.canonical_text());
    CHECK(again == job);
    CHECK(again.canonical_text() == job.canonical_text());
    CHECK(again.hash() == job.hash());
  }
}

TEST_CASE("Comments, order and spelled-out defaults do not change a job's hash") {
  const Job job = parse_job(small);
  const Job spelled = parse_job(
      "# a comment\nbatch = 32\nbudget_samples = 1_000\nname = \"x\"\n[optimizer]\nmomentum = "
      "0.9\nkind = 'sgd'\n");
  CHECK(spelled.hash() == job.hash());
}

TEST_CASE("Every field of a job is part of its hash") {
  const Job job = parse_job(small);
  std::vector<Job> others(14, job);
  others[0].name = "y";
  others[1].seed = 2;
  others[2].batch = 16;
  others[3].budget_samples = 1001;
  others[4].model.width = 8;
  others[5].data.mean = {0.5};
  others[6].optimizer.weight_decay = 1e-4;
  others[7].schedule.warmup_samples = 10;
  others[8].evaluate_every_samples = 5;
  others[9].optimizer.kind = OptimizerSpec::Kind::adamw;
  others[10].training.precision = TrainingSpec::Precision::tf32;
  others[11].training.precision = TrainingSpec::Precision::bf16;
  others[12].training.precision = TrainingSpec::Precision::fp16;
  others[13].training.patience = 3;
  std::set<JobHash> hashes{job.hash()};
  for (const Job& other : others) hashes.insert(other.hash());
  CHECK(hashes.size() == 1 + others.size());
}

// If this fails, running clusters no longer recognise their own job: raise the protocol version
// with it.
TEST_CASE("A job's hash does not change between versions of gossipd") {
  CHECK(parse_job(small).canonical_text() ==
        "name = \"x\"\nseed = 1\nbatch = 32\nbudget_samples = 1000\nevaluate_every_samples = 0\n"
        "\n[model]\nkind = \"cnn\"\nhidden = [96]\nwidth = 16\n"
        "\n[data]\nkind = \"idx\"\nshape = [1, 28, 28]\nclasses = 10\nmean = 0.0\ndeviation = 1.0\n"
        "train_images = \"train-images-idx3-ubyte\"\ntrain_labels = \"train-labels-idx1-ubyte\"\n"
        "test_images = \"t10k-images-idx3-ubyte\"\ntest_labels = \"t10k-labels-idx1-ubyte\"\n"
        "\n[optimizer]\nkind = \"sgd\"\nlearning_rate = 0.05\nmomentum = 0.9\nweight_decay = "
        "0.0\nnesterov = false\n"
        "\n[schedule]\nkind = \"cosine\"\nwarmup_samples = 0\nfinal_fraction = 0.0\n");
  CHECK(to_hex(parse_job(small).hash()) == "3201f73fb373f87c");
}

TEST_CASE(
    "An AdamW job's text has the keys of AdamW, and PyTorch's learning rate and betas by default") {
  const std::string text = parse_job(small + "[optimizer]\nkind = 'adamw'\n").canonical_text();
  CHECK(contains(text,
                 "\n[optimizer]\nkind = \"adamw\"\nlearning_rate = 0.001\nbeta1 = 0.9\nbeta2 = "
                 "0.999\nepsilon = 1e-08\n"
                 "weight_decay = 0.0\n\n[schedule]\n"));
}

TEST_CASE("Keys of the other optimiser are refused, naming the way out") {
  const auto refused = [](const std::string& optimizer) {
    const auto job = Job::parse(small + "[optimizer]\n" + optimizer, "j.toml");
    REQUIRE(!job);
    return job.error().text;
  };
  const std::string adamw = refused("kind = 'adamw'\nmomentum = 0.9\nnesterov = false\n");
  CHECK(contains(
      adamw, "j.toml:5: optimizer.momentum: belongs to sgd; take it out, or set kind = \"sgd\""));
  CHECK(contains(
      adamw, "j.toml:6: optimizer.nesterov: belongs to sgd; take it out, or set kind = \"sgd\""));
  CHECK(!contains(adamw, "unknown key"));
  for (const std::string key : {"beta1", "beta2", "epsilon"})
    CHECK(contains(
        refused(key + " = 0.5\n"),
        "j.toml:4: optimizer." + key + ": belongs to adamw; take it out, or set kind = \"adamw\""));
  CHECK(contains(refused("kind = 'adamw'\nepsilon = 0\n"), "optimizer.epsilon"));
}

TEST_CASE("A job without a name or a budget is refused, naming both") {
  const auto job = Job::parse("batch = 32\n", "j.toml");
  REQUIRE(!job);
  CHECK(contains(job.error().text, "name: is missing"));
  CHECK(contains(job.error().text, "budget_samples: is missing"));
}

TEST_CASE("A key with a wrong value is not called missing as well") {
  for (const std::string rest : {"[data]\nkind = 'images'\nclass_names = 7\n",
                                 "[data]\nkind = 'tensors'\ntrain_files = ['a']\nshape = 'x'\n",
                                 "[schedule]\nkind = 'step'\nmilestones = 'x'\n"}) {
    const auto job = Job::parse(small + rest, "j.toml");
    REQUIRE(!job);
    CHECK(contains(job.error().text, "must be"));
    CHECK(!contains(job.error().text, "is missing"));
  }
}

TEST_CASE("A job cannot name files outside the data directory") {
  for (const std::string name : {"../secret", "/etc/passwd", "a/b", ".."})
    CHECK(!Job::parse(small + "[data]\ntrain_images = '" + name + "'\n", "j"));
}

TEST_CASE("A job's contradictions are refused") {
  CHECK(!Job::parse("start_from = ''\n" + small, "j"));
  CHECK(!Job::parse(small + "[schedule]\nwarmup_samples = 1000\n", "j"));
  CHECK(!Job::parse(small + "[schedule]\nkind = 'step'\nmilestones = [700, 500]\n", "j"));
  CHECK(!Job::parse(small + "[schedule]\nkind = 'step'\n", "j"));
  CHECK(!Job::parse(small + "[optimizer]\nmomentum = 0\nnesterov = true\n", "j"));
  CHECK(!Job::parse(small + "[data]\nshape = [1, 8, 8]\n", "j"));
}

TEST_CASE("A key of another schedule is refused, not ignored") {
  CHECK(!Job::parse(small + "[schedule]\nkind = 'cosine'\ngamma = 0.5\n", "j"));
}

TEST_CASE("The job that comes with gossipd parses") {
  const auto job = Job::load(GOSSIPD_SOURCE_DIR "/deploy/jobs/fashion-mnist.toml");
  REQUIRE_MESSAGE(job, (job ? "" : job.error().text));
  CHECK(job->name == "fashion-mnist");
}

TEST_CASE(
    "The learning rate warms up in a line, peaks, and falls along a cosine to its final fraction") {
  const Job job = parse_job(
      "name = 'x'\nbatch = 10\nbudget_samples = 1100\n[optimizer]\nlearning_rate = 0.2\n"
      "[schedule]\nwarmup_samples = 100\nfinal_fraction = 0.1\n");
  // the batch that is about to be trained on counts
  CHECK(learning_rate_at(job, 0) == doctest::Approx(0.02));
  CHECK(learning_rate_at(job, 50) == doctest::Approx(0.12));
  CHECK(learning_rate_at(job, 100) == doctest::Approx(0.2));
  CHECK(learning_rate_at(job, 600) == doctest::Approx(0.2 * (0.1 + 0.9 * 0.5)));
  CHECK(learning_rate_at(job, 1100) == doctest::Approx(0.02));
  CHECK(learning_rate_at(job, 5000) == doctest::Approx(0.02));
  CHECK(learning_rate_peak(job) == 0.2);
  CHECK(is_warming_up(job, 99));
  CHECK_FALSE(is_warming_up(job, 100));
}

TEST_CASE("No rate is above the peak, not by rounding either") {
  for (const char* rate : {"0.05", "0.1", "0.003"})
    for (const Samples warmup : {12288, 24576, 49152, 50000}) {
      const Job job = parse_job("name = 'x'\nbatch = 64\nbudget_samples = 100000\n[optimizer]\n" +
                                ("learning_rate = " + std::string(rate)) +
                                "\n[schedule]\nwarmup_samples = " + std::to_string(warmup) + "\n");
      const double peak = learning_rate_peak(job);
      for (Samples at = 0; at <= 2 * warmup; at += 32)
        REQUIRE_MESSAGE(learning_rate_at(job, at) / peak <= 1, warmup);
      CHECK(learning_rate_at(job, warmup - 64) / peak > 1 - 1e-9);
    }
}

TEST_CASE("The step schedule multiplies by gamma at each milestone") {
  const Job job = parse_job(
      "name = 'x'\nbudget_samples = 1000\n[optimizer]\nlearning_rate = 1\n"
      "[schedule]\nkind = 'step'\nmilestones = [500, 800]\ngamma = 0.1\n");
  CHECK(learning_rate_at(job, 499) == doctest::Approx(1));
  CHECK(learning_rate_at(job, 500) == doctest::Approx(0.1));
  CHECK(learning_rate_at(job, 800) == doctest::Approx(0.01));
}

TEST_CASE("The linear schedule falls in a line to its final fraction") {
  const Job job = parse_job(
      "name = 'x'\nbudget_samples = 1000\n[optimizer]\nlearning_rate = 1\n"
      "[schedule]\nkind = 'linear'\nwarmup_samples = 200\nfinal_fraction = 0.1\n");
  CHECK(learning_rate_at(job, 200) == doctest::Approx(1));
  CHECK(learning_rate_at(job, 600) == doctest::Approx(0.55));
  CHECK(learning_rate_at(job, 1000) == doctest::Approx(0.1));
}

TEST_CASE(
    "Models, losses and training options that are not the defaults are part of the text, and read "
    "back") {
  const std::string text_data = "[data]\nkind = 'text'\nlength = 64\ntrain_files = ['a.txt']\n";
  std::set<JobHash> hashes{parse_job(small).hash()};
  const std::string training =
      "[training]\nclip_norm = 1.5\nmicro_batch = 8\nprecision = 'bf16'\ndeterministic = true\n";
  for (const std::string& rest :
       {std::string("[model]\nkind = 'resnet20'\n") + training,
        std::string("[training]\nprecision = 'tf32'\n"),
        std::string("[training]\nprecision = 'fp16'\n"),
        "[model]\nkind = 'gpt'\ndim = 64\nheads = 4\n" + text_data,
        std::string("[model]\nkind = 'vit'\npatch = 7\n"),
        std::string("[model]\nkind = 'resnet50'\n[data]\nclasses = 2\n[loss]\nkind = 'bce'\n"),
        std::string("[model]\nkind = 'torchscript'\nfile = 'm.pt'\nfile_hash = "
                    "'0123456789abcdef0123456789abcdef'\nfile_bytes = 7\n")}) {
    const Job job = parse_job(small + rest);
    const Job again = parse_job(job.canonical_text());
    CHECK(again == job);
    CHECK(hashes.insert(again.hash()).second);
  }
}

TEST_CASE("A model, a loss and data that do not belong together are refused with the way out") {
  const auto reason = [](const std::string& rest) {
    const auto job = Job::parse(small + rest, "j.toml");
    REQUIRE(!job);
    return job.error().text;
  };
  CHECK(contains(reason("[model]\nkind = 'gpt'\n"), "the gpt needs tokens"));
  CHECK(contains(reason("[model]\nkind = 'vit'\npatch = 5\n"), "multiples of its patch (5)"));
  CHECK(contains(reason("[model]\nkind = 'vit'\ndim = 100\n"), "multiple of heads"));
  CHECK(contains(reason("[model]\nkind = 'resnet20'\n[data]\nkind = 'text'\ntrain_files = ['a']\n"),
                 "the data are tokens"));
  CHECK(contains(reason("[loss]\nkind = 'mse'\n"), "needs floats as targets"));
  CHECK(contains(reason("[loss]\nkind = 'bce'\n"), "two classes"));
  CHECK(contains(reason("[loss]\nkind = 'model'\n"), "TorchScript"));
  CHECK(contains(reason("[model]\nkind = 'torchscript'\n"), "model.file: is missing"));
  CHECK(contains(reason("[model]\nkind = 'torchscript'\nfile = 'x'\nfile_hash = 'zz'\n"),
                 "32 hex digits"));
  CHECK(contains(reason("[training]\npatience = 3\n"), "evaluate_every_samples"));
  CHECK(contains(reason("[model]\nkind = 'resnet34'\n"), "resnet"));
}
