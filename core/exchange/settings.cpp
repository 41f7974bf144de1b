#include "core/exchange/settings.h"

namespace gossipd {

void add_codec(SettingTable& table, std::string key, Codec& target, std::string help) {
  Codec* t = &target;
  table.add(
      std::move(key), "", "CODEC", "", std::move(help), SettingKind::text,
      [t](std::string_view given) -> SettingRefused {
        const std::optional<Codec> codec = parse_codec(std::string(given));
        if (!codec)
          return quoted(given) +
                 " is no codec; use fp32, bf16, int8, int4, ternary, top_k or top_k:KEEP (entries "
                 "of 1024)";
        *t = *codec;
        return std::nullopt;
      },
      [t] { return to_text(*t); });
}

namespace {

void add_codecs(SettingTable& table, ExchangePolicy& e) {
  add_codec(table, "exchange.codec", e.codec, "encoding of changes");
  table.boolean(
      "exchange.codec_by_delay", "", e.codec_by_delay,
      "use a finer codec where the shortest round trip exceeds 8 steps and `period_steps`: "
      "fewer and larger deltas");
  add_codec(table, "exchange.consensus_codec", e.consensus_codec,
            "encoding on a new link, when leaving and in the final exchange");
  add_codec(table, "exchange.keyframe_codec", e.keyframe_codec,
            "encoding of whole blocks on a new link: fp32, bf16 or int8");
  table.one_of("exchange.replicas", "", e.replicas, {"auto", "fp32", "bf16"},
               "storage of a link's two replicas; bf16, if both ends ask for it, halves the memory "
               "and agrees to 0.4 %; auto: bf16 from 32 million parameters on");
}

void add_trigger(SettingTable& table, ExchangePolicy& e) {
  table.one_of("exchange.trigger", "exchange-trigger", e.trigger, {"change", "period", "budget"},
               "when to publish: after enough `change`, at a `period`, or within a `budget` of "
               "bytes");
  table.integer("exchange.round_steps", "", "steps", e.round_steps, 1, 1'000'000,
                "own steps between two looks: only at a look may this node open an exchange");
  table.number("exchange.threshold", "", "", e.threshold, 0, 10,
               "relative change of a block that is worth publishing");
  table.number("exchange.threshold_power", "", "", e.threshold_by_rate.power, 0, 8,
               "exponent by which the threshold follows the learning rate");
  table.number("exchange.threshold_floor", "", "", e.threshold_by_rate.floor, 0, 1,
               "least fraction of the threshold that remains");
  table.number("exchange.entry_threshold", "", "", e.entry_threshold, 0, 1e6,
               "with trigger `change` and codec top_k: publish only parameters that have changed "
               "by more than this many usual steps; 0: as many as `codec` says");
  table.integer("exchange.period_steps", "", "steps", e.period_steps, 1, 1'000'000'000,
                "own steps between exchanges on a link; with trigger `change` the minimum");
  table.number("exchange.urgent_change", "", "of the model", e.urgent_change, 0, 100,
               "with trigger `change` and without `entry_threshold`: a model that has changed by "
               "this much since it was last published to a neighbour is published at the next "
               "look, and looks follow every step; 0: never");
  table.number("exchange.budget_bytes_per_s", "", "B/s", e.budget_bytes_per_s, 0, 1e12,
               "limit of what this node sends on all links, for budget");
  table.milliseconds("exchange.heartbeat_ms", e.heartbeat, 1, setting_day_ms,
                     "maximum interval between publishing on a link, even without change");
}

void add_mixing(SettingTable& table, ExchangePolicy& e) {
  table.number(
      "exchange.outer_momentum", "", "", e.outer_momentum, 0, 0.9,
      "momentum of the models' common movement, from exchange to exchange; own steps are damped in "
      "return, so the learning rate stays the same");
  table.boolean(
      "exchange.outer_momentum_by_delay", "", e.outer_momentum_by_delay,
      "reduce `outer_momentum` where the shortest round trip exceeds 8 steps and `period_steps`: "
      "at 50 steps 0.5 becomes 0.29 (formula: core/exchange/EXCHANGE.md)");
  table.number("exchange.mixing", "", "", e.mixing, 0.001, 4,
               "strength of mixing with neighbours; none at all: exchange.enabled");
  table.number("exchange.age_decay", "", "", e.age_decay, 0, 1000,
               "rate at which an ageing replica loses weight");
  table.number("exchange.joiner_weight", "", "", e.joiner_weight, 0, 1,
               "initial weight of a joiner");
  table.integer("exchange.joiner_steps", "", "steps", e.joiner_steps, 0, 1'000'000'000,
                "steps until a joiner has full weight");
}

void add_corrections(SettingTable& table, CorrectionPolicy& c) {
  table.number("exchange.future_position", "", "", c.future_position, 0, 4,
               "strength of the future-position correction; 0: none");
  table.number("exchange.drift_window_steps", "", "steps", c.drift_window_steps, 1, 1e6,
               "window of the moving average of the drift");
  table.number("exchange.curvature", "", "", c.curvature, 0, 1e6,
               "damping of the future position by curvature (DC-ASGD); 0: none");
  table.one_of("exchange.curvature_mode", "", c.curvature_mode, {"constant", "adaptive"},
               "scale of the damping: size of the block (constant) or of the drift (adaptive)");
  table.one_of("exchange.loss_trust", "", c.loss_trust, {"off", "holt", "lstm"},
               "forecast of a neighbour's loss that weighs its model (LC-ASGD)");
  table.number("exchange.loss_trust_max", "", "", c.loss_trust_max, 1, 1000,
               "largest factor on a neighbour's weight; the least is its inverse");
}

void add_guards(SettingTable& table, GuardPolicy& g) {
  table.number("exchange.magnitude_max", "", "", g.magnitude_max, 1e-6, 1e30,
               "largest single difference that is accepted");
  table.number("exchange.transfer_reach", "", "", g.transfer_reach, 0, 1e6,
               "limit of a neighbour's pull, as a multiple of what is usual; 0: none");
  table.number(
      "exchange.loss_ratio_max", "", "", g.loss_ratio_max, 0, 1e6,
      "ignore models of neighbours whose loss exceeds this multiple of the median; 0: never");
  table.number("exchange.step_jump", "", "", g.step_jump, 0, 1e6,
               "take back own steps that go this many times as far as usual; 0: never");
  table.integer("exchange.refusals_until_quarantine", "", "", g.refusals_until_quarantine, 1,
                1'000'000, "refused messages in a row that close a link for a while");
}

}  // namespace

std::vector<Setting> exchange_settings(ExchangePolicy& e) {
  std::vector<Setting> settings;
  SettingTable table(settings);
  table.boolean("exchange.enabled", "exchange", e.enabled, "off: a member that trains alone");
  add_trigger(table, e);
  add_codecs(table, e);
  add_mixing(table, e);
  add_corrections(table, e.correction);
  add_guards(table, e.guard);
  table.integer(
      "exchange.bulk_window_bytes", "", "bytes", e.bulk_window_bytes, 64 * 1024,
      bulk_window_bytes_max,
      "bytes of one link that may wait for the socket; up to a 32nd of a large model where "
      "the line keeps up");
  table.number("exchange.consensus_bound", "", "", e.consensus_bound, 1e-9, 1,
               "consensus distance that ends the final exchange");
  return settings;
}

std::optional<std::string> exchange_mistake(const ExchangePolicy& e) {
  if (e.trigger == TriggerRule::budget && e.budget_bytes_per_s <= 0)
    return "exchange.trigger is budget, but exchange.budget_bytes_per_s is 0; set it, or choose "
           "another trigger";
  const CodecId whole = e.keyframe_codec.id;
  if (whole != CodecId::fp32 && whole != CodecId::bf16 && whole != CodecId::int8)
    return "exchange.keyframe_codec is " + std::string(to_string(whole)) +
           ", which is for differences; use fp32, bf16 or int8";
  return std::nullopt;
}

}  // namespace gossipd
