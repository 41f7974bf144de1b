// Which of two evaluations is of the better model: the one that `checkpoint.best` keeps.
#include "models/networks/figures.h"

#include <doctest/doctest.h>

#include <fstream>
#include <limits>
#include <string>

#include "models/training/trainer.h"

using namespace gossipd;

TEST_CASE("of two evaluations with classes the one with the higher accuracy is better") {
  const Figures better{.loss = 0.9, .accuracy = 0.8, .top5_accuracy = 0.9};
  const Figures worse{.loss = 0.5, .accuracy = 0.7, .top5_accuracy = 0.99};
  CHECK(better.is_better_than(worse));
  CHECK_FALSE(worse.is_better_than(better));
}

TEST_CASE("of two evaluations with equal accuracy the one with the lower loss is better") {
  const Figures better{.loss = 0.4, .accuracy = 0.8}, worse{.loss = 0.5, .accuracy = 0.8};
  CHECK(better.is_better_than(worse));
  CHECK_FALSE(worse.is_better_than(better));
  CHECK(better.ties_with(worse));
  const Figures tokens{.loss = 0.4, .accuracy = 0.8, .tokens = true}, numbers{.loss = 0.4};
  for (const Figures& other : {Figures{.loss = 0.4, .accuracy = 0.7}, tokens, numbers})
    CHECK_FALSE(other.ties_with(worse));
}

TEST_CASE("of two evaluations of tokens the one with the lower loss is better") {
  const Figures better{.loss = 1.5, .accuracy = 0.4, .tokens = true};  // a loss of the model's own
  const Figures worse{.loss = 1.6, .accuracy = 0.5, .perplexity = 4.95, .tokens = true};
  CHECK(better.is_better_than(worse));
  CHECK_FALSE(worse.is_better_than(better));
}

TEST_CASE("of two evaluations with nothing but a loss the one with the lower loss is better") {
  const Figures better{.loss = 0.1}, worse{.loss = 0.2};
  CHECK(better.is_better_than(worse));
  CHECK_FALSE(worse.is_better_than(better));
}

TEST_CASE("an evaluation is not better than an equal one, so the first of two is kept") {
  const Figures classes{.loss = 0.5, .accuracy = 0.7}, tokens{.loss = 1.5, .tokens = true};
  CHECK_FALSE(classes.is_better_than(classes));
  CHECK_FALSE(tokens.is_better_than(tokens));
}

TEST_CASE("an evaluation with a loss is better than one whose loss is NaN, whatever came first") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Figures none{.loss = nan}, numbers{.loss = 1e9};
  CHECK(numbers.is_better_than(none));
  CHECK_FALSE(none.is_better_than(numbers));
  CHECK_FALSE(none.is_better_than(none));
  // NaN outputs are all taken for one class, which may be most of the set.
  const Figures lucky{.loss = nan, .accuracy = 0.9}, classes{.loss = 0.7, .accuracy = 0.5};
  CHECK(classes.is_better_than(lucky));
  CHECK_FALSE(lucky.is_better_than(classes));
  const Figures nothing{.loss = nan, .perplexity = nan}, tokens{.loss = 5, .perplexity = 148.4};
  CHECK(tokens.is_better_than(nothing));
}

TEST_CASE("REST's description names each state of a trainer") {
  std::ifstream file(GOSSIPD_SOURCE_DIR "/daemon/rest/openapi.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  for (int state = 0; state <= static_cast<int>(TrainerState::failed); ++state) {
    const std::string word(to_string(static_cast<TrainerState>(state)));
    CAPTURE(word);
    CHECK(text.find('"' + word + '"') != std::string::npos);
  }
}
