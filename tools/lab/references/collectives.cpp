#include "tools/lab/references/collectives.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

namespace gossipd::lab {

namespace {

using Chunk = std::shared_ptr<const std::vector<float>>;

// State shared by the three algorithms; kept alive by messages under way.
struct Reduction {
  WireFloat format;
  Send send_bytes;
  std::vector<std::span<float>> values;
  std::function<void()> done;
  std::size_t unfinished;

  [[nodiscard]] std::size_t nodes() const { return values.size(); }
  [[nodiscard]] std::size_t floats() const { return values[0].size(); }

  void round(std::span<float> chunk) const {
    if (format == WireFloat::fp16) std::ranges::transform(chunk, chunk.begin(), round_to_half);
  }
  void send(std::size_t from, std::size_t to, Range range, std::function<void(Chunk)> arrived) {
    const auto chunk = std::make_shared<std::vector<float>>(range.of(values[from]).begin(),
                                                            range.of(values[from]).end());
    round(*chunk);
    send_bytes(from, to, bytes_of(format) * chunk->size(),
               [chunk, arrived = std::move(arrived)] { arrived(chunk); });
  }
  void add(std::size_t node, Range range, const Chunk& chunk) {
    const auto into = range.of(values[node]);
    for (std::size_t p = 0; p < into.size(); ++p) into[p] += (*chunk)[p];
  }
  void put(std::size_t node, Range range, const Chunk& chunk) {
    std::ranges::copy(*chunk, range.of(values[node]).begin());
  }
  void finish_one() {
    if (--unfinished == 0) done();
  }
};
using Shared = std::shared_ptr<Reduction>;
using Counts = std::shared_ptr<std::vector<std::size_t>>;  // one for each node

// ---- ring: chunk c starts on node c, is summed on its way round to node c − 1, and goes round
// again ----

void ring_complete(const Shared& r, std::size_t node, const Counts& missing) {
  if (--(*missing)[node] == 0) r->finish_one();
}

void ring_gather(const Shared& r, std::size_t from, std::size_t c, std::size_t hop,
                 const Counts& missing) {
  const std::size_t to = (from + 1) % r->nodes();
  const Range range = part_of(r->floats(), r->nodes(), c);
  r->send(from, to, range, [r, to, c, hop, range, missing](const Chunk& chunk) {
    r->put(to, range, chunk);
    if (hop + 2 < r->nodes()) ring_gather(r, to, c, hop + 1, missing);
    ring_complete(r, to, missing);
  });
}

void ring_scatter(const Shared& r, std::size_t from, std::size_t c, std::size_t hop,
                  const Counts& missing) {
  const std::size_t to = (from + 1) % r->nodes();
  const Range range = part_of(r->floats(), r->nodes(), c);
  r->send(from, to, range, [r, to, c, hop, range, missing](const Chunk& chunk) {
    r->add(to, range, chunk);
    if (hop + 2 < r->nodes()) return ring_scatter(r, to, c, hop + 1, missing);
    r->round(range.of(r->values[to]));
    ring_gather(r, to, c, 0, missing);
    ring_complete(r, to, missing);
  });
}

void run_ring(const Shared& r) {
  // chunks that a node lacks
  auto missing = std::make_shared<std::vector<std::size_t>>(r->nodes(), r->nodes());
  for (std::size_t node = 0; node < r->nodes(); ++node) ring_scatter(r, node, node, 0, missing);
}

// ---- halving and doubling ----

class HalvingDoubling : public std::enable_shared_from_this<HalvingDoubling> {
 public:
  explicit HalvingDoubling(Shared reduction)
      : r_(std::move(reduction)), power_(std::bit_floor(r_->nodes())), places_(power_) {}

  void start() {
    const std::size_t extra = r_->nodes() - power_;
    for (std::size_t node = 0; node < power_; ++node) {
      places_[node].ranges = {whole()};
      if (node >= extra) next(node);
    }
    for (std::size_t partner = 0; partner < extra; ++partner)
      r_->send(power_ + partner, partner, whole(),
               [self = shared_from_this(), partner](const Chunk& chunk) {
                 self->r_->add(partner, self->whole(), chunk);
                 self->next(partner);
               });
  }

 private:
  struct Place {
    std::size_t round = 0;               // halving: 0 … log2 power − 1, then doubling back
    std::vector<Range> ranges;           // the ranges this node sums; the last is the smallest
    std::map<std::size_t, Chunk> inbox;  // by round: a partner may be ahead
    bool sent = false;
  };

  [[nodiscard]] Range whole() const { return {0, r_->floats()}; }
  [[nodiscard]] std::size_t rounds() const {
    return static_cast<std::size_t>(std::countr_zero(power_));
  }
  // Halving pairs distant nodes first; doubling takes the same way back.
  [[nodiscard]] std::size_t partner_of(std::size_t node, std::size_t round) const {
    const std::size_t level = round < rounds() ? round : 2 * rounds() - 1 - round;
    return node ^ (power_ >> (level + 1));
  }
  // {kept, given} of the node's smallest range in a round of halving.
  [[nodiscard]] static std::pair<Range, Range> halves(Range range, bool lower) {
    const std::size_t middle = range.begin + range.size() / 2;
    const Range low{range.begin, middle}, high{middle, range.end};
    return lower ? std::pair(low, high) : std::pair(high, low);
  }

  // Does everything possible on `node` with what has arrived.
  void next(std::size_t node) {
    Place& place = places_[node];
    while (place.round < 2 * rounds()) {
      const std::size_t partner = partner_of(node, place.round);
      const bool halving = place.round < rounds();
      if (!place.sent) {
        if (place.round == rounds()) r_->round(place.ranges.back().of(r_->values[node]));
        send(node, partner,
             halving ? halves(place.ranges.back(), node < partner).second : place.ranges.back());
        place.sent = true;
      }
      const auto arrived = place.inbox.find(place.round);
      if (arrived == place.inbox.end()) return;
      if (halving) {
        place.ranges.push_back(halves(place.ranges.back(), node < partner).first);
        r_->add(node, place.ranges.back(), arrived->second);
      } else {
        place.ranges.pop_back();
        r_->put(node, halves(place.ranges.back(), node < partner).second, arrived->second);
      }
      place.inbox.erase(arrived);
      place.sent = false;
      ++place.round;
    }
    complete(node);
  }

  void send(std::size_t node, std::size_t partner, Range range) {
    r_->send(node, partner, range,
             [self = shared_from_this(), partner, round = places_[node].round](const Chunk& chunk) {
               Place& place = self->places_[partner];
               place.inbox[round] = chunk;
               if (place.round == round && place.sent) self->next(partner);
             });
  }

  void complete(std::size_t node) {
    const std::size_t beyond = power_ + node;
    if (beyond < r_->nodes()) {
      r_->send(node, beyond, whole(), [r = r_, beyond, all = whole()](const Chunk& chunk) {
        r->put(beyond, all, chunk);
        r->finish_one();
      });
    }
    r_->finish_one();
  }

  Shared r_;
  std::size_t power_;
  std::vector<Place> places_;
};

// ---- tree: node's parent is node without its lowest bit ----

std::size_t reach_of(std::size_t node, std::size_t nodes) {
  return node == 0 ? std::bit_ceil(nodes) : node & (~node + 1);
}

void tree_down(const Shared& r, std::size_t node) {
  for (std::size_t bit = reach_of(node, r->nodes()) / 2; bit > 0; bit /= 2) {
    const std::size_t child = node + bit;
    if (child >= r->nodes()) continue;
    const Range all{0, r->floats()};
    r->send(node, child, all, [r, child, all](const Chunk& chunk) {
      r->put(child, all, chunk);
      tree_down(r, child);
    });
  }
  r->finish_one();
}

void tree_up(const Shared& r, std::size_t node, const Counts& children) {
  if ((*children)[node] > 0) return;
  const Range all{0, r->floats()};
  if (node == 0) {
    r->round(r->values[0]);
    return tree_down(r, 0);
  }
  const std::size_t parent = node & (node - 1);
  r->send(node, parent, all, [r, parent, all, children](const Chunk& chunk) {
    r->add(parent, all, chunk);
    --(*children)[parent];
    tree_up(r, parent, children);
  });
}

void run_tree(const Shared& r) {
  auto children = std::make_shared<std::vector<std::size_t>>(r->nodes(), 0);
  for (std::size_t node = 1; node < r->nodes(); ++node) ++(*children)[node & (node - 1)];
  const std::vector<std::size_t> counts = *children;
  for (std::size_t node = 0; node < r->nodes(); ++node)
    if (counts[node] == 0) tree_up(r, node, children);
}

}  // namespace

float round_to_half(float value) {
  const float size = std::fabs(value);
  if (!(size < 65520.0f)) return std::isnan(value) ? value : std::copysign(INFINITY, value);
  // subnormal halves are multiples of 2^-24: the last place of a float in [0.5, 1)
  if (size < 0x1p-14f) {
    const float shifted = size + 0.5f;
    return std::copysign(shifted - 0.5f, value);
  }
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((bits + 0xfff + ((bits >> 13) & 1)) & ~std::uint32_t{0x1fff});
}

void all_reduce_mean(AllReducePlan plan, const Send& send, std::vector<std::span<float>> values,
                     std::function<void()> done) {
  const std::size_t nodes = values.size();
  for (const std::span<float> one : values)
    for (float& x : one) x /= static_cast<float>(nodes);
  if (nodes < 2) return done();
  auto reduction = std::make_shared<Reduction>(
      Reduction{plan.format, send, std::move(values), std::move(done), nodes});
  switch (plan.algorithm) {
    case AllReduce::ring: return run_ring(reduction);
    case AllReduce::halving_doubling: return std::make_shared<HalvingDoubling>(reduction)->start();
    case AllReduce::tree: return run_tree(reduction);
  }
}

std::uint64_t all_reduce_bytes(AllReducePlan plan, std::size_t nodes, std::uint64_t floats) {
  const std::uint64_t model = bytes_of(plan.format) * floats, power = std::bit_floor(nodes);
  switch (plan.algorithm) {
    case AllReduce::ring: break;
    case AllReduce::tree: break;
    case AllReduce::halving_doubling: return 2 * (power - 1) * model + 2 * (nodes - power) * model;
  }
  return 2 * (nodes - 1) * model;
}

double all_reduce_seconds(AllReducePlan plan, std::size_t nodes, std::uint64_t floats,
                          double latency_s, double bits_per_s) {
  const double n = static_cast<double>(nodes), power = static_cast<double>(std::bit_floor(nodes));
  const double model_s = 8.0 * static_cast<double>(bytes_of(plan.format) * floats) / bits_per_s;
  switch (plan.algorithm) {
    case AllReduce::ring: return 2 * (n - 1) * (latency_s + model_s / n);
    case AllReduce::tree: return 2 * std::ceil(std::log2(n)) * (latency_s + model_s);
    case AllReduce::halving_doubling: break;
  }
  return 2 * std::log2(power) * latency_s + 2 * (power - 1) / power * model_s +
         (n > power ? 2 * (latency_s + model_s) : 0.0);
}

}  // namespace gossipd::lab
