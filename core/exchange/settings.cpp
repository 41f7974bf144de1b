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
      [t] {
        std::string name = to_string(t->id);
        if (t->id == CodecId::top_k) name += ":" + std::to_string(t->keep);
        return name;
      });
}

std::vector<Setting> exchange_settings(ExchangePolicy& e) {
  std::vector<Setting> settings;
  SettingTable table(settings);
  table.boolean("exchange.enabled", "exchange", e.enabled, "off: a member that trains alone");
  table.one_of("exchange.trigger", "exchange-trigger", e.trigger,
               {"change", "period", "quadratic", "budget", "auto"},
               "when to speak: enough change, a period, one that grows as 1/rate^2, a budget of "
               "bytes, or a wanted closeness");
  table.one_of("exchange.scope", "", e.scope, {"block", "model"},
               "what is held against the threshold, and goes when beyond it");
  add_codec(table, "exchange.codec", e.codec, "how changes are written");
  table.boolean("exchange.codec_by_delay", "", e.codec_by_delay,
                "finer where the line's round trip takes longer than period_steps");
  add_codec(table, "exchange.consensus_codec", e.consensus_codec,
            "the same for a new link, leaving and the final exchange");
  add_codec(table, "exchange.keyframe_codec", e.keyframe_codec,
            "how a whole block is written on a new link: fp32, bf16 or int8");
  table.one_of(
      "exchange.replicas", "", e.replicas, {"fp32", "bf16"},
      "how a link's two replicas are kept; bf16, where both ends ask for it: half the memory");
  table.integer("exchange.round_steps", "", "steps", e.round_steps, 1, 1'000'000,
                "own steps between two looks at the model");
  table.number("exchange.threshold", "", "", e.threshold, 0, 10,
               "relative change of a block that is worth sending");
  table.number("exchange.threshold_power", "", "", e.threshold_power, 0, 8,
               "how the threshold follows the learning rate");
  table.number("exchange.threshold_floor", "", "", e.threshold_floor, 0, 1,
               "least part of the threshold that stays");
  table.integer("exchange.period_steps", "", "steps", e.period_steps, 1, 1'000'000'000,
                "own steps between exchanges on a link; change, quadratic: the least");
  table.number("exchange.quadratic_alpha", "", "", e.quadratic_alpha, 0, 1e6,
               "quadratic: (alpha / learning rate)^2 steps");
  table.number("exchange.budget_bytes_per_s", "", "B/s", e.budget_bytes_per_s, 0, 1e12,
               "budget (and auto, if not 0): of this node, all links");
  table.number("exchange.slowdown_max", "", "", e.slowdown_max, 1e-6, 10,
               "auto: part by which learning may be slower than when closest");
  table.number("exchange.horizon_steps", "", "steps", e.horizon_steps, 1, 1e9,
               "auto: steps over which consensus distance is held against drift");
  table.milliseconds("exchange.heartbeat_ms", e.heartbeat, 1, setting_day_ms,
                     "speak at least so often, changed or not");
  table.number("exchange.outer_momentum", "", "", e.outer_momentum, 0, 0.9,
               "momentum of what the models have in common, from exchange to exchange");
  table.boolean("exchange.outer_momentum_by_delay", "", e.outer_momentum_by_delay,
                "more of it where the line's round trip takes longer than period_steps");
  table.number("exchange.mixing", "", "", e.mixing, 0, 4, "strength of mixing with neighbours");
  table.number("exchange.age_decay", "", "", e.age_decay, 0, 1000,
               "how fast an ageing replica loses weight");
  table.number("exchange.future_position", "", "", e.future_position, 0, 4,
               "strength of the future-position correction; 0: none");
  table.number("exchange.drift_window_steps", "", "steps", e.drift_window_steps, 1, 1e6,
               "moving average behind the drift");
  table.number("exchange.curvature", "", "", e.curvature, 0, 1e6,
               "damping of the future position by curvature (DC-ASGD); 0: none");
  table.one_of("exchange.curvature_mode", "", e.curvature_mode, {"constant", "adaptive"},
               "its scale: size of the block, or of the drift");
  table.one_of("exchange.loss_trust", "", e.loss_trust, {"off", "holt", "lstm"},
               "who forecasts a neighbour's loss, which then weighs its model");
  table.number("exchange.loss_trust_max", "", "", e.loss_trust_max, 1, 1000,
               "largest factor on a neighbour's weight, and 1 / the least");
  table.number("exchange.joiner_weight", "", "", e.joiner_weight, 0, 1,
               "weight of a node that just came");
  table.integer("exchange.joiner_steps", "", "steps", e.joiner_steps, 0, 1'000'000'000,
                "until a joiner has full weight");
  table.number("exchange.magnitude_max", "", "", e.magnitude_max, 1e-6, 1e30,
               "largest single difference that is believed");
  table.number("exchange.transfer_reach", "", "", e.transfer_reach, 0, 1e6,
               "a neighbour's pull is cut to so many times what is usual; 0: never");
  table.number("exchange.loss_ratio_max", "", "", e.loss_ratio_max, 0, 1e6,
               "nothing is taken of a neighbour whose loss is so many times the median; 0: of all");
  table.number("exchange.step_jump", "", "", e.step_jump, 0, 1e6,
               "own steps that go so many times as far as usual are taken back; 0: never");
  table.integer("exchange.bulk_window_bytes", "", "bytes", e.bulk_window_bytes, 64 * 1024,
                std::uint64_t{1} << 32, "on one link's way to the socket");
  table.number("exchange.consensus_bound", "", "", e.consensus_bound, 1e-9, 1,
               "the final exchange ends below it");
  table.integer("exchange.refusals_until_quarantine", "", "", e.refusals_until_quarantine, 1,
                1'000'000, "refused messages until a link is closed for a while");
  return settings;
}

std::optional<std::string> exchange_mistake(const ExchangePolicy& e) {
  if (e.trigger == TriggerRule::budget && e.budget_bytes_per_s <= 0)
    return "exchange.trigger is budget, but exchange.budget_bytes_per_s is 0; set it, or choose "
           "another policy";
  const CodecId whole = e.keyframe_codec.id;
  if (whole != CodecId::fp32 && whole != CodecId::bf16 && whole != CodecId::int8)
    return "exchange.keyframe_codec is " + std::string(to_string(whole)) +
           ", which is for differences; use fp32, bf16 or int8";
  return std::nullopt;
}

}  // namespace gossipd
