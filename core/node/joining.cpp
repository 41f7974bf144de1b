// A model for a node that has none: from its neighbours, or from its own disk.
#include <algorithm>
#include <utility>

#include "core/node/node_impl.h"

namespace gossipd {
namespace {

constexpr Duration rest_min = std::chrono::seconds(10);
constexpr std::uint32_t rest_doublings_max = 6;
// looks after which it is forgotten that a model broke
constexpr std::uint64_t recovered_after = 500;

}  // namespace

ModelAssembly::Links NodeImpl::open_links_by_peer() const {
  ModelAssembly::Links links;
  for (const auto& [id, neighbour] : neighbours_)
    if (neighbour.link && neighbour.link->is_open()) links[id] = neighbour.link.get();
  return links;
}

// In which order neighbour `of` is to tell its blocks. Each of the others goes through all from the
// one it was asked to begin with.
void NodeImpl::order_blocks(NodeId of, Ready& ready, Instant now) const {
  const std::size_t count = schema_.blocks().size();
  std::vector<std::size_t> positions;
  for (const auto& [id, session] : sessions_) {
    if (!session.ready_mine || session.ready_mine->has_model || session.theirs->id == of) continue;
    if (session.ready_theirs && !session.ready_theirs->has_model) continue;
    const Link& link = *neighbours_.at(session.theirs->id).link;
    std::size_t told = 0;
    const auto block = [&, first = session.ready_mine->first_block] {
      return (first + told) % count;
    };
    while (link.is_open() && told < count && link.is_known(Link::Which::received, block())) ++told;
    if (told < count) positions.push_back(block());
  }
  const std::vector<bool> held = assembly_.held(open_links_by_peer(), schema_, now);
  ready.first_block = static_cast<std::uint32_t>(first_wanted(schema_, held, std::move(positions)));
  ready.held_flips = flips_of(held);
}

bool NodeImpl::adopt(Instant now) {
  if (!needs_model() || !round_.is_resting() || now < rest_until_) return false;
  const auto sources = assembly_.model(open_links_by_peer(), schema_, now, round_.copies());
  if (!sources) return false;
  std::string from, blocks;
  for (const auto& [peer, count] : *sources) {
    from += (from.empty() ? "peer=" : ",") + to_hex(peer);
    blocks += (blocks.empty() ? " blocks=" : ",") + std::to_string(count);
  }
  take_over(from + blocks, now);
  return true;
}

void NodeImpl::on_restored(std::vector<float> model, Instant now) {
  if (phase_ != Phase::broken || !round_.is_resting()) return;
  if (model.size() != schema_.floats() || !kernels().all_finite(model)) {
    log(Level::error,
        "event=no-model-to-restore hint=\"start a neighbour, or remove the state directory and "
        "join again\"");
    return;
  }
  const auto [a, b] = round_.copies();
  std::ranges::copy(model, a.begin());
  std::ranges::copy(model, b.begin());
  take_over("checkpoint", now);
}

// The model lies in the round's copies.
void NodeImpl::take_over(const std::string& from, Instant now) {
  has_model_ = true;
  assembly_.clear();
  weight_.join(round_.last().step);
  restore_asked_ = false;
  log(Level::info, "event=model-adopted from=" + from);
  set_phase(std::exchange(paused_when_broken_, false) ? Phase::paused : Phase::training,
            "the model has arrived");
  check_progress(now);
  hand_out(round_.adopt(steps_allowed()));
  // Two nodes that met while neither had a model start over, now that one has.
  std::vector<SessionId> again;
  for (const auto& [id, session] : sessions_)
    if (session.ready_mine && session.ready_theirs && !session.ready_mine->has_model &&
        !session.ready_theirs->has_model)
      again.push_back(id);
  for (const SessionId id : again)
    close(id, "a model has arrived since; opening the link again", now, true);
}

// A model that breaks again and again rests longer and longer.
void NodeImpl::rest_broken() {
  const StepGuard& guard = round_.own_steps().guard();
  if (guard.jumps_in_a_row() == 0) return;
  if (guard.believed() > recovered_after) rests_ = 0;
  rest_until_ = round_.snapshot_at() + rest_min * (1u << std::min(rests_, rest_doublings_max));
  ++rests_;
}

}  // namespace gossipd
