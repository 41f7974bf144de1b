// core/codec/kernels.h - the loops over floats, one table of them per instruction set.
//
// Plain loops compiled once per instruction set (baseline, AVX2, AVX-512; on ARM the baseline has
// NEON, and there is no other) and picked at start. Every function gives the same bits in every
// version: element-wise work has one rounding per operation and no contraction, and reductions add
// into 16 fixed lanes that are summed in one fixed order. Tests compare the versions byte by byte,
// those of ARM and x86-64 by digests.
// Sources and destinations have one size and do not overlap. Pure; any thread.
#pragma once

#include "core/codec/codec.h"

namespace gossipd {

struct ChangeNorms {
  double change_squared = 0;     // ‖target − replica‖²
  double reference_squared = 0;  // ‖replica‖²
};

struct MovementNorms {
  double moved_squared = 0;  // ‖now − before‖²
  double before_squared = 0, now_squared = 0;
};

struct Kernels {
  const char* name;

  // update += gain · (received − published); returns Σ (gain·(received − published))².
  double (*transfer)(std::span<float> update, std::span<const float> received,
                     std::span<const float> published, float gain);
  // Both move towards each other, from what they were: a += gain_a · (b − a) and b += gain_b · (a −
  // b). With the arguments swapped the results are the same bits, swapped.
  void (*contract_replicas)(std::span<float> a, std::span<float> b, float gain_a, float gain_b);
  // target = model + update; false: one of the sums is NaN or infinite.
  bool (*sum)(std::span<float> target, std::span<const float> model, std::span<const float> update);
  // drift += blend · ((now − before)·per_step − drift): the moving average of displacement per
  // step.
  void (*drift)(std::span<float> drift, std::span<const float> now, std::span<const float> before,
                float per_step, float blend);
  // before = share · (before − now)
  void (*take_back)(std::span<float> before, std::span<const float> now, float share);
  // y += a · x; returns Σ (a·x)².
  double (*axpy)(std::span<float> y, std::span<const float> x, float a);
  // Norms of the difference between `model + update` and `replica`.
  ChangeNorms (*change)(std::span<const float> model, std::span<const float> update,
                        std::span<const float> replica);
  // Σ (a − b)² and Σ b²
  ChangeNorms (*distance)(std::span<const float> a, std::span<const float> b);
  MovementNorms (*movement)(std::span<const float> now, std::span<const float> before);
  // How many |a − b| are above `bound`, which is not negative.
  std::size_t (*count_apart)(std::span<const float> a, std::span<const float> b, float bound);
  bool (*all_finite)(std::span<const float> x);
  // bf16 to fp32, which is exact, and finite fp32 to the nearest bf16, ties to even.
  void (*widen)(std::span<float> out, std::span<const std::uint16_t> bf16);
  void (*narrow)(std::span<std::uint16_t> bf16, std::span<const float> x);
  void (*round)(std::span<float> x);  // to what narrow() keeps; an infinity or NaN stays
  // change(), distance(), transfer() and contract_replicas() of replicas in bf16. Where two values
  // are next to each other they count as equal: both differ from each other by 0 and stay. The
  // change is that of the rounded sum.
  ChangeNorms (*narrow_change)(std::span<const float> model, std::span<const float> update,
                               std::span<const std::uint16_t> replica);
  ChangeNorms (*narrow_distance)(std::span<const std::uint16_t> a,
                                 std::span<const std::uint16_t> b);
  double (*narrow_transfer)(std::span<float> update, std::span<const std::uint16_t> received,
                            std::span<const std::uint16_t> published, float gain);
  void (*narrow_contract)(std::span<std::uint16_t> a, std::span<std::uint16_t> b, float gain_a,
                          float gain_b);
  std::uint64_t (*hash)(std::span<const float> x);  // XXH3-64 of the bytes
  // codec.h's encode() and apply() for one instruction set: the caller has checked codec and sizes.
  bool (*encode)(Codec, std::span<const float> target, std::span<float> published,
                 std::span<std::byte> out);
  ApplyError (*apply)(Codec, std::span<const std::byte> payload, std::span<float> received,
                      float magnitude_max);
  // The entries of a top-k payload of `encoded_size()` bytes, chunk by chunk: of each the index in
  // its chunk and what it adds. Both have room for `top_k_spare` more than there are entries.
  // False: malformed.
  bool (*top_k_entries)(std::size_t keep, std::span<const std::byte> payload, std::size_t floats,
                        std::uint16_t* index, float* difference);
};

inline constexpr std::size_t top_k_spare = 16;

// The best version this CPU runs (fixed for the process).
[[nodiscard]] const Kernels& kernels();
// All versions this CPU can run, baseline first; for tests and benchmarks.
[[nodiscard]] std::span<const Kernels* const> kernel_versions();

}  // namespace gossipd
