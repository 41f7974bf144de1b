// The model's half: the mirror, and what the trainer is to be told. The other half, what is said,
// is in external_session.cpp.
#include "models/external/external_engine.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace gossipd {

namespace {

constexpr std::uint64_t chunk_floats_min = 4096;
constexpr std::size_t runs_max = attach::ranges_max / 2;

// The parts of the model that are shared, each cut into pieces of equal size: at most ranges_max.
std::vector<attach::Range> chunks_of(const Schema& schema) {
  std::vector<attach::Range> runs;
  for (const Segment& segment : schema.segments()) {
    if (segment.kind == SegmentKind::local || segment.size == 0) continue;
    if (!runs.empty() && runs.back().first + runs.back().floats == segment.offset)
      runs.back().floats += segment.size;
    else
      runs.push_back({segment.offset, segment.size});
  }
  const std::uint64_t size =
      std::max(chunk_floats_min, (schema.floats() + runs_max - 1) / runs_max);
  std::vector<attach::Range> chunks;
  for (const attach::Range& run : runs)
    for (std::uint64_t at = 0; at < run.floats; at += size)
      chunks.push_back({run.first + at, std::min(size, run.floats - at)});
  return chunks;
}

// What is called running_var, where a spread is divided by its root.
std::vector<attach::Range> variances_of(const Schema& schema) {
  std::vector<attach::Range> found;
  for (const Segment& segment : schema.segments())
    if (segment.kind == SegmentKind::statistic && segment.name.ends_with("running_var"))
      found.push_back({segment.offset, segment.size});
  return found;
}

template <typename T>
std::span<T> part(std::span<T> all, const attach::Range& range) {
  return all.subspan(range.first, range.floats);
}

bool is_zero(std::span<const float> values) {
  std::uint32_t bits = 0;
  for (const float value : values) bits |= std::bit_cast<std::uint32_t>(value) << 1;
  return bits == 0;
}

void copy(std::span<const float> from, std::span<float> to) {
  std::memcpy(to.data(), from.data(), from.size_bytes());
}

void add(std::span<const float> values, std::span<float> to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += values[i];
}

// By no update does a variance fall by more than a half: it would end below zero. The trainer does
// the same to the bit.
void add_to_variance(std::span<const float> values, std::span<float> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    const float least = to[i] * 0.5f;
    to[i] += values[i];
    if (to[i] < least) to[i] = least;
  }
}

}  // namespace

attach::Counters RunAccount::of_node(const attach::Counters& run_now) const {
  return {.steps = node_began.steps + (run_now.steps - run_began.steps),
          .samples = node_began.samples + (run_now.samples - run_began.samples)};
}

Result<std::unique_ptr<ExternalEngine>> ExternalEngine::create(const Schema& schema,
                                                               TrainerSocket& socket,
                                                               Options options) {
  if (chunks_of(schema).size() > attach::ranges_max)
    return Error{"bad-segments", "the model has more than " + std::to_string(runs_max) +
                                     " local segments among the others; put them at its end"};
  Result<std::unique_ptr<SharedModel>> memory = SharedModel::create(schema);
  if (!memory) return memory.error();
  return std::unique_ptr<ExternalEngine>(
      new ExternalEngine(schema, socket, std::move(options), std::move(*memory)));
}

ExternalEngine::ExternalEngine(const Schema& schema, TrainerSocket& socket, Options options,
                               std::unique_ptr<SharedModel> memory)
    : schema_(schema),
      socket_(socket),
      options_(std::move(options)),
      chunks_(chunks_of(schema)),
      variances_(variances_of(schema)),
      memory_(std::move(memory)),
      touched_(chunks_.size()),
      account_(options_.account),
      account_is_from_disk_(account_.has_value()),
      buffer_(attach::packet_bytes_max + 1) {
  socket_.serve(schema_, [this] { alarm_.ring(); });
}

ExternalEngine::~ExternalEngine() {
  socket_.refuse("stopping", "the daemon is about to end; attach again when it is back");
}

bool ExternalEngine::take_first_model(const std::function<void(const std::string&)>& say) {
  first_model_wanted_ = true;
  while (!has_model_ && !cancelled_.load())
    for (const std::string& event : meet(Order{}).events) say(event);
  first_model_wanted_ = false;
  return has_model_;
}

void ExternalEngine::cancel() {
  cancelled_.store(true);
  alarm_.ring();
}

double ExternalEngine::step(Samples, double, std::uint32_t) {
  throw std::logic_error("an external engine makes no steps");
}

// ---- the mirror ----

void ExternalEngine::copy_model(std::span<float> out) {
  copy(base(), out);
  if (pending_ == Pending::none) return;
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    if (!touched_[i]) continue;
    if (pending_replaces_)
      copy(part(memory_->update(), chunks_[i]), part(out, chunks_[i]));
    else
      add_chunk(memory_->update(), chunks_[i], out);
  }
}

// Adds the chunk of an update to that of a model.
void ExternalEngine::add_chunk(std::span<const float> update, const attach::Range& chunk,
                               std::span<float> model) const {
  const std::uint64_t end = chunk.first + chunk.floats;
  std::uint64_t at = chunk.first;
  for (const attach::Range& variance : variances_) {
    const std::uint64_t first = std::clamp(variance.first, at, end),
                        stop = std::clamp(variance.first + variance.floats, at, end);
    const attach::Range before{at, first - at}, inside{first, stop - first};
    add(part(update, before), part(model, before));
    add_to_variance(part(update, inside), part(model, inside));
    at = stop;
  }
  add(part(update, {at, end - at}), part(model, {at, end - at}));
}

// What is pending becomes part of the snapshot, as it is of the mirror.
void ExternalEngine::fold() {
  if (pending_ != Pending::none) copy_model(base());
  pending_ = Pending::none;
  pending_replaces_ = false;
  touched_.assign(touched_.size(), false);
}

void ExternalEngine::add_to_model(std::span<const float> values) {
  GOSSIPD_ASSERT(takes_updates());
  if (pending_ == Pending::applied) fold();
  if (!session_) {
    for (const attach::Range& chunk : chunks_)
      if (!is_zero(part(values, chunk))) add_chunk(values, chunk, base());
    return;
  }
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    if (is_zero(part(values, chunks_[i]))) continue;
    if (!touched_[i])
      copy(part(values, chunks_[i]), part(memory_->update(), chunks_[i]));
    else if (pending_replaces_)  // it is a model
      add_chunk(values, chunks_[i], memory_->update());
    else
      add(part(values, chunks_[i]), part(memory_->update(), chunks_[i]));
    touched_[i] = true;
    pending_ = Pending::unsent;
  }
}

void ExternalEngine::replace_model(std::span<const float> values) {
  GOSSIPD_ASSERT(takes_updates());
  fold();
  copy(values, base());
  has_model_ = true;
  if (session_) replace_by_mirror();
}

// The trainer's model is to be the mirror's.
void ExternalEngine::replace_by_mirror() {
  for (const attach::Range& chunk : chunks_)
    copy(part(base(), chunk), part(memory_->update(), chunk));
  touched_.assign(touched_.size(), true);
  pending_ = Pending::unsent;
  pending_replaces_ = true;
}

void ExternalEngine::begin_copy(std::span<float> out) {
  copy_to_ = out;
  copy_wanted_ = true;
  if (!is_at_work()) copy_from_mirror();
}

void ExternalEngine::copy_from_mirror() {
  copy_model(copy_to_);
  copy_to_ = {};
  copy_wanted_ = false;
  if (pending_ == Pending::applied) fold();
}

void ExternalEngine::settle() {
  if (!copy_to_.empty()) copy_from_mirror();
}

}  // namespace gossipd
