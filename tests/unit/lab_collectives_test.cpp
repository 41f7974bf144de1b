// All-reduces and compressed means, on the lab's own wires.
#include <doctest/doctest.h>

#include "tests/unit/lab_test_support.h"
#include "tools/lab/references/compression.h"

using namespace gossipd;
using namespace gossipd::lab;

namespace {

constexpr AllReduce algorithms[] = {AllReduce::ring, AllReduce::halving_doubling, AllReduce::tree};

Vectors random_values(std::size_t nodes, std::size_t floats, std::uint64_t seed) {
  Random random(seed);
  Vectors values(nodes, std::vector<float>(floats));
  for (auto& one : values)
    for (float& x : one) x = static_cast<float>(random.uniform() - 0.5);
  return values;
}

std::vector<double> sum_of(const Vectors& values) {
  std::vector<double> sum(values[0].size());
  for (const auto& one : values)
    for (std::size_t p = 0; p < sum.size(); ++p) sum[p] += one[p];
  return sum;
}

struct Bench {
  World world;
  explicit Bench(std::size_t nodes, WireSpec wire = {})
      : world(std::vector<MachineSpec>(nodes), wire, 1, 1) {}
  Send send() {
    return [this](std::size_t from, std::size_t to, std::uint64_t bytes,
                  std::function<void()> arrived) {
      world.send(from, to, bytes, Lane::bulk, std::move(arrived));
    };
  }
  // Number of times that `done` was called.
  int run(MeanExchange& exchange, Vectors& values) {
    int done = 0;
    exchange.run(values, [&done] { ++done; });
    while (world.advance()) {
    }
    return done;
  }
};

double worst_difference(const std::vector<float>& a, const std::vector<double>& sum,
                        std::size_t nodes) {
  double worst = 0;
  for (std::size_t p = 0; p < a.size(); ++p)
    worst = std::max(worst, std::abs(a[p] - sum[p] / static_cast<double>(nodes)));
  return worst;
}

}  // namespace

TEST_CASE(
    "every all-reduce leaves the plain mean, the same bits on every node, for any number of "
    "nodes") {
  for (const AllReduce algorithm : algorithms)
    for (std::size_t nodes = 1; nodes <= 9; ++nodes)
      for (const std::size_t floats : {5u, 64u, 1001u}) {
        CAPTURE(static_cast<int>(algorithm));
        CAPTURE(nodes);
        Bench bench(nodes, {.jitter_s = 0.001});  // messages of different pairs overtake each other
        Vectors values = random_values(nodes, floats, nodes);
        const auto sum = sum_of(values);
        CHECK(bench.run(*make_exact_exchange({algorithm, WireFloat::fp32}, bench.send()), values) ==
              1);
        CHECK(worst_difference(values[0], sum, nodes) < 1e-6);
        for (const auto& one : values) CHECK(one == values[0]);
      }
}

TEST_CASE("an all-reduce in half precision leaves nearly the mean, the same bits on every node") {
  for (const AllReduce algorithm : algorithms)
    for (std::size_t nodes = 2; nodes <= 9; ++nodes) {
      CAPTURE(nodes);
      Bench bench(nodes);
      Vectors values = random_values(nodes, 257, nodes);
      const auto sum = sum_of(values);
      CHECK(bench.run(*make_exact_exchange({algorithm, WireFloat::fp16}, bench.send()), values) ==
            1);
      CHECK(worst_difference(values[0], sum, nodes) < 1e-3);
      for (const auto& one : values) CHECK(one == values[0]);
      for (const float x : values[0]) CHECK(x == round_to_half(x));
    }
}

TEST_CASE("an all-reduce costs what the cost model says, in bytes and in time") {
  constexpr std::uint64_t floats = 840 * 1000;  // divides by 1 … 8
  for (const AllReduce algorithm : algorithms)
    for (const std::size_t nodes : {2u, 3u, 4u, 7u, 8u}) {
      CAPTURE(static_cast<int>(algorithm));
      CAPTURE(nodes);
      const AllReducePlan plan{algorithm, WireFloat::fp32};
      WireSpec wire;
      wire.latency_s = 0.004;
      Bench bench(nodes, wire);
      Vectors values = random_values(nodes, floats, 1);
      bench.run(*make_exact_exchange(plan, bench.send()), values);
      CHECK(bench.world.traffic().bytes == all_reduce_bytes(plan, nodes, floats));
      const double model = all_reduce_seconds(plan, nodes, floats, wire.latency_s, 1e9);
      if (algorithm == AllReduce::tree)
        CHECK(bench.world.seconds_now() <= model * 1.01);
      else
        CHECK(bench.world.seconds_now() == doctest::Approx(model).epsilon(0.02));
    }
  CHECK(all_reduce_bytes({}, 8, 1000) == 8 * (2 * 7 * 4 * 1000 / 8));
}

TEST_CASE("a float rounds to the nearest half-precision value") {
  CHECK(round_to_half(1.0f) == 1.0f);
  CHECK(round_to_half(1.0f + 0x1p-11f) == 1.0f);  // ties to even
  CHECK(round_to_half(1.0f + 3 * 0x1p-11f) == 1.0f + 0x1p-9f);
  CHECK(round_to_half(-2049.0f) == -2048.0f);
  CHECK(round_to_half(65504.0f) == 65504.0f);
  CHECK(std::isinf(round_to_half(65520.0f)));
  CHECK(round_to_half(0x1p-24f) == 0x1p-24f);
  CHECK(round_to_half(0x1.8p-25f) == 0x1p-24f);
  CHECK(round_to_half(0x1p-26f) == 0.0f);
  CHECK(std::isnan(round_to_half(NAN)));
}

TEST_CASE(
    "error feedback conserves the sum: what has been given and what is still owed is what was put "
    "in") {
  for (const Gather gather : {Gather::all_gather, Gather::two_phase})
    for (const char* name : {"int8", "ternary", "top_k:8", "share"})
      for (const std::size_t nodes : {2u, 5u}) {
        CAPTURE(name);
        CAPTURE(nodes);
        Bench bench(nodes);
        const bool share = std::string(name) == "share";
        const auto exchange =
            make_compressed_exchange(share ? make_top_k_compressor([] { return 0.05; })
                                           : make_codec_compressor(ModelCodec(*parse_codec(name))),
                                     gather, {}, bench.send());
        std::vector<double> put_in(600), given(600);
        for (std::uint64_t round = 0; round < 8; ++round) {
          Vectors values = random_values(nodes, 600, round);
          const auto sum = sum_of(values);
          for (std::size_t p = 0; p < 600; ++p) put_in[p] += sum[p];
          CHECK(bench.run(*exchange, values) == 1);
          for (const auto& one : values) CHECK(one == values[0]);
          for (std::size_t p = 0; p < 600; ++p)
            given[p] += static_cast<double>(nodes) * values[0][p];
        }
        Vectors owed(nodes, std::vector<float>(600));
        exchange->pay_back(owed);
        const auto rest = sum_of(owed);
        double worst = 0;
        for (std::size_t p = 0; p < 600; ++p)
          worst = std::max(worst, std::abs(given[p] + rest[p] - put_in[p]));
        CHECK(worst < 1e-4);
      }
}

TEST_CASE("a compressed exchange sends what its codec takes") {
  Bench bench(4);
  Vectors values = random_values(4, 1024, 3);
  const auto gathered = make_compressed_exchange(make_codec_compressor(ModelCodec({CodecId::int8})),
                                                 Gather::all_gather, {}, bench.send());
  bench.run(*gathered, values);
  CHECK(bench.world.traffic().bytes == 4 * 3 * encoded_size({CodecId::int8}, 1024));
  Bench other(4);
  const auto two_phase = make_compressed_exchange(
      make_codec_compressor(ModelCodec({CodecId::int8})), Gather::two_phase, {}, other.send());
  other.run(*two_phase, values);
  CHECK(other.world.traffic().bytes == 2 * 4 * 3 * encoded_size({CodecId::int8}, 256));
}

TEST_CASE("batch-norm statistics travel in bf16 beside a sparse code, wherever a part begins") {
  const Schema schema =
      Schema::build({{.name = "weight", .shape = {1024}, .offset = 0, .size = 1024},
                     {.name = "bias", .shape = {8}, .offset = 1024, .size = 8},
                     {.name = "running_var",
                      .shape = {8},
                      .offset = 1032,
                      .size = 8,
                      .kind = SegmentKind::statistic},
                     {.name = "next", .shape = {24}, .offset = 1040, .size = 24}})
          .value();
  const std::vector<float> target = random_values(1, 1064, 7)[0];
  const Codec sparse = *parse_codec("top_k:16"), fine{CodecId::bf16, 0};
  ModelCodec codec(sparse, schema);
  std::vector<float> whole(1064), parts(1064);
  CHECK(codec.encode(0, target, whole) ==
        encoded_size(sparse, 1032) + encoded_size(fine, 8) + encoded_size(sparse, 24));
  for (std::size_t p = 1032; p < 1040; ++p)
    CHECK(whole[p] == doctest::Approx(target[p]).epsilon(0.01));
  CHECK(std::ranges::count_if(std::span(whole).first(1032), [](float x) { return x != 0; }) <= 17);

  const std::span<const float> all(target);
  const std::uint64_t bytes = codec.encode(0, all.first(1036), std::span(parts).first(1036)) +
                              codec.encode(1036, all.subspan(1036), std::span(parts).subspan(1036));
  CHECK(bytes == encoded_size(sparse, 1032) + 2 * encoded_size(fine, 4) + encoded_size(sparse, 24));
  CHECK(parts == whole);
}

TEST_CASE("QSGD gives one of the two levels around a value, and the value on the mean") {
  constexpr std::size_t bucket = 4;
  constexpr int draws = 4000, levels = 3;
  const std::vector<float> x = {0.9f, -0.2f, 0.05f, -0.61f, 0.0f, 8.0f};  // the last bucket: two
  const float largest[] = {0.9f, 8.0f};
  const auto qsgd = make_qsgd_compressor(levels, bucket, 5);
  std::vector<double> mean(x.size());
  std::vector<float> decoded(x.size(), 7.0f);
  for (int draw = 0; draw < draws; ++draw) {
    CHECK(qsgd->compress(0, x, decoded) == (4 + 2) + (4 + 1));  // 3 bits a value: -3 … 3
    for (std::size_t p = 0; p < x.size(); ++p) {
      const double step = largest[p / bucket] / levels, place = decoded[p] / step;
      CHECK(std::abs(place - std::round(place)) < 1e-5);
      CHECK(std::abs(double{decoded[p]} - x[p]) < step * 1.00001);
      mean[p] += decoded[p] / double{draws};
    }
  }
  for (std::size_t p = 0; p < x.size(); ++p) {
    CAPTURE(p);
    // Five standard deviations of the mean of as many draws between two levels.
    CHECK(std::abs(mean[p] - x[p]) <=
          5 * 0.5 * largest[p / bucket] / levels / std::sqrt(double{draws}));
  }
  CHECK(decoded[5] == 8.0f);
  CHECK(decoded[4] == 0.0f);
}

TEST_CASE("QSGD's codes differ from draw to draw and repeat with the seed") {
  const Vectors x = random_values(1, 600, 2);
  std::vector<float> first(600), second(600), again(600);
  const auto qsgd = make_qsgd_compressor(1, 512, 5);
  qsgd->compress(0, x[0], first);
  qsgd->compress(0, x[0], second);
  make_qsgd_compressor(1, 512, 5)->compress(0, x[0], again);
  CHECK(first != second);
  CHECK(first == again);
}

TEST_CASE("what an exchange without error feedback drops is lost") {
  Bench bench(3);
  const auto exchange = make_compressed_exchange(make_top_k_compressor([] { return 0.1; }),
                                                 Gather::all_gather, {.error = 0}, bench.send());
  Vectors values = random_values(3, 100, 4);
  const Vectors nothing(3, std::vector<float>(100));
  bench.run(*exchange, values);
  bench.run(*exchange, values = nothing);
  CHECK(values == nothing);
  bench.run(*exchange, values = random_values(3, 100, 5));
  exchange->pay_back(values = nothing);
  CHECK(values == nothing);
  CHECK(exchange->node_floats() == 0);
}

TEST_CASE("DGC's momentum correction is the paper's, entry by entry") {
  constexpr std::size_t nodes = 3, floats = 40, keep = 4;
  constexpr double m = 0.9;
  Bench bench(nodes);
  const auto exchange = make_compressed_exchange(make_top_k_compressor([] { return 0.1; }),
                                                 Gather::all_gather, {.momentum = m}, bench.send());
  std::vector<std::vector<double>> u(nodes, std::vector<double>(floats)), v = u;
  for (std::uint64_t round = 0; round < 12; ++round) {
    Vectors values = random_values(nodes, floats, round);
    std::vector<double> mean(floats);
    for (std::size_t i = 0; i < nodes; ++i) {
      std::vector<std::pair<double, std::size_t>> by_size;
      for (std::size_t p = 0; p < floats; ++p) {
        u[i][p] = m * u[i][p] + values[i][p];
        v[i][p] += u[i][p];
        by_size.emplace_back(-std::abs(v[i][p]), p);
      }
      std::sort(by_size.begin(), by_size.end());
      for (std::size_t k = 0; k < keep; ++k) {
        const std::size_t p = by_size[k].second;
        mean[p] += v[i][p] / nodes;
        u[i][p] = v[i][p] = 0;
      }
    }
    bench.run(*exchange, values);
    CAPTURE(round);
    for (std::size_t i = 0; i < nodes; ++i)
      for (std::size_t p = 0; p < floats; ++p)
        CHECK(values[i][p] == doctest::Approx(mean[p]).epsilon(1e-4));
  }
  CHECK(bench.world.traffic().bytes == 12 * nodes * (nodes - 1) * 8 * keep);
  CHECK(exchange->node_floats() == 2 * floats);  // u and v
}

TEST_CASE("PowerSGD recovers a matrix of its rank exactly after a few rounds") {
  const Schema schema = ToyEngine(0, 1).schema();
  Bench bench(3);
  const auto exchange = make_low_rank_exchange(schema, 1, 9, {}, bench.send());
  Random random(4);
  std::vector<float> u(ToyEngine::rows), v(ToyEngine::columns);
  for (float& x : u) x = static_cast<float>(random.uniform() + 0.5);
  for (float& x : v) x = static_cast<float>(random.uniform() - 0.5);
  double worst = 1;
  for (int round = 0; round < 4; ++round) {
    Vectors values(3, std::vector<float>(ToyEngine::floats, 0.5f));
    for (auto& one : values)
      for (std::size_t r = 0; r < ToyEngine::rows; ++r)
        for (std::size_t c = 0; c < ToyEngine::columns; ++c)
          one[r * ToyEngine::columns + c] = u[r] * v[c];
    const auto wanted = values[0];
    Vectors nothing(3, std::vector<float>(ToyEngine::floats));
    bench.run(*exchange, values);
    worst = 0;
    for (std::size_t p = 0; p < wanted.size(); ++p)
      worst = std::max(worst, double{std::abs(wanted[p] - values[0][p])});
  }
  CHECK(worst < 1e-5);
}

TEST_CASE(
    "PowerSGD's error feedback conserves the sum and it sends (rows + columns) times rank, and "
    "vectors as they are") {
  const Schema schema = ToyEngine(0, 1).schema();
  Bench bench(4);
  const auto exchange = make_low_rank_exchange(schema, 2, 9, {}, bench.send());
  std::vector<double> put_in(ToyEngine::floats), given(ToyEngine::floats);
  for (std::uint64_t round = 0; round < 5; ++round) {
    Vectors values = random_values(4, ToyEngine::floats, round);
    const auto sum = sum_of(values);
    for (std::size_t p = 0; p < sum.size(); ++p) put_in[p] += sum[p];
    bench.run(*exchange, values);
    for (std::size_t p = 0; p < sum.size(); ++p) given[p] += 4.0 * values[0][p];
  }
  CHECK(bench.world.traffic().bytes ==
        5 * (all_reduce_bytes({}, 4, ToyEngine::rows * 2 + ToyEngine::columns) +
             all_reduce_bytes({}, 4, ToyEngine::columns * 2)));
  Vectors owed(4, std::vector<float>(ToyEngine::floats));
  exchange->pay_back(owed);
  const auto rest = sum_of(owed);
  double worst = 0;
  for (std::size_t p = 0; p < rest.size(); ++p)
    worst = std::max(worst, std::abs(given[p] + rest[p] - put_in[p]));
  CHECK(worst < 1e-4);
}
