// Tensors of a model that are called as the optimiser's state is in checkpoints.
#include "models/files/state_names.h"

#include "models/checkpoint/checkpoint.h"
#include "models/external/segment_list.h"
#include "models/files/weights.h"
#include "models_test_support.h"

using namespace gossipd;
using test::contains;
using test::TemporaryDirectory;

TEST_CASE("Tensors of the model may be called as the optimiser's are, and stay the model's") {
  const TemporaryDirectory directory;
  const auto path = directory / "model.safetensors";
  const auto schema = Schema::build({{"variance.w", {2}, 0, 2, SegmentKind::parameter},
                                     {"mean.w", {}, 2, 1, SegmentKind::parameter},
                                     {"momentum.b", {}, 3, 1, SegmentKind::statistic}});
  REQUIRE(schema);
  Checkpoint checkpoint;
  checkpoint.model = {1, 2, 3, 4};
  const std::vector<float> momentum{5, 6, 7, 0}, variance{8, 9, 10, 0};
  for (const OptimizerState& state :
       {OptimizerState{}, OptimizerState{momentum, {}, 5}, OptimizerState{momentum, variance, 5}}) {
    checkpoint.optimizer = state;
    REQUIRE(write_checkpoint(path, *schema, checkpoint));
    const auto loaded = load_checkpoint(path, *schema);
    REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().text));
    CHECK(loaded->fallback_reason.empty());
    CHECK(loaded->checkpoint.model == checkpoint.model);
    CHECK(loaded->checkpoint.optimizer == state);
    const auto weights = read_weights(path);  // as start_from and exports do
    REQUIRE(weights);
    std::vector<float> model(4, -1.0f);
    const auto refused = take_weights(*weights, *schema, model);
    CHECK_MESSAGE(!refused, (refused ? refused->text : ""));
    CHECK(model == checkpoint.model);
  }
}

TEST_CASE("A name is the optimiser's where its file has the tensor of the model it speaks of") {
  const auto has = [](std::string_view name) {
    return name == "w" || name == "momentum.w" || name == "variance.b" ||
           name == "momentum.variance.b";
  };
  for (const char* state : {"momentum.w", "variance.w", "momentum.variance.b"})
    CHECK_MESSAGE(is_optimizer_state(state, has), state);
  for (const char* own : {"w", "variance.b", "momentum.b", "momentum.momentum.w", "momentum."})
    CHECK_MESSAGE(!is_optimizer_state(own, has), own);
}

TEST_CASE("A model is refused where such a name and its tensor are both its own") {
  CHECK(parse_segment_list("parameter 2 mean.w\nparameter 2 variance.w\nlocal 2 momentum.w\n"));
  for (const char* kind : {"parameter", "statistic", "local"}) {
    const auto refused =
        parse_segment_list("parameter 2 momentum.fc.w\n" + std::string(kind) + " 2 fc.w\n");
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == "bad-segments");
    CHECK(contains(refused.error().text, "'momentum.fc.w' is what checkpoints call"));
    CHECK(contains(refused.error().text, "'fc.w', which the model has as well; rename the module"));
  }
}
