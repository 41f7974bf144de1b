#include <limits>
#include <numeric>

#include "tools/lab/run.h"

namespace gossipd::lab {

namespace {

// JSON has no NaN: a run that diverged has null where a loss should be.
void get_number(const nlohmann::json& j, const char* key, double& out) {
  const nlohmann::json& value = j.at(key);
  out = value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

}  // namespace

double RunResult::accuracy_mean() const {
  return accuracy.empty() ? 0
                          : std::accumulate(accuracy.begin(), accuracy.end(), 0.0) /
                                static_cast<double>(accuracy.size());
}

nlohmann::json to_json(const RunResult& r) {
  nlohmann::json curve = nlohmann::json::array();
  for (const CurvePoint& p : r.curve)
    curve.push_back({{"seconds", p.seconds},
                     {"samples", p.samples},
                     {"bytes", p.bytes},
                     {"accuracy", p.accuracy},
                     {"loss", p.loss}});
  return {{"id", r.id},
          {"name", r.name},
          {"strategy", r.strategy},
          {"settings", r.settings},
          {"seed", r.seed},
          {"knobs", r.knobs},
          {"nodes", r.nodes},
          {"floats", r.floats},
          {"finished", r.finished},
          {"accuracy", r.accuracy},
          {"accuracy_mean", r.accuracy_mean()},
          {"loss", r.loss},
          {"train_loss", r.train_loss},
          {"consensus_distance", r.consensus_distance},
          {"seconds", r.seconds},
          {"seconds_to_target", r.seconds_to_target},
          {"target_accuracy", r.target_accuracy},
          {"samples", r.samples},
          {"steps", r.steps},
          {"bytes", r.bytes},
          {"messages", r.messages},
          {"dense_baseline_bytes", r.dense_baseline_bytes},
          {"age_mean", r.age_mean},
          {"age_max", r.age_max},
          {"state_bytes_server", r.state_bytes_server},
          {"state_bytes_node", r.state_bytes_node},
          {"step_time_variation", r.step_time_variation},
          {"curve", curve},
          {"wall_seconds", r.wall_seconds}};
}

Result<RunResult> result_from_json(const nlohmann::json& j) {
  try {
    RunResult r;
    j.at("id").get_to(r.id), j.at("name").get_to(r.name), j.at("strategy").get_to(r.strategy),
        j.at("seed").get_to(r.seed);
    r.settings = j.value("settings", "");
    j.at("knobs").get_to(r.knobs), j.at("nodes").get_to(r.nodes), j.at("floats").get_to(r.floats),
        j.at("finished").get_to(r.finished);
    j.at("accuracy").get_to(r.accuracy), get_number(j, "loss", r.loss),
        get_number(j, "train_loss", r.train_loss),
        get_number(j, "consensus_distance", r.consensus_distance);
    j.at("seconds").get_to(r.seconds), j.at("seconds_to_target").get_to(r.seconds_to_target);
    j.at("target_accuracy").get_to(r.target_accuracy), j.at("samples").get_to(r.samples),
        j.at("steps").get_to(r.steps);
    j.at("bytes").get_to(r.bytes), j.at("messages").get_to(r.messages),
        j.at("dense_baseline_bytes").get_to(r.dense_baseline_bytes);
    j.at("age_mean").get_to(r.age_mean), j.at("age_max").get_to(r.age_max);
    j.at("state_bytes_server").get_to(r.state_bytes_server),
        j.at("state_bytes_node").get_to(r.state_bytes_node);
    j.at("step_time_variation").get_to(r.step_time_variation),
        j.at("wall_seconds").get_to(r.wall_seconds);
    for (const auto& p : j.at("curve")) {
      CurvePoint point;
      p.at("seconds").get_to(point.seconds), p.at("samples").get_to(point.samples),
          p.at("bytes").get_to(point.bytes);
      p.at("accuracy").get_to(point.accuracy), get_number(p, "loss", point.loss);
      r.curve.push_back(point);
    }
    return r;
  } catch (const nlohmann::json::exception& error) {
    return Error{"bad-result", std::string("is not a result of gossip-lab run (") + error.what() +
                                   "); run the scenario again"};
  }
}

}  // namespace gossipd::lab
