#include <doctest/doctest.h>

#include "core/node/patience.h"

using namespace gossipd;

TEST_CASE("patience is over after so many evaluations in a row without a better one") {
  Patience patience(3);
  patience.on_evaluation(true);
  patience.on_evaluation(false);
  patience.on_evaluation(false);
  CHECK_FALSE(patience.over());
  patience.on_evaluation(true);
  patience.on_evaluation(false);
  patience.on_evaluation(false);
  CHECK_FALSE(patience.over());
  patience.on_evaluation(false);
  CHECK(patience.over());
  CHECK(patience.words() == "3 evaluations without a better one");
}

TEST_CASE("a job that was given more samples may try again") {
  Patience patience(1);
  patience.on_evaluation(false);
  REQUIRE(patience.over());
  patience.renew();
  CHECK_FALSE(patience.over());
}

TEST_CASE("a job that names no patience has no end of it") {
  Patience patience(0);
  for (int i = 0; i < 1000; ++i) patience.on_evaluation(false);
  CHECK_FALSE(patience.over());
}
