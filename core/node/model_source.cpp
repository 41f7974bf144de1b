#include "core/node/model_source.h"

#include <algorithm>

#include "core/model/finite.h"

namespace gossipd {

void ModelSource::order_blocks(Ready& ready, const ModelAssembly::Links& open,
                               std::span<const Teller> others, Instant now) const {
  const std::size_t count = schema_.blocks().size();
  std::vector<std::size_t> positions;
  for (const Teller& teller : others) {
    std::size_t told = 0;
    const auto block = [&] { return (teller.first_block + told) % count; };
    while (teller.link.is_open() && told < count &&
           teller.link.is_known(Link::Which::received, block()))
      ++told;
    if (told < count) positions.push_back(block());
  }
  const std::vector<bool> held = assembly_.held(open, schema_, now);
  ready.first_block = static_cast<std::uint32_t>(first_wanted(schema_, held, std::move(positions)));
  ready.held_flips = flips_of(held);
}

std::optional<ModelSource::Assembled> ModelSource::assemble(const ModelAssembly::Links& open,
                                                            Instant now,
                                                            const ModelAssembly::Copies& into) {
  if (now < rest_until_) return std::nullopt;
  // What a broken node's copies hold may be changed between two calls, and so is copied in one.
  const auto sources =
      assembly_.model(open, schema_, now, into, is_missing() ? piece_floats : schema_.floats());
  if (!sources) return std::nullopt;
  std::string from, blocks;
  for (const auto& [peer, count] : sources->blocks) {
    from += (from.empty() ? "peer=" : ",") + to_hex(peer);
    blocks += (blocks.empty() ? " blocks=" : ",") + std::to_string(count);
  }
  return Assembled{from + blocks, sources->initial};
}

void ModelSource::on_broken(const StepGuard& guard, Instant snapshot_at) {
  broken_ = true;
  if (guard.jumps_in_a_row() == 0) return;
  if (guard.believed() > recovered_after) rests_.forget();
  rest_until_ = snapshot_at + rests_.fail();
}

bool ModelSource::wants_checkpoint(std::size_t open_links, Instant now) {
  if (open_links > 0 || now < rest_until_) return false;
  return !std::exchange(checkpoint_asked_, true);
}

bool ModelSource::restore(std::span<const float> model, const ModelAssembly::Copies& into) const {
  if (model.size() != schema_.floats() || !is_finite(schema_, model)) return false;
  std::ranges::copy(model, into.a.begin());
  std::ranges::copy(model, into.b.begin());
  return true;
}

void ModelSource::adopted() {
  state_ = State::held;
  assembly_.clear();
  checkpoint_asked_ = false;
  broken_ = false;
}

}  // namespace gossipd
