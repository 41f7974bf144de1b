// The public events. Each passes to the conductor, which then settles what follows from it.
#include <algorithm>
#include <type_traits>

#include "core/node/conductor.h"

namespace gossipd {
namespace {

template <typename Event>
std::invoke_result_t<Event> settled(Conductor& node, Instant now, Event event) {
  if constexpr (std::is_void_v<std::invoke_result_t<Event>>) {
    event();
    node.settle(now);
  } else {
    auto answer = event();
    node.settle(now);
    return answer;
  }
}

}  // namespace

bool nobody_has_trained(const NodeState& state) {
  return state.own_samples == 0 &&
         std::ranges::all_of(state.members, [](const MemberRecord& m) { return m.samples == 0; });
}

Node::Node(NodeConfig config, NodeState state, Instant now)
    : impl_(std::make_unique<Conductor>(std::move(config), std::move(state), now)) {}
Node::~Node() = default;
Node::Node(Node&&) noexcept = default;
Node& Node::operator=(Node&&) noexcept = default;

void Node::on_job(std::string document, JobHash hash, Samples budget, Instant now) {
  settled(*impl_, now, [&] { impl_->on_job(std::move(document), hash, budget); });
}
void Node::want_file(const JobFile& file, Instant now) {
  settled(*impl_, now, [&] { impl_->want_file(file, now); });
}
void Node::on_file_read(SessionId id, const JobFile& file, std::uint64_t offset,
                        const Bytes& bytes) {
  impl_->on_file_read(id, file, offset, bytes);  // it changes nothing here
}
void Node::on_waiting_for_data(std::string what, Instant now) {
  settled(*impl_, now, [&] { impl_->on_waiting_for_data(std::move(what)); });
}
void Node::on_model_ready(Schema schema, RoundBuffers buffers, bool has_model, Samples own_samples,
                          Step step, Instant now) {
  settled(*impl_, now, [&] {
    impl_->on_model_ready(std::move(schema), std::move(buffers), has_model, own_samples, step, now);
  });
}
void Node::on_trainer(bool present, std::string what, Instant now) {
  settled(*impl_, now, [&] { impl_->on_trainer(present, std::move(what)); });
}
void Node::on_snapshot(Snapshot snapshot, Instant now) {
  settled(*impl_, now, [&] { impl_->on_snapshot(std::move(snapshot), now); });
}
void Node::on_restored(std::vector<float> model, Instant now) {
  settled(*impl_, now, [&] { impl_->on_restored(std::move(model), now); });
}
void Node::on_session_open(SessionId id, bool outbound, Endpoint remote, Instant now) {
  settled(*impl_, now, [&] { impl_->on_session_open(id, outbound, std::move(remote), now); });
}
void Node::on_dial_failed(Endpoint endpoint, std::string reason, Instant now, bool own_shortage) {
  settled(*impl_, now,
          [&] { impl_->on_dial_failed(endpoint, std::move(reason), own_shortage, now); });
}
void Node::on_session_closed(SessionId id, std::string reason, Instant now) {
  settled(*impl_, now, [&] { impl_->on_session_closed(id, reason, now); });
}
void Node::on_bytes(SessionId id, Instant now) {
  impl_->on_bytes(id, now);  // only a sign of life, and there are many
}
void Node::on_message(SessionId id, Lane lane, std::span<const std::byte> message, Instant now) {
  settled(*impl_, now, [&] { impl_->on_message(id, lane, message, now); });
}
void Node::on_bulk_sent(SessionId id, std::size_t bytes, Instant now) {
  settled(*impl_, now, [&] { impl_->on_bulk_sent(id, bytes, now); });
}
std::optional<Error> Node::join(std::vector<Endpoint> seeds, Instant now) {
  return settled(*impl_, now, [&] { return impl_->join(std::move(seeds), now); });
}
void Node::set_seeds(const std::vector<Endpoint>& seeds, Instant now) {
  settled(*impl_, now, [&] { impl_->set_seeds(seeds, now); });
}

void Node::set_clock(std::uint64_t clock_ms, Instant now) { impl_->set_clock(clock_ms, now); }

std::optional<Error> Node::leave(Instant now) {
  return settled(*impl_, now, [&] { return impl_->leave(now); });
}
std::optional<Error> Node::forget(NodeId member, Instant now) {
  return settled(*impl_, now, [&] { return impl_->forget(member, now); });
}
std::optional<Error> Node::pause(Instant now) {
  return settled(*impl_, now, [&] { return impl_->pause(); });
}
std::optional<Error> Node::resume(Instant now) {
  return settled(*impl_, now, [&] { return impl_->resume(); });
}
std::optional<Error> Node::extend_budget(Samples more, Instant now) {
  return settled(*impl_, now, [&] { return impl_->extend_budget(more); });
}
std::optional<Error> Node::why_no_next_job(std::optional<JobHash> next) const {
  return impl_->why_no_next_job(next);
}
std::optional<Error> Node::start_job(std::string document, JobHash hash, Instant now) {
  return settled(*impl_, now, [&] { return impl_->start_job(std::move(document), hash, now); });
}
void Node::on_next_job_kept(const NodeState& state, bool kept, Instant now) {
  settled(*impl_, now, [&] { impl_->on_next_job_kept(state.job, state.generation, kept, now); });
}
void Node::end_early(const std::string& why, Instant now) {
  settled(*impl_, now, [&] { impl_->end_early(why); });
}
void Node::describe(std::string device, std::optional<double> accuracy, Instant now) {
  settled(*impl_, now, [&] { impl_->describe(std::move(device), accuracy, now); });
}
void Node::stop(Instant now) { impl_->stop(now); }
void Node::on_persisted(const NodeState& state, Instant now) {
  settled(*impl_, now, [&] { impl_->on_persisted(state, now); });
}
void Node::on_time(Instant now) {
  settled(*impl_, now, [&] { impl_->on_time(now); });
}
void Node::work(Instant now) {
  settled(*impl_, now, [&] { impl_->work(now); });
}

Instant Node::next_deadline() const { return impl_->next_deadline(); }
bool Node::has_work() const { return impl_->has_work(); }
std::vector<Effect> Node::take_effects() { return impl_->take_effects(); }
NodeSummary Node::summary(Instant now) const { return impl_->summary(now); }
std::vector<MemberView> Node::members(Instant now) const { return impl_->members(now); }
std::vector<LinkView> Node::links(Instant now) const { return impl_->links(now); }
NodeView Node::view(Instant now) const { return {summary(now), members(now), links(now)}; }
std::vector<DivisionMember> Node::who_divides() const { return impl_->who_divides(); }
Phase Node::phase() const { return impl_->phase(); }
ClusterId Node::cluster() const { return impl_->cluster(); }
std::vector<std::uint64_t> Node::published_to(NodeId peer) const {
  return impl_->hashes_of(peer, Link::Which::published);
}
std::vector<std::uint64_t> Node::received_from(NodeId peer) const {
  return impl_->hashes_of(peer, Link::Which::received);
}
void Node::check_invariants() const { impl_->check_invariants(); }

}  // namespace gossipd
