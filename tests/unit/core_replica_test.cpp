#include "core/exchange/replica.h"

#include <doctest/doctest.h>

#include <cstring>

using namespace gossipd;

namespace {

constexpr std::size_t floats = 100'000;  // two blocks

Schema schema_of_two() {
  auto schema = Schema::build({Segment{.name = "layer",
                                       .shape = {static_cast<std::int64_t>(floats)},
                                       .offset = 0,
                                       .size = floats,
                                       .kind = SegmentKind::parameter}});
  REQUIRE(schema);
  REQUIRE(schema->blocks().size() == 2);
  return *schema;
}

SharedModel some_model() {
  std::vector<float> values(floats);
  for (std::size_t i = 0; i < floats; ++i) values[i] = 1.0f + static_cast<float>(i) * 1e-6f;
  return std::make_shared<const std::vector<float>>(std::move(values));
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace

TEST_CASE("a replica that borrows a model looks like one that was given it") {
  const Schema schema = schema_of_two();
  const SharedModel model = some_model();
  for (const bool narrow : {false, true}) {
    CAPTURE(narrow);
    Replica given, borrowing;
    given.reset(floats, narrow);
    borrowing.reset(floats, narrow);
    borrowing.borrow(model, schema.blocks());
    for (const Block& block : schema.blocks()) given.put(block, block.of(*model));
    for (const Block& block : schema.blocks()) {
      CHECK(same_bits(Replica::Look(borrowing, block), Replica::Look(given, block)));
      for (Replica* replica : {&given, &borrowing}) {
        const Replica::Change change(*replica, block);
        std::span<float>(change)[7] += 0.5f;
      }
      CHECK(same_bits(Replica::Look(borrowing, block), Replica::Look(given, block)));
    }
  }
  CHECK((*model)[7] == some_model()->at(7));
}

TEST_CASE("a borrowed model is given back once every block has changed or been put") {
  const Schema schema = schema_of_two();
  SharedModel model = some_model();
  const std::weak_ptr<const std::vector<float>> watched = model;
  Replica replica;
  replica.reset(floats, false);
  replica.borrow(std::exchange(model, nullptr), schema.blocks());
  { const Replica::Change change(replica, schema.blocks()[0]); }
  replica.settle_loan();
  CHECK_FALSE(watched.expired());
  replica.put(schema.blocks()[1], std::vector<float>(schema.blocks()[1].size, 2.0f));
  replica.settle_loan();
  CHECK(watched.expired());
  const Replica::Look look(replica, schema.blocks()[1]);
  CHECK(std::span<const float>(look)[0] == 2.0f);
}
