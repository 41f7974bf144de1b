#include "core/exchange/policy.h"

#include <algorithm>
#include <cmath>

namespace gossipd {

double outer_momentum_for(const ExchangePolicy& policy, double periods) {
  const double momentum = policy.outer_momentum;
  if (!policy.outer_momentum_by_delay || periods <= 1) return momentum;
  const double steps_behind = momentum / (1 - momentum) / std::sqrt(periods);
  return steps_behind / (1 + steps_behind);
}

}  // namespace gossipd
