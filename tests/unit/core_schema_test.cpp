// What a model's schema takes: segments in order, with room between them for alignment only.
#include <doctest/doctest.h>

#include "core/model/schema.h"

namespace gossipd {
namespace {

Segment segment(std::string name, std::uint64_t offset, std::uint64_t size,
                SegmentKind kind = SegmentKind::parameter) {
  return {.name = std::move(name),
          .shape = {static_cast<std::int64_t>(size)},
          .offset = offset,
          .size = size,
          .kind = kind};
}

}  // namespace

TEST_CASE("A segment follows the one before it at once, or at the next aligned offset") {
  for (const std::uint64_t second : {5, 8}) {
    const auto schema = Schema::build({segment("a", 0, 5), segment("b", second, 3)});
    REQUIRE(schema);
    CHECK(schema->floats() == second + 3);
    REQUIRE(schema->blocks().size() == 2);
    CHECK(schema->blocks()[0].size == 5);  // without the gap
    CHECK(schema->blocks()[1].offset == second);
  }
  const auto tight = Schema::build({segment("a", 0, 5), segment("b", 5, 3)});
  const auto aligned = Schema::build({segment("a", 0, 5), segment("b", 8, 3)});
  CHECK(tight->hash() == aligned->hash());  // nodes of both layouts exchange
  const auto other = Schema::build({segment("a", 0, 4), segment("b", 4, 4)});
  CHECK(tight->hash() != other->hash());
}

TEST_CASE("A segment that overlaps the one before it or leaves a wider gap is refused by name") {
  for (const std::uint64_t second : {0, 4, 6, 7, 9, 12}) {
    CAPTURE(second);
    const auto schema = Schema::build({segment("a", 0, 5), segment("b", second, 3)});
    REQUIRE_FALSE(schema);
    CHECK(schema.error().code == "bad-schema");
    CHECK(schema.error().text.find("'b'") != std::string::npos);
  }
  CHECK_FALSE(Schema::build({segment("a", 4, 5)}));
}

TEST_CASE("Blocks end at segments, and local segments have none") {
  const auto schema = Schema::build({segment("a", 0, block_floats_max + 1),
                                     segment("n", block_floats_max + 1, 2, SegmentKind::local),
                                     segment("b", block_floats_max + 4, 1)});
  REQUIRE(schema);
  REQUIRE(schema->blocks().size() == 3);
  CHECK(schema->blocks()[1].size == 1);
  CHECK(schema->blocks()[2].offset == block_floats_max + 4);
}

}  // namespace gossipd
