// Where neighbours are asked to begin when a model is put together from several.
#include <doctest/doctest.h>

#include "core/node/model_assembly.h"

using namespace gossipd;

namespace {

Schema blocks_of(std::size_t count) {
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < count; ++i)
    segments.push_back(Segment{"s" + std::to_string(i), {10}, i * 10, 10, SegmentKind::parameter});
  auto schema = Schema::build(std::move(segments));
  REQUIRE(schema);
  return *schema;
}

std::vector<bool> held(const std::string& picture) {
  std::vector<bool> blocks;
  for (const char c : picture) blocks.push_back(c == '#');
  return blocks;
}

std::size_t wanted(const std::string& picture, std::vector<std::size_t> positions = {}) {
  return first_wanted(blocks_of(picture.size()), held(picture), std::move(positions));
}

}  // namespace

TEST_CASE("the first neighbour begins at the first block, or where most is missing") {
  CHECK(wanted("............") == 0);
  CHECK(wanted("######......") == 6);
  CHECK(wanted("...######...") == 9);  // the run goes on past the last block
  CHECK(wanted("##..##....##") == 6);
  CHECK(wanted("#") == 0);
  CHECK(wanted("############") == 0);
}

TEST_CASE("another neighbour begins in the middle of what the others have longest to tell") {
  CHECK(wanted("............", {0}) == 6);
  CHECK(wanted("............", {0, 6}) == 3);
  CHECK(wanted("............", {0, 3, 6}) == 9);
  CHECK(wanted("####........", {4}) == 8);
  CHECK(wanted("####..####..", {4}) == 10);  // held blocks are no work
  CHECK(wanted("............", {9}) == 3);   // past the last block to the first
  CHECK(wanted(".", {0}) == 0);
  CHECK(wanted("############", {0}) == 0);
}

TEST_CASE("held blocks are listed as ranges") {
  using Flips = std::vector<std::uint32_t>;
  CHECK(flips_of(held("....")).empty());
  CHECK(flips_of(held("####")) == Flips{0});
  CHECK(flips_of(held(".##.#")) == Flips{1, 3, 4});
  std::string many;
  for (std::size_t i = 0; i < held_flips_max; ++i) many += "#.";
  CHECK(flips_of(held(many)).size() == held_flips_max);
}

TEST_CASE("the middle is one of floats, not of blocks") {
  auto schema = Schema::build({Segment{"a", {60}, 0, 60, SegmentKind::parameter},
                               Segment{"b", {20}, 60, 20, SegmentKind::parameter},
                               Segment{"c", {20}, 80, 20, SegmentKind::parameter},
                               Segment{"d", {20}, 100, 20, SegmentKind::parameter}});
  REQUIRE(schema);
  CHECK(first_wanted(*schema, std::vector<bool>(4), {0}) == 1);
}
