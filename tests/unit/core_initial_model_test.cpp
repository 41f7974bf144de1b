// How long a node names the job's initial model, and when it no longer does.
#include <doctest/doctest.h>

#include <limits>

#include "core/node/initial_model.h"

using namespace gossipd;

namespace {

constexpr Step age_max = 200;

InitialModel held() {
  InitialModel model;
  model.hold({1, 2, 3});
  return model;
}

}  // namespace

TEST_CASE("nothing is named where the initial model is not known") {
  InitialModel model;
  model.on_step(3, age_max);
  CHECK(model.hash() == 0);
  CHECK(model.age() == 0);
  CHECK(model.values() == nullptr);
}

TEST_CASE("it is named by the hash of its values until the node is too far from it") {
  InitialModel model = held(), other;
  other.hold({1, 2, 4});
  CHECK(model.hash() == held().hash());
  CHECK(model.hash() != other.hash());
  model.on_step(age_max, age_max);
  CHECK(model.hash() != 0);
  CHECK(model.age() == age_max);
  model.on_step(age_max + 1, age_max);
  CHECK(model.hash() == 0);
  CHECK(model.values() == nullptr);
}

TEST_CASE("a node that began from another's word is as far away as that one was") {
  InitialModel model = held();
  model.inherit(150);
  model.on_step(50, age_max);
  CHECK(model.age() == 200);
  model.on_step(51, age_max);
  CHECK(model.hash() == 0);
  InitialModel lied_to = held();
  lied_to.inherit(std::numeric_limits<Step>::max());
  lied_to.on_step(1, age_max);
  CHECK(lied_to.hash() == 0);
}

TEST_CASE("a node that begins from another model does not name it") {
  InitialModel model = held();
  CHECK(model.hash() != 0);
  model.forget();
  CHECK(model.hash() == 0);
  CHECK_FALSE(model.values());
}

TEST_CASE("a link that is about to open keeps the values that were named") {
  InitialModel model = held();
  const InitialModel::Values named = model.values();
  model.on_step(age_max + 1, age_max);
  REQUIRE(named != nullptr);
  CHECK(*named == std::vector<float>{1, 2, 3});
}
