// daemon/config/bootstrap.h - which of a fixed set of nodes this one is, as `bootstrap` says or the
// scheduler tells.
//
// Of nodes that start with one command line, number 0 founds the cluster and all others join it
// (core/node/founding.h has the rule). `auto` looks at, in this order, the index of a Kubernetes
// Job, the task of a Slurm array, the process of a Slurm step, and the number at the end of the
// host's name, as a StatefulSet gives it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/base/result.h"

namespace gossipd {

// The variables that `auto` reads.
[[nodiscard]] bool tells_ordinal(const std::string& variable);

// None: `bootstrap` is empty. Code "bad-config": nothing tells a number, or two say different
// things.
[[nodiscard]] Result<std::optional<std::uint32_t>> read_ordinal(
    const std::string& bootstrap, const std::map<std::string, std::string>& environment,
    const std::string& host);

}  // namespace gossipd
