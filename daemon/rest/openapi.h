// daemon/rest/openapi.h - the description of all routes for programs: openapi.json, in the program.
//
// A test fails if a route is missing there or an answer has another shape.
#pragma once

#include <string_view>

namespace gossipd {

[[nodiscard]] std::string_view openapi_json();

}  // namespace gossipd
