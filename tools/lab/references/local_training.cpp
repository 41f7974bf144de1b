#include "tools/lab/references/local_training.h"

#include <numeric>

#include "core/base/random.h"
#include "core/codec/kernels.h"
#include "tools/lab/references/formulas.h"

namespace gossipd::lab {

// ---- LocalTraining ----

std::vector<Setting> LocalTraining::local_settings() {
  std::vector<Setting> settings;
  SettingTable table(settings);
  add_codec(table, "strategy.codec", codec_, codec_help);
  table.boolean("strategy.final_average", "", final_average_,
                "average all models at the end; its bytes are counted");
  add_codec(table, "strategy.final_codec", final_codec_,
            "how that average is encoded; fp32: exactly");
  return settings;
}

void LocalTraining::begin() {
  machines_.assign(nodes(), {initial(), {}, 0});
  begin_training();
}

Send LocalTraining::wires() {
  return [this](std::size_t from, std::size_t to, std::uint64_t bytes,
                std::function<void()> arrived) { send(from, to, bytes, std::move(arrived)); };
}

bool LocalTraining::compute(std::size_t i, std::function<void(Gradient&)> then) {
  if (!take(job().batch)) return false;
  gradient(i, machines_[i].x, job().batch,
           [then = std::move(then)](Gradient gradient) { then(gradient); });
  return true;
}

void LocalTraining::descend(std::size_t i, Gradient& gradient) {
  Machine& m = machines_[i];
  const double rate = learning_rate();
  trained(gradient, 0);
  clip_to_norm(gradient.values, job().training.clip_norm);
  // Statistics and counters, which follow the parameters, are not the optimiser's to move.
  const std::size_t parameters = parameter_floats();
  optimizer_step(job().optimizer, rate, std::span(m.x).first(parameters), m.optimizer,
                 std::span(gradient.values).first(parameters));
  // Added, since the model may have been averaged while the gradient was under way.
  if (!gradient.statistics_moved.empty())
    add_to_statistics(schema(), gradient.statistics_moved, m.x);
  ++m.steps;
}

bool LocalTraining::train(std::size_t i, Action then) {
  return compute(i, [this, i, then = std::move(then)](Gradient& gradient) {
    descend(i, gradient);
    then();
  });
}

std::unique_ptr<MeanExchange> LocalTraining::make_last_exchange(AllReduce algorithm) {
  if (final_codec_.id == CodecId::fp32)
    return make_exact_exchange({algorithm, WireFloat::fp32}, wires());
  return make_compressed_exchange(make_codec_compressor({final_codec_, schema()}),
                                  Gather::two_phase, {}, wires());
}

void LocalTraining::close() {
  if (!final_average_ || nodes() < 2) return averaged();
  for (const Machine& m : machines_) last_values_.push_back(m.x);
  last_exchange_ = make_last_exchange(AllReduce{});
  last_exchange_->run(last_values_, [this] {
    for (std::size_t i = 0; i < nodes(); ++i) machines_[i].x = last_values_[i];
    averaged();
  });
}

// ---- PairReplicas ----

PairReplicas::Message PairReplicas::publish(std::size_t i, std::size_t j, const Vector& x) {
  return publish(i, j, x, {0, x.size()});
}

PairReplicas::Message PairReplicas::publish(std::size_t i, std::size_t j, const Vector& x,
                                            Range range) {
  const std::span<const float> target = std::span(x).subspan(range.begin, range.size());
  if (codec_.exact())
    return {std::make_shared<const Vector>(target.begin(), target.end()), 4 * target.size()};
  const auto [place, fresh] = replicas_.try_emplace({i, j});
  if (fresh) place->second = initial_;
  const std::span<float> replica = range.of(place->second);
  const std::uint64_t bytes = codec_.encode(range.begin, target, replica);
  return {std::make_shared<const Vector>(replica.begin(), replica.end()), bytes};
}

void PairReplicas::contract(std::size_t i, std::size_t j, float gain) {
  if (codec_.exact()) return;
  kernels().contract_replicas(replicas_.at({i, j}), replicas_.at({j, i}), gain, gain);
}

std::optional<std::string> dense_only(Codec codec, const std::string& row) {
  if (codec.id != CodecId::top_k) return std::nullopt;
  return "strategy.codec = \"" + to_text(codec) + "\": " + row +
         " averages with all of what was last heard, so entries that have not been sent yet would"
         " pull back; choose int8, int4 or ternary";
}

std::vector<std::size_t> random_pairs(std::size_t nodes, std::uint64_t seed, std::uint64_t round) {
  Random random(seed ^ (round * 0x9e3779b97f4a7c15ull));
  random.next();
  std::vector<std::size_t> order(nodes), partner(nodes);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t k = nodes; k > 1; --k) std::swap(order[k - 1], order[random.below(k)]);
  for (std::size_t k = 0; k < nodes; ++k) partner[order[k]] = order[(k ^ 1) < nodes ? k ^ 1 : k];
  return partner;
}

// ---- RoundTraining ----

std::vector<Setting> RoundTraining::round_settings() {
  std::vector<Setting> settings = local_settings();
  SettingTable table(settings);
  table.one_of(
      "strategy.transport", "", transport_, {"all-gather", "two-phase"},
      "codecs but fp32: all to all, or through owners of chunks that compress the mean once more");
  table.one_of("strategy.all_reduce", "", algorithm_, {"ring", "halving-doubling", "tree"},
               "codec fp32 and the last round");
  return settings;
}

Strategy::State RoundTraining::state() const {
  const std::uint64_t error = each_ ? each_->node_floats() : 0;
  return {0, optimizer_floats() + floats() + outer_floats() + error};  // with shared()
}

void RoundTraining::begin_training() {
  shared_ = initial();
  left_.assign(nodes(), 0);
  if (codec().id == CodecId::fp32)
    each_ = make_exact_exchange({algorithm_, WireFloat::fp32}, wires());
  else
    each_ = make_compressed_exchange(
        make_codec_compressor(model_codec()),
        transport_ == Transport::all_gather ? Gather::all_gather : Gather::two_phase,
        {.error = error_decay()}, wires());
  last_ = make_last_exchange(algorithm_);
  begin_round();
}

void RoundTraining::begin_round() {
  period_ = period();
  ready_ = 0;
  left_.assign(nodes(), period_);
  for (std::size_t i = 0; i < nodes(); ++i) go_on(i);
}

void RoundTraining::go_on(std::size_t i) {
  if (left_[i] > 0 && train(i, [this, i] { go_on(i); })) {
    --left_[i];
    return;
  }
  if (++ready_ < nodes() || under_way_) return;
  overlaps() ? exchange_beside() : exchange();
}

// When the samples are spent the round ends early, and its exchange is the last. With final_average
// it is exact, or in final_codec, and includes the compression's error, like the other rows' last
// average.
void RoundTraining::exchange() {
  changes_.assign(nodes(), Vector(floats()));
  for (std::size_t i = 0; i < nodes(); ++i)
    for (std::size_t p = 0; p < floats(); ++p) changes_[i][p] = x(i)[p] - shared_[p];
  const bool last = exhausted(), averages = last && final_average();
  if (averages) each_->pay_back(changes_);
  (averages ? *last_ : *each_).run(changes_, [this, last] {
    const Vector before = statistics_of(schema(), shared_);
    const Vector moved = statistics_of(schema(), changes_[0]);
    outer_step(changes_[0]);
    set_statistics(schema(), before, shared_);
    add_to_statistics(schema(), moved, shared_);
    for (std::size_t i = 0; i < nodes(); ++i) x(i) = shared_;
    if (!last) begin_round();
  });
}

// All have made the steps of the round, and the average of the last one is there.
void RoundTraining::exchange_beside() {
  for (std::size_t i = 0; i < sent_.size(); ++i)
    for (std::size_t p = 0; p < floats(); ++p) x(i)[p] += means_[i][p] - sent_[i][p];
  if (exhausted()) return exchange();
  sent_.clear();
  for (std::size_t i = 0; i < nodes(); ++i) sent_.push_back(x(i));
  means_ = sent_;
  under_way_ = true;
  begin_round();
  each_->run(means_, [this] {
    under_way_ = false;
    if (ready_ == nodes()) exchange_beside();
  });
}

}  // namespace gossipd::lab
