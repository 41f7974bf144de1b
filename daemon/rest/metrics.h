// daemon/rest/metrics.h - status and links as Prometheus text: base units, prefix `gossipd_`.
#pragma once

#include <string>

#include "daemon/rest/view.h"

namespace gossipd {

inline constexpr const char* metrics_content_type = "text/plain; version=0.0.4; charset=utf-8";
[[nodiscard]] std::string metrics_text(const StatusView&, const std::vector<LinkView>&);

}  // namespace gossipd
