// tests/fuzz/attach_seeds.h - the first inputs of fuzz_attach: one packet of each type.
#pragma once

#include <functional>
#include <string>

#include "models/external/packets.h"
#include "models/external/segment_list.h"

namespace gossipd {

inline void attach_seeds(
    const std::function<void(const std::string&, std::span<const std::byte>)>& write) {
  const attach::Counters counters{.steps = 10, .samples = 640};
  const std::vector<Segment> segments = {
      {.name = "fc.weight", .shape = {10, 4}, .kind = SegmentKind::parameter},
      {.name = "bn.running_mean", .shape = {4}, .kind = SegmentKind::statistic},
      {.name = "steps", .shape = {}, .kind = SegmentKind::local}};
  const attach::FromTrainer said[] = {
      attach::Attach{.run = {1, 2}, .floats = 45, .segments = 3, .step_samples = 64},
      attach::Segments{.first = 0, .segments = segments},
      attach::StepDone{.sequence = 1, .counters = counters, .loss = 0.5, .learning_rate = 0.1},
      attach::Done{.sequence = 1, .counters = counters},
      attach::Report{.accuracy = 0.9, .loss = 0.3, .samples = 1000, .step = 10},
      attach::Detach{}};
  for (std::size_t i = 0; i < std::size(said); ++i)
    write("trainer" + std::to_string(i), attach::encode(said[i]));
  const attach::FromDaemon answered[] = {
      attach::Attached{.memory_bytes = 4096, .node_samples = 5, .budget = 100, .node = NodeId{7}},
      attach::Notice{.refused = true, .code = "occupied", .text = "process 7 trains already"},
      attach::Go{.sequence = 1,
                 .answers = 1,
                 .flags = attach::Go::add | attach::Go::copy,
                 .ranges = {{.first = 0, .floats = 10}, {.first = 20, .floats = 5}}}};
  for (std::size_t i = 0; i < std::size(answered); ++i)
    write("daemon" + std::to_string(i), attach::encode(answered[i]));
  const std::string list = format_segment_list(segments);
  write("list", std::as_bytes(std::span(list)));
}

}  // namespace gossipd
