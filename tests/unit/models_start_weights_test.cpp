// The file of weights that a job begins with, looked at before there is an engine.
#include <torch/torch.h>
// Torch brings a CHECK of its own; doctest's has to win.
#undef CHECK

#include <doctest/doctest.h>

#include <algorithm>

#include "models/devices/device_replica.h"
#include "models/files/model_file.h"
#include "models/files/weights.h"
#include "models/training/start_weights.h"
#include "models_test_support.h"

using namespace gossipd;
using test::contains;
using test::TemporaryDirectory;

namespace {

Job job_of(int hidden) {
  return test::parse_job("name = 'x'\nbudget_samples = 10\n[model]\nkind = 'mlp'\nhidden = [" +
                         std::to_string(hidden) + "]\n");
}

Weights weights_of(const Job& job) {
  const auto network = build_network(job, "", torch::kCPU);
  const FlatModel flat(network->tensors(), FlatModel::Gradient::no);
  Weights weights;
  for (const Segment& segment : flat.schema().segments()) {
    Weights::Tensor& tensor = weights.tensors[segment.name];
    tensor.shape.assign(segment.shape.begin(), segment.shape.end());
    tensor.copy_to = [](std::span<float> out) { std::ranges::fill(out, 0.5f); };
  }
  return weights;
}

}  // namespace

TEST_CASE("Weights to begin with are refused where they are not of the model, by name and shape") {
  const TemporaryDirectory directory;
  const std::string path = directory / "weights.safetensors";
  REQUIRE_FALSE(write_weights(path, weights_of(job_of(4))));
  Job same = job_of(4), other = job_of(5);
  CHECK_FALSE(check_start_from(other));  // names no file
  same.start_from = other.start_from = path;
  CHECK_FALSE(check_start_from(same));
  const auto refused = check_start_from(other);
  REQUIRE(refused);
  CHECK(refused->code == "bad-weights");
  CHECK_MESSAGE(contains(refused->text, "is [4] but the model's is [5]"), refused->text);
  other.start_from = directory / "none.safetensors";
  CHECK(check_start_from(other)->code == "bad-weights");
}

TEST_CASE("A job that starts from weights names them by content") {
  const TemporaryDirectory directory;
  test::write_file(directory / "w.safetensors", "some bytes");
  test::write_file(directory / "job.toml",
                   "name = 'x'\nbudget_samples = 10\nstart_from = 'w.safetensors'\n");
  const auto job = Job::load(directory / "job.toml");
  REQUIRE_MESSAGE(job, (job ? "" : job.error().text));
  const Job travelled = test::parse_job(job->canonical_text());
  CHECK(travelled.start_from == "w.safetensors");
  CHECK(travelled.start_content == identify_file(directory / "w.safetensors").value());
  CHECK(travelled.hash() == job->hash());
  test::write_file(directory / "w.safetensors", "other bytes");
  CHECK(Job::load(directory / "job.toml")->hash() != job->hash());
  test::write_file(directory / "job.toml", job->canonical_text());
  CHECK(contains(Job::load(directory / "job.toml").error().text, "start_from_hash"));
}
