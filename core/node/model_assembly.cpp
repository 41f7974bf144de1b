#include "core/node/model_assembly.h"

#include <algorithm>

namespace gossipd {
namespace {

constexpr auto received = Link::Which::received;

std::span<float> part(float* values, const Schema& schema, std::size_t block) {
  return schema.blocks()[block].of(std::span(values, schema.floats()));
}

void copy(const Link& link, const Block& block, std::size_t index,
          const ModelAssembly::Copies& into) {
  link.copy_received(index, block.of(into.a));
  std::ranges::copy(block.of(into.a), block.of(into.b).begin());
}

}  // namespace

void ModelAssembly::keep(NodeId peer, const Link& link, const Schema& schema) {
  if (link.received_blocks() == 0) return;
  if (!values_) values_ = std::make_unique_for_overwrite<float[]>(schema.floats());
  kept_.resize(schema.blocks().size());
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    if (!link.is_known(received, i) || kept_[i].at > link.heard_at()) continue;
    kept_[i] = {peer, link.heard_at()};
    link.copy_received(i, part(values_.get(), schema, i));
  }
}

void ModelAssembly::hear(const Link& link, const Schema& schema, const Copies& into) {
  copied_.resize(schema.blocks().size());
  for (const std::uint32_t i : link.blocks_heard()) {
    if (!link.is_known(received, i)) continue;
    copied_[i] = {.as = link.received_as(i)};
    copy(link, schema.blocks()[i], i, into);
  }
}

std::optional<ModelAssembly::Sources> ModelAssembly::model(const Links& links, const Schema& schema,
                                                           Instant now, const Copies& into,
                                                           std::uint64_t floats_max) {
  is_under_way_ = false;
  GOSSIPD_ASSERT(into.a.size() == schema.floats() && into.b.size() == schema.floats());
  std::vector<std::pair<NodeId, const Link*>> order(links.begin(), links.end());
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.second->received_blocks() > b.second->received_blocks();
  });
  if (order.empty() || !order.front().second->received_complete()) {
    std::size_t most = kept_.size();
    for (const auto& [peer, link] : order) most += link->received_blocks();
    if (most < schema.blocks().size()) return std::nullopt;
    const std::vector<bool> all = held(links, schema, now);
    if (std::find(all.begin(), all.end(), false) != all.end()) return std::nullopt;
  }
  Sources sources;
  std::uint64_t written = 0, copied = 0;
  const auto clear_until = [&](std::uint64_t end) {
    for (const auto& values : {into.a, into.b})
      std::ranges::fill(values.subspan(written, end - written), 0.0f);
  };
  copied_.resize(schema.blocks().size());
  for (std::size_t i = 0; i < schema.blocks().size(); ++i) {
    const auto link = std::find_if(order.begin(), order.end(), [i](const auto& item) {
      return item.second->received_blocks() > 0 && item.second->is_known(received, i);
    });
    const bool is_linked = link != order.end();
    const Block& block = schema.blocks()[i];
    const Copied wanted =
        is_linked ? Copied{.as = link->second->received_as(i)} : Copied{.kept = kept_[i]};
    if (copied_[i] != wanted) {
      if (copied > 0 && copied + block.size > floats_max) {
        is_under_way_ = true;
        return std::nullopt;
      }
      copied += block.size;
      copied_[i] = wanted;
      if (is_linked) {
        copy(*link->second, block, i, into);
      } else {
        for (const auto& values : {into.a, into.b})
          std::ranges::copy(part(values_.get(), schema, i), block.of(values).begin());
      }
    }
    clear_until(block.offset);  // between two blocks lies what is local
    written = block.offset + block.size;
    ++sources.blocks[is_linked ? link->first : kept_[i].from];
    sources.initial &= is_linked && link->second->received_initial(i);
  }
  clear_until(schema.floats());
  return sources;
}

std::vector<bool> ModelAssembly::held(const Links& links, const Schema& schema, Instant now) const {
  std::vector<bool> held(schema.blocks().size());
  for (std::size_t i = 0; i < held.size(); ++i) held[i] = is_kept(i, now);
  for (const auto& [peer, link] : links)
    for (std::size_t i = 0; link->received_blocks() > 0 && i < held.size(); ++i)
      if (link->is_known(received, i)) held[i] = true;
  return held;
}

std::vector<std::uint32_t> flips_of(const std::vector<bool>& held) {
  std::vector<std::uint32_t> flips;
  for (std::size_t i = 0; i < held.size() && flips.size() < held_flips_max; ++i)
    if (held[i] != (i > 0 && held[i - 1])) flips.push_back(static_cast<std::uint32_t>(i));
  return flips;
}

std::size_t first_wanted(const Schema& schema, const std::vector<bool>& held,
                         std::vector<std::size_t> positions) {
  const std::size_t count = held.size();
  const bool alone = positions.empty();
  for (std::size_t i = 0; alone && i < count; ++i)
    if (!held[i] && held[(i + count - 1) % count]) positions.push_back(i);
  if (positions.empty()) return 0;
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  // Floats missing from a position on, to the next one's or, where nobody tells yet, to the end of
  // the run.
  const auto missing = [&](std::size_t begin, std::size_t length) {
    std::uint64_t floats = 0;
    for (std::size_t i = 0; i < length; ++i) {
      const std::size_t block = (begin + i) % count;
      if (!held[block])
        floats += schema.blocks()[block].size;
      else if (alone)
        break;
    }
    return floats;
  };
  std::size_t best = 0, best_length = 0;
  std::uint64_t most = 0;
  for (std::size_t p = 0; p < positions.size(); ++p) {
    const std::size_t next = positions[(p + 1) % positions.size()];
    const std::size_t length =
        next > positions[p] ? next - positions[p] : next + count - positions[p];
    if (const std::uint64_t floats = missing(positions[p], length); floats > most)
      most = floats, best = positions[p], best_length = length;
  }
  if (alone) return best;
  std::uint64_t passed = 0;
  for (std::size_t i = 0; i < best_length; ++i) {
    const std::size_t block = (best + i) % count;
    if (!held[block] && 2 * passed >= most) return block;
    if (!held[block]) passed += schema.blocks()[block].size;
  }
  return best;
}

}  // namespace gossipd
