#include "tools/lab/references/compression.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "core/base/random.h"
#include "core/codec/kernels.h"

namespace gossipd::lab {

namespace {

using Vector = std::vector<float>;

class CodecCompressor : public Compressor {
 public:
  explicit CodecCompressor(ModelCodec codec) : codec_(std::move(codec)) {}
  std::uint64_t compress(std::size_t begin, std::span<const float> target,
                         std::span<float> decoded) override {
    std::ranges::fill(decoded, 0.0f);
    return codec_.encode(begin, target, decoded);
  }

 private:
  ModelCodec codec_;
};

class TopKCompressor : public Compressor {
 public:
  explicit TopKCompressor(std::function<double()> share) : share_(std::move(share)) {}
  std::uint64_t compress(std::size_t, std::span<const float> target,
                         std::span<float> decoded) override {
    const auto size = static_cast<double>(target.size());
    const auto keep = std::min(
        target.size(), static_cast<std::size_t>(std::max(1.0, std::round(share_() * size))));
    order_.resize(target.size());
    std::iota(order_.begin(), order_.end(), 0u);
    const auto larger = [&](std::uint32_t a, std::uint32_t b) {
      const float x = std::fabs(target[a]), y = std::fabs(target[b]);
      return x != y ? x > y : a < b;
    };
    if (kernels().all_finite(target))
      std::nth_element(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(keep) - 1,
                       order_.end(), larger);
    std::ranges::fill(decoded, 0.0f);
    for (std::size_t k = 0; k < keep; ++k) decoded[order_[k]] = target[order_[k]];
    return 8 * keep;
  }

 private:
  std::function<double()> share_;
  std::vector<std::uint32_t> order_;
};

class QsgdCompressor : public Compressor {
 public:
  QsgdCompressor(std::uint32_t levels, std::size_t bucket, std::uint64_t seed)
      : levels_(levels), bucket_(bucket), random_(seed) {}
  std::uint64_t compress(std::size_t, std::span<const float> target,
                         std::span<float> decoded) override {
    const std::uint64_t bits = std::bit_width(2 * levels_);
    std::uint64_t bytes = 0;
    for (std::size_t begin = 0; begin < target.size(); begin += bucket_) {
      const std::size_t size = std::min(bucket_, target.size() - begin);
      quantise(target.subspan(begin, size), decoded.subspan(begin, size));
      bytes += 4 + (bits * size + 7) / 8;
    }
    return bytes;
  }

 private:
  void quantise(std::span<const float> bucket, std::span<float> decoded) {
    float largest = 0;
    for (const float x : bucket) largest = std::max(largest, std::fabs(x));
    std::ranges::copy(bucket, decoded.begin());
    if (largest == 0 || !kernels().all_finite(bucket)) return;
    const double levels = levels_;
    for (float& x : decoded) {
      const double place = levels * std::fabs(x) / largest, below = std::floor(place);
      const double level = below + (random_.uniform() < place - below ? 1 : 0);
      x = static_cast<float>(std::copysign(largest * level / levels, x));
    }
  }

  std::uint32_t levels_;
  std::size_t bucket_;
  Random random_;
};

class ExactExchange : public MeanExchange {
 public:
  ExactExchange(AllReducePlan plan, Send send) : plan_(plan), send_(std::move(send)) {}
  void run(Vectors& values, std::function<void()> done) override {
    all_reduce_mean(plan_, send_, {values.begin(), values.end()}, std::move(done));
  }

 private:
  AllReducePlan plan_;
  Send send_;
};

// values ← values + error
void add(std::span<float> values, std::span<const float> error) {
  for (std::size_t p = 0; p < values.size(); ++p) values[p] += error[p];
}

class CompressedExchange : public MeanExchange {
 public:
  CompressedExchange(std::unique_ptr<Compressor> compressor, Gather gather, Feedback feedback,
                     Send send)
      : compressor_(std::move(compressor)),
        gather_(gather),
        decay_(static_cast<float>(feedback.error)),
        momentum_(static_cast<float>(feedback.momentum)),
        send_(std::move(send)) {}

  void run(Vectors& values, std::function<void()> done) override {
    values_ = &values;
    done_ = std::move(done);
    nodes_ = values.size();
    error_.resize(nodes_);
    if (momentum_ > 0) velocity_.resize(nodes_);
    for (std::size_t i = 0; i < nodes_; ++i) {
      if (momentum_ > 0) accumulate(values[i], velocity_[i]);
      error_[i].resize(values[i].size());
      for (float& e : error_[i]) e = decay_ > 0 ? decay_ * e : 0.0f;
      add(values[i], error_[i]);
    }
    if (nodes_ < 2) {
      for (Vector& e : error_) std::ranges::fill(e, 0.0f);
      return done_();
    }
    if (gather_ == Gather::all_gather)
      gather_all();
    else
      scatter();
  }

  void pay_back(Vectors& values) override {
    if (decay_ > 0)
      for (std::size_t i = 0; i < error_.size(); ++i) {
        for (float& e : error_[i]) e *= decay_;
        add(values[i], error_[i]);
      }
    // Node c's error for the mean of its chunk applies to all nodes.
    for (std::size_t c = 0; c < owner_error_.size(); ++c)
      for (Vector& one : values) add(part_of(one.size(), nodes_, c).of(one), owner_error_[c]);
    error_.clear();
    owner_error_.clear();
  }

  std::uint64_t node_floats() const override {
    if (error_.empty()) return 0;
    return (decay_ > 0 ? error_[0].size() : 0) + (velocity_.empty() ? 0 : velocity_[0].size()) +
           (owner_error_.empty() ? 0 : owner_error_[0].size());
  }

 private:
  // u = m·u + g ;  g = u
  void accumulate(std::span<float> values, Vector& velocity) const {
    velocity.resize(values.size());
    for (std::size_t p = 0; p < values.size(); ++p)
      values[p] = velocity[p] = momentum_ * velocity[p] + values[p];
  }

  // ---- everybody to everybody ----

  void gather_all() {
    Vector mean(error_[0].size()), decoded(mean.size());
    waiting_ = nodes_ * (nodes_ - 1);
    result_ = std::move(mean);
    std::vector<std::uint64_t> bytes;
    for (std::size_t i = 0; i < nodes_; ++i) {
      bytes.push_back(compress(0, (*values_)[i], decoded, error_[i]));
      for (std::size_t p = 0; p < decoded.size(); ++p) {
        result_[p] += decoded[p] / static_cast<float>(nodes_);
        if (momentum_ > 0 && decoded[p] != 0) velocity_[i][p] = 0;
      }
    }
    // to the right neighbour first, so no two send to one at once
    for (std::size_t hop = 1; hop < nodes_; ++hop)
      for (std::size_t i = 0; i < nodes_; ++i)
        send_(i, (i + hop) % nodes_, bytes[i], [this] { one_arrived(); });
  }

  // ---- by owners of chunks ----

  void scatter() {
    const std::size_t floats = error_[0].size();
    if (owner_error_.empty())
      for (std::size_t c = 0; c < nodes_; ++c)
        owner_error_.emplace_back(part_of(floats, nodes_, c).size());
    result_.assign(floats, 0.0f);
    sums_.assign(floats, 0.0f);
    missing_.assign(nodes_, nodes_ - 1);
    waiting_ = nodes_ * (nodes_ - 1);  // of the second phase
    Vector decoded;
    std::vector<std::vector<std::uint64_t>> bytes(nodes_, std::vector<std::uint64_t>(nodes_));
    for (std::size_t i = 0; i < nodes_; ++i)
      for (std::size_t c = 0; c < nodes_; ++c) {
        const Range range = part_of(floats, nodes_, c);
        decoded.resize(range.size());
        if (i == c) {
          std::ranges::copy(range.of((*values_)[i]), decoded.begin());
          std::ranges::fill(range.of(error_[i]), 0.0f);
        } else {
          bytes[i][c] =
              compress(range.begin, range.of((*values_)[i]), decoded, range.of(error_[i]));
        }
        for (std::size_t p = 0; p < decoded.size(); ++p)
          sums_[range.begin + p] += decoded[p] / static_cast<float>(nodes_);
      }
    for (std::size_t hop = 1; hop < nodes_; ++hop)
      for (std::size_t i = 0; i < nodes_; ++i) {
        const std::size_t c = (i + hop) % nodes_;
        send_(i, c, bytes[i][c], [this, c] {
          if (--missing_[c] == 0) spread(c);
        });
      }
  }

  // Owner c has chunk c of all nodes.
  void spread(std::size_t c) {
    const Range range = part_of(sums_.size(), nodes_, c);
    const std::span<float> mean = range.of(sums_);
    add(mean, owner_error_[c]);
    const std::uint64_t bytes = compress(range.begin, mean, range.of(result_), owner_error_[c]);
    for (std::size_t hop = 1; hop < nodes_; ++hop)
      send_(c, (c + hop) % nodes_, bytes, [this] { one_arrived(); });
  }

  std::uint64_t compress(std::size_t begin, std::span<const float> target, std::span<float> decoded,
                         std::span<float> error) {
    if (target.empty()) return 0;
    const std::uint64_t bytes = compressor_->compress(begin, target, decoded);
    for (std::size_t p = 0; p < target.size(); ++p) error[p] = target[p] - decoded[p];
    return bytes;
  }

  void one_arrived() {
    if (--waiting_ > 0) return;
    for (Vector& values : *values_) values = result_;
    done_();
  }

  std::unique_ptr<Compressor> compressor_;
  Gather gather_;
  float decay_, momentum_;
  Send send_;
  std::size_t nodes_ = 0;
  Vectors error_;        // of each node
  Vectors velocity_;     // of each node; none without momentum
  Vectors owner_error_;  // two_phase: of the second compression, of each chunk
  // Of the run at hand:
  Vectors* values_ = nullptr;
  std::function<void()> done_;
  Vector sums_, result_;
  std::vector<std::size_t> missing_;
  std::size_t waiting_ = 0;
};

// ---- PowerSGD ----

struct Matrix {
  std::size_t offset, rows, columns;
};

// Columns of the rows × rank matrix, one after the other (modified Gram-Schmidt).
void orthogonalise(std::span<float> p, std::size_t rows, std::size_t rank) {
  for (std::size_t c = 0; c < rank; ++c) {
    for (std::size_t before = 0; before < c; ++before) {
      double dot = 0;
      for (std::size_t r = 0; r < rows; ++r) dot += double{p[r * rank + c]} * p[r * rank + before];
      for (std::size_t r = 0; r < rows; ++r)
        p[r * rank + c] -= static_cast<float>(dot) * p[r * rank + before];
    }
    double square = 0;
    for (std::size_t r = 0; r < rows; ++r) square += double{p[r * rank + c]} * p[r * rank + c];
    const float norm = static_cast<float>(std::sqrt(square)) + 1e-20f;
    for (std::size_t r = 0; r < rows; ++r) p[r * rank + c] /= norm;
  }
}

class LowRankExchange : public MeanExchange {
 public:
  LowRankExchange(const Schema& schema, std::size_t rank, std::uint64_t seed, AllReducePlan plan,
                  Send send)
      : rank_(rank), plan_(plan), send_(std::move(send)) {
    for (const Segment& segment : schema.segments()) {
      const std::size_t rows =
          segment.shape.size() < 2 ? 0 : static_cast<std::size_t>(segment.shape[0]);
      const std::size_t columns = rows == 0 ? 0 : segment.size / rows;
      if (rows > 0 && (rows + columns) * rank < segment.size) {
        matrices_.push_back({segment.offset, rows, columns});
        p_floats_ += rows * rank;
        q_floats_ += columns * rank;
      } else {
        plain_.push_back({segment.offset, segment.offset + segment.size});
        plain_floats_ += segment.size;
      }
    }
    Random random(seed);
    for (std::size_t k = 0; k < q_floats_; ++k)
      q_.push_back(static_cast<float>(random.uniform() - 0.5));
  }

  void run(Vectors& values, std::function<void()> done) override {
    values_ = &values;
    done_ = std::move(done);
    error_.resize(values.size());
    travelling_.assign(values.size(), Vector(p_floats_ + plain_floats_));
    for (std::size_t i = 0; i < values.size(); ++i) {
      error_[i].resize(values[i].size());
      add(values[i], error_[i]);
      project(values[i], travelling_[i]);
    }
    all_reduce_mean(plan_, send_, {travelling_.begin(), travelling_.end()},
                    [this] { second_phase(); });
  }

  void pay_back(Vectors& values) override {
    for (std::size_t i = 0; i < error_.size(); ++i) add(values[i], error_[i]);
    error_.clear();
  }
  std::uint64_t node_floats() const override {
    return (error_.empty() ? 0 : error_[0].size()) + q_floats_;
  }

 private:
  // P = M·Q for every matrix, then the plain segments.
  void project(const Vector& values, Vector& out) const {
    std::size_t p = 0, q = 0;
    for (const Matrix& m : matrices_) {
      for (std::size_t r = 0; r < m.rows; ++r)
        for (std::size_t c = 0; c < m.columns; ++c)
          for (std::size_t k = 0; k < rank_; ++k)
            out[p + r * rank_ + k] += values[m.offset + r * m.columns + c] * q_[q + c * rank_ + k];
      p += m.rows * rank_;
      q += m.columns * rank_;
    }
    for (const Range& range : plain_) {
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(range.begin), range.size(),
                  out.begin() + static_cast<std::ptrdiff_t>(p));
      p += range.size();
    }
  }

  // All nodes have the same mean P: Q' = Mᵀ·P.
  void second_phase() {
    p_ = travelling_[0];
    std::size_t at = 0;
    for (const Matrix& m : matrices_) {
      orthogonalise(std::span(p_).subspan(at, m.rows * rank_), m.rows, rank_);
      at += m.rows * rank_;
    }
    travelling_.assign(values_->size(), Vector(q_floats_));
    for (std::size_t i = 0; i < values_->size(); ++i) {
      const Vector& values = (*values_)[i];
      std::size_t p = 0, q = 0;
      for (const Matrix& m : matrices_) {
        for (std::size_t r = 0; r < m.rows; ++r)
          for (std::size_t c = 0; c < m.columns; ++c)
            for (std::size_t k = 0; k < rank_; ++k)
              travelling_[i][q + c * rank_ + k] +=
                  values[m.offset + r * m.columns + c] * p_[p + r * rank_ + k];
        p += m.rows * rank_;
        q += m.columns * rank_;
      }
    }
    all_reduce_mean(plan_, send_, {travelling_.begin(), travelling_.end()}, [this] { finish(); });
  }

  // mean ≈ P·Q'ᵀ ; each node's error is the part of its own that this lacks.
  void finish() {
    q_ = travelling_[0];
    Vector result((*values_)[0].size());
    std::size_t p = 0, q = 0;
    for (const Matrix& m : matrices_) {
      for (std::size_t r = 0; r < m.rows; ++r)
        for (std::size_t c = 0; c < m.columns; ++c)
          for (std::size_t k = 0; k < rank_; ++k)
            result[m.offset + r * m.columns + c] += p_[p + r * rank_ + k] * q_[q + c * rank_ + k];
      p += m.rows * rank_;
      q += m.columns * rank_;
    }
    for (std::size_t i = 0; i < values_->size(); ++i)
      for (std::size_t k = 0; k < result.size(); ++k) error_[i][k] = (*values_)[i][k] - result[k];
    for (const Range& range : plain_) {
      std::copy_n(p_.begin() + static_cast<std::ptrdiff_t>(p), range.size(),
                  result.begin() + static_cast<std::ptrdiff_t>(range.begin));
      for (Vector& error : error_) std::ranges::fill(range.of(error), 0.0f);
      p += range.size();
    }
    for (Vector& values : *values_) values = result;
    done_();
  }

  std::size_t rank_;
  AllReducePlan plan_;
  Send send_;
  std::vector<Matrix> matrices_;
  std::vector<Range> plain_;
  std::size_t p_floats_ = 0, q_floats_ = 0, plain_floats_ = 0;
  Vector q_;       // columns × rank of every matrix, the same on all nodes
  Vectors error_;  // of each node
  // Of the run at hand:
  Vectors* values_ = nullptr;
  std::function<void()> done_;
  Vectors travelling_;
  Vector p_;
};

}  // namespace

std::unique_ptr<Compressor> make_codec_compressor(ModelCodec codec) {
  return std::make_unique<CodecCompressor>(std::move(codec));
}
std::unique_ptr<Compressor> make_top_k_compressor(std::function<double()> share) {
  return std::make_unique<TopKCompressor>(std::move(share));
}
std::unique_ptr<Compressor> make_qsgd_compressor(std::uint32_t levels, std::size_t bucket,
                                                 std::uint64_t seed) {
  return std::make_unique<QsgdCompressor>(levels, bucket, seed);
}

std::unique_ptr<MeanExchange> make_exact_exchange(AllReducePlan plan, Send send) {
  return std::make_unique<ExactExchange>(plan, std::move(send));
}
std::unique_ptr<MeanExchange> make_compressed_exchange(std::unique_ptr<Compressor> compressor,
                                                       Gather gather, Feedback feedback,
                                                       Send send) {
  return std::make_unique<CompressedExchange>(std::move(compressor), gather, feedback,
                                              std::move(send));
}
std::unique_ptr<MeanExchange> make_low_rank_exchange(const Schema& schema, std::size_t rank,
                                                     std::uint64_t seed, AllReducePlan plan,
                                                     Send send) {
  return std::make_unique<LowRankExchange>(schema, rank, seed, plan, std::move(send));
}

}  // namespace gossipd::lab
