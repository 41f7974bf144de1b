#include "core/model/finite.h"

#include <algorithm>

#include "core/codec/kernels.h"

namespace gossipd {

bool is_finite(const Schema& schema, std::span<const float> model) {
  return std::ranges::all_of(schema.blocks(), [&model](const Block& block) {
    return kernels().all_finite(block.of(model));
  });
}

}  // namespace gossipd
