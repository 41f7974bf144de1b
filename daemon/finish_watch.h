// daemon/finish_watch.h - when a node that runs `--until finished` has nothing left to do.
//
// The problem: a scheduler wants the process to end with its job. But a node that ends at once
// takes the model with it from neighbours that still need it, and one that waits for everybody
// waits for ever for a member without data.
//
// The answer: the node has finished when its final model is on disk and evaluated, and every living
// member has finished as well; or after `patience`, when it names those that have not (and where
// nothing is held out, so that no evaluation comes). A model that an attached process trains counts
// as evaluated once that process has gone. The node has failed when its model is broken and nobody
// living has another one: for `patience`, or `breaks_max` times in a row (a checkpoint that is
// restored and breaks again). Pure; loop thread only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/node.h"

namespace gossipd {

class FinishWatch {
 public:
  static constexpr int breaks_max = 3;
  // Own steps after which a model that was restored counts as sound.
  static constexpr Step sound_after_steps = 1000;

  struct End {
    bool failed = false;
    std::string why;  // words
  };

  // Of the job's last model.
  struct Final {
    bool on_disk = false;
    bool evaluated = false;  // or cannot be
    bool operator==(const Final&) const = default;
  };

  explicit FinishWatch(Duration patience) : patience_(patience) {}

  // Once a second. Nothing: go on.
  [[nodiscard]] std::optional<End> look(Phase phase, Step step, const Final& final_model,
                                        const std::vector<MemberView>& members, Instant now);

 private:
  [[nodiscard]] std::optional<End> look_finished(const std::vector<MemberView>& members,
                                                 Instant now) const;
  [[nodiscard]] std::optional<End> look_broken(const std::vector<MemberView>& members, Step step,
                                               Instant now);

  const Duration patience_;
  Phase phase_ = Phase::joining;  // at the last look
  Final final_;                   // likewise
  Instant since_{};               // the phase and the final model are as they are
  int breaks_ = 0;                // in a row, with at most `sound_after_steps` between two
  Step broke_at_ = 0;
};

}  // namespace gossipd
