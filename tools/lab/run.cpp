#include "tools/lab/run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>

#include "core/base/dense_baseline.h"
#include "models/devices/runtime.h"
#include "tools/lab/data_split.h"

namespace gossipd::lab {

namespace {

bool is_healthy(const Scenario& scenario, std::size_t node) {
  return scenario.poison.kind == PoisonSpec::Kind::none || scenario.poison.node != node;
}

class Books : public Recorder {
 public:
  Books(const Scenario& scenario, const Job& job, World& world, Strategy& strategy,
        GradientEngine& judge, Pool& judges)
      : scenario_(scenario), world_(world), strategy_(strategy), judge_(judge), judges_(judges) {
    budget = job.budget_samples;
    every_ = job.evaluate_every_samples > 0 ? job.evaluate_every_samples : budget;
    next_ = every_;
    last_trained_.resize(scenario.machines.size(), World::begin);
  }

  Samples samples() const override { return samples_; }

  void trained(std::size_t machine, std::uint32_t batch, double loss, double age_steps) override {
    samples_ += batch;
    ++steps;
    const double took = seconds(world_.now() - last_trained_[machine]);
    last_trained_[machine] = world_.now();
    time_sum_ += took, time_squares_ += took * took;
    if (std::isfinite(age_steps))
      age_sum_ += age_steps, ++ages_, age_max = std::max(age_max, age_steps);
    if (samples_ * 10 >= budget * 9) loss_sum_ += loss * batch, loss_samples_ += batch;
    // Evaluates a few nodes, each at its own step boundary, where its model is whole.
    if (samples_ >= next_ && !budget_spent()) {
      next_ = (samples_ / every_ + 1) * every_;
      open_.clear();
      wanted_ = scenario_.evaluate_nodes;
      points_.emplace_back();
    }
    const bool may = !scenario_.evaluate_first || machine < scenario_.evaluate_nodes;
    if (wanted_ > 0 && may && is_healthy(scenario_, machine) &&
        std::find(open_.begin(), open_.end(), machine) == open_.end()) {
      open_.push_back(machine);
      --wanted_;
      evaluate(machine, points_.size() - 1);
    }
  }

  // A node's next step may come long after the one that made the evaluation due.
  void evaluate(std::size_t machine, std::size_t point) {
    points_[point].seconds = world_.seconds_now(), points_[point].samples = samples_;
    points_[point].bytes = world_.traffic().bytes;
    const std::span<const float> model = strategy_.model(machine);
    auto work = [this, model = std::vector<float>(model.begin(), model.end()), point] {
      const std::atomic<bool> never{false};
      const auto figures = judge_.evaluate(model, never);
      if (figures) figures_.push_back({point, *figures});
      return 0.0;
    };
    pending_.push_back(judges_.submit(std::move(work)));
  }

  // The end: all requested nodes, as a last point.
  std::vector<double> finish(RunResult& result) {
    points_.emplace_back();
    std::vector<std::size_t> nodes;
    for (std::size_t i = 0; i < scenario_.machines.size(); ++i)
      if (strategy_.takes_part(i) && is_healthy(scenario_, i)) nodes.push_back(i);
    if (strategy_.same_model_everywhere() && !nodes.empty()) nodes.resize(1);
    const std::size_t count = std::min(scenario_.final_nodes, nodes.size());
    for (std::size_t k = 0; k < count; ++k)
      evaluate(nodes[k * nodes.size() / count], points_.size() - 1);
    for (auto& each : pending_) each.get();
    pending_.clear();
    std::vector<double> accuracy;
    std::vector<double> seen(points_.size());
    for (const auto& [point, figure] : figures_) {
      points_[point].accuracy += figure.accuracy.value_or(0), points_[point].loss += figure.loss;
      ++seen[point];
      if (point + 1 == points_.size()) accuracy.push_back(figure.accuracy.value_or(0));
    }
    for (std::size_t p = 0; p < points_.size(); ++p) {
      if (seen[p] == 0) continue;
      points_[p].accuracy /= seen[p], points_[p].loss /= seen[p];
      result.curve.push_back(points_[p]);
    }
    result.age_mean = ages_ > 0 ? age_sum_ / static_cast<double>(ages_) : 0;
    result.age_max = age_max;
    result.train_loss = loss_samples_ > 0 ? loss_sum_ / static_cast<double>(loss_samples_) : 0;
    const double n = static_cast<double>(std::max<Step>(steps, 1)), mean = time_sum_ / n;
    result.step_time_variation =
        mean > 0 ? std::sqrt(std::max(0.0, time_squares_ / n - mean * mean)) / mean : 0;
    return accuracy;
  }

  Step steps = 0;
  double age_max = 0;

 private:
  const Scenario& scenario_;
  World& world_;
  Strategy& strategy_;
  GradientEngine& judge_;
  Pool& judges_;
  Samples samples_ = 0, every_ = 0, next_ = 0;
  std::vector<Instant> last_trained_;
  std::size_t wanted_ = 0;
  std::vector<std::size_t> open_;
  std::vector<CurvePoint> points_;
  std::vector<std::future<double>> pending_;
  std::vector<std::pair<std::size_t, Figures>> figures_;  // written by one judge thread
  double age_sum_ = 0, loss_sum_ = 0, time_sum_ = 0, time_squares_ = 0;
  std::uint64_t ages_ = 0;
  Samples loss_samples_ = 0;
};

Result<std::vector<std::uint8_t>> labels_of(const DataSet& set) {
  std::vector<std::uint8_t> labels;
  for (std::size_t i = 0; i < set.count(); ++i) {
    const std::optional<std::int64_t> label = set.label(i);
    if (!label || *label > 255)
      return Error{"bad-config",
                   "alpha divides samples by class: it needs data of 2 to 256 classes"};
    labels.push_back(static_cast<std::uint8_t>(*label));
  }
  return labels;
}

Result<std::vector<std::unique_ptr<GradientEngine>>> build_engines(
    const Scenario& scenario, const Job& job, const std::shared_ptr<const DataSet>& train) {
  const std::size_t nodes = scenario.machines.size();
  if (train->count() < nodes)
    return Error{"bad-config", "there are more nodes than training samples; use fewer nodes"};
  std::vector<std::vector<std::uint32_t>> shards;
  if (scenario.dirichlet) {
    auto labels = labels_of(*train);
    if (!labels) return labels.error();
    shards = split_by_dirichlet(*labels, nodes, scenario.alpha, scenario.equal_sizes, job.seed);
  }
  std::vector<std::unique_ptr<GradientEngine>> engines;
  for (std::size_t i = 0; i < nodes; ++i) {
    const DataOrder::Shard shard{static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(nodes)};
    DataOrder order = scenario.dirichlet ? DataOrder(job.seed, shards[i], shard)
                                         : DataOrder(job.seed, train->count(), shard);
    auto set = is_healthy(scenario, i) ? train : poisoned(scenario.poison, job.data, train, order);
    auto engine =
        make_torch_engine(job, "cpu", 1, BatchSource(std::move(set), std::move(order)), {});
    if (!engine) return engine.error();
    engines.push_back(std::move(*engine));
  }
  return engines;
}

void lay_topology(const Scenario& scenario, std::uint64_t seed, Strategy& strategy) {
  const std::size_t n = scenario.machines.size();
  std::set<std::pair<std::size_t, std::size_t>> pairs;
  const auto join = [&](std::size_t a, std::size_t b) {
    if (a != b) pairs.insert({a, b}), pairs.insert({b, a});
  };
  if (scenario.topology == Scenario::Topology::ring ||
      scenario.topology == Scenario::Topology::random)
    // a random graph contains a ring, so it is connected
    for (std::size_t i = 0; i < n; ++i) join(i, (i + 1) % n);
  if (scenario.topology == Scenario::Topology::random) {
    Random random(seed ^ 0x746f706full);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t k = 2; k < scenario.degree; ++k) join(i, random.below(n));
  }
  strategy.reachable(std::move(pairs));
}

void schedule_events(const Scenario& scenario, World& world, Strategy& strategy) {
  for (const EventSpec& e : scenario.events)
    world.at(World::begin + from_seconds(e.at_s), [e, &world, &strategy] {
      switch (e.what) {
        case EventSpec::What::kill: return strategy.kill(e.node);
        case EventSpec::What::start: return strategy.restart(e.node);
        case EventSpec::What::freeze: return strategy.freeze(e.node, from_seconds(e.for_s));
        case EventSpec::What::leave: return strategy.leave(e.node);
        case EventSpec::What::speed: return world.set_speed(e.node, e.speed);
        case EventSpec::What::cut: return world.cut(e.node, e.other, true);
        case EventSpec::What::heal: return world.cut(e.node, e.other, false);
      }
    });
}

// Of what nodes share: counters of their own, as a batch norm's of its batches, may differ.
double final_distance(const Scenario& scenario, Strategy& strategy, const Schema& schema,
                      std::size_t nodes) {
  if (strategy.same_model_everywhere()) return 0;
  std::vector<std::vector<float>> models;
  for (std::size_t i = 0; i < nodes; ++i)
    if (strategy.takes_part(i) && is_healthy(scenario, i)) {
      const auto model = strategy.model(i);
      models.emplace_back();
      for (const Block& block : schema.blocks()) {
        const std::span<const float> shared = model.subspan(block.offset, block.size);
        models.back().insert(models.back().end(), shared.begin(), shared.end());
      }
    }
  if (models.empty()) return 0;
  std::vector<double> mean(models[0].size());
  for (const auto& model : models)
    for (std::size_t p = 0; p < mean.size(); ++p)
      mean[p] += static_cast<double>(model[p]) / static_cast<double>(models.size());
  double norm = 0, worst = 0;
  for (const double m : mean) norm += m * m;
  for (const auto& model : models) {
    double distance = 0;
    for (std::size_t p = 0; p < mean.size(); ++p)
      distance += std::pow(static_cast<double>(model[p]) - mean[p], 2);
    worst = std::max(worst, distance);
  }
  return norm > 0 ? std::sqrt(worst / norm) : 0;
}

// Between two evaluations; 0 where it was reached before the first, since nobody knows when.
double time_to(const std::vector<CurvePoint>& curve, double target) {
  const auto reached = std::ranges::find_if(
      curve, [&](const CurvePoint& point) { return point.accuracy >= target; });
  if (reached == curve.end() || reached == curve.begin()) return 0;
  const CurvePoint& before = *std::prev(reached);
  return before.seconds + (reached->seconds - before.seconds) * (target - before.accuracy) /
                              (reached->accuracy - before.accuracy);
}

double time_limit(const Scenario& scenario, const Job& job, const World& world, std::size_t nodes) {
  if (scenario.time_limit_s != 0) return scenario.time_limit_s;
  double slowest = 0;
  for (std::size_t i = 0; i < nodes; ++i)
    slowest = std::max(slowest, world.mean_step_seconds(i, job.batch));
  return 600 + 20 * slowest * static_cast<double>(job.budget_samples) /
                   (static_cast<double>(job.batch) * static_cast<double>(nodes));
}

void fill_costs(RunResult& result, const Strategy& strategy, const World& world) {
  result.bytes = world.traffic().bytes, result.messages = world.traffic().messages;
  result.dense_baseline_bytes = dense_baseline_bytes(result.steps, result.floats);
  const Strategy::State state = strategy.state();
  result.state_bytes_server = state.server_floats * 4,
  result.state_bytes_node = state.node_floats * 4;
}

}  // namespace

Result<RunResult> run_scenario(const Scenario& scenario, std::uint64_t seed,
                               const RunOptions& options) {
  const auto began = std::chrono::steady_clock::now();
  const Job job = scenario.job_of(seed);
  auto sets = load_data(job.data, LoadOptions{.directory = scenario.data_dir, .seed = job.seed});
  if (!sets) return sets.error();
  auto engines = build_engines(scenario, job, sets->train);
  if (!engines) return engines.error();
  auto judge = make_torch_engine(
      job, "cpu", 1, BatchSource(sets->train, DataOrder(seed, std::vector<std::uint32_t>{0}, {})),
      std::move(sets->held_out));
  if (!judge) return judge.error();

  Pool judges(1, [] { prepare_training_thread(1, 0); });
  World world(scenario.machines, scenario.wire, seed, options.threads,
              [] { prepare_training_thread(1, 0); });
  for (const auto& [pair, wire] : scenario.wires) world.set_wire(pair.first, pair.second, wire);
  const std::unique_ptr<Strategy> strategy = scenario.make_strategy();
  Books books(scenario, job, world, *strategy, **judge, judges);
  Setup setup{job, world, books, *engines, seed};
  lay_topology(scenario, seed, *strategy);
  for (std::size_t i = 0; i < scenario.starts_at_s.size(); ++i)
    if (scenario.starts_at_s[i] > 0) strategy->starts_at(i, from_seconds(scenario.starts_at_s[i]));
  schedule_events(scenario, world, *strategy);
  strategy->poison(scenario.poison);
  strategy->start(setup);

  const double limit = time_limit(scenario, job, world, setup.nodes());
  RunResult result;
  result.finished = true;
  for (std::uint64_t events = 0; !strategy->finished(); ++events) {
    if (!world.advance() || world.seconds_now() > limit) {
      result.finished = false;
      break;
    }
    if (options.progress && events % 256 == 0)
      options.progress(std::min(
          1.0, static_cast<double>(books.samples()) / static_cast<double>(job.budget_samples)));
  }
  world.settle();

  result.id = scenario.run_id(seed), result.name = scenario.name;
  result.settings = scenario.settings_id();
  result.strategy = scenario.strategy;
  result.seed = seed, result.nodes = scenario.machines.size(),
  result.floats = (*engines)[0]->schema().floats();
  for (const Setting& setting : strategy->settings()) result.knobs[setting.key] = setting.get();
  result.accuracy = books.finish(result);
  result.loss = result.curve.empty() ? 0 : result.curve.back().loss;
  result.consensus_distance =
      final_distance(scenario, *strategy, (*engines)[0]->schema(), setup.nodes());
  result.seconds = world.seconds_now();
  result.target_accuracy = scenario.target_accuracy;
  result.seconds_to_target = time_to(result.curve, scenario.target_accuracy);
  result.samples = books.samples(), result.steps = books.steps;
  fill_costs(result, *strategy, world);
  result.wall_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return result;
}

}  // namespace gossipd::lab
