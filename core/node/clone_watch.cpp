#include "core/node/clone_watch.h"

#include <algorithm>
#include <utility>

namespace gossipd {

CloneWatch::CloneWatch(NodeId self, std::uint64_t instance, NodeId former, Instant now)
    : self_(self), instance_(instance), former_(former), started_(now) {
  if (former_ != NodeId{})
    words_ = "this node was " + to_hex(former_) +
             " until another process with that id was met, and took a new one";
}

Cloned CloneWatch::outlived(const Hello& hello, const Endpoint& keeper) const {
  return {.id = hello.id,
          .keeps = instances_.current(hello.id),
          .gives_up = hello.instance,
          .keeper = keeper,
          .other = hello.address};
}

CloneWatch::Proof CloneWatch::on_proof_of_life(const Hello& hello, const Endpoint& here,
                                               const Endpoint& rival) {
  const std::uint64_t before = instances_.current(hello.id);
  const bool keeps = instances_.returned(hello.id, hello.instance);
  if (keeps && before == hello.instance) return {.two = false, .keeps = true};
  const Endpoint there = rival.host.empty() ? instances_.other_address(hello.id, here) : rival;
  return {.two = true,
          .keeps = keeps,
          .notice = {.id = hello.id,
                     .keeps = keeps ? hello.instance : before,
                     .gives_up = keeps ? before : hello.instance,
                     .keeper = keeps ? here : there,
                     .other = keeps ? there : here}};
}

Cloned CloneWatch::meet(const Hello& other, const Endpoint& own, const Endpoint& theirs) const {
  const bool keeps = instance_ < other.instance;
  return {.id = self_,
          .keeps = std::min(instance_, other.instance),
          .gives_up = std::max(instance_, other.instance),
          .keeper = keeps ? own : theirs,
          .other = keeps ? theirs : own};
}

CloneWatch::Verdict CloneWatch::on_notice(const Cloned& notice, NodeId said_by, Company others,
                                          Instant now) {
  if (notice.keeps == instance_) {
    noticed_ = now;
    const std::string words = "another process with this node's id was met at " +
                              to_string(notice.other) + ", and is to take a new id";
    return std::exchange(words_, words) == words ? Verdict::nothing : Verdict::keeps;
  }
  if (notice.gives_up != instance_) return Verdict::nothing;
  if (witnesses_.size() < witnesses_min) witnesses_.insert(said_by);
  if (others.linked > 0)
    lone_since_.reset();
  else if (!lone_since_)
    lone_since_ = now;
  const bool enough =
      witnesses_.size() >= std::min(witnesses_min, std::max<std::size_t>(1, others.alive));
  const bool goes_on = lone_since_ && now - *lone_since_ >= lone_witness_after;
  return enough || goes_on ? Verdict::gives_up : Verdict::nothing;
}

bool CloneWatch::is_cloned(NodeId id, Instant now) const {
  if (id != self_) return instances_.is_cloned(id);
  return noticed_ && now - *noticed_ < shown_for && former_ == NodeId{};
}

}  // namespace gossipd
