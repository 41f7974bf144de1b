// daemon/rest/dashboard/files.h - the dashboard's files, as they were built into the program.
//
// embed.cmake makes the definition from the files beside this one.
#pragma once

#include <span>
#include <string_view>

namespace gossipd {

struct DashboardFile {
  std::string_view path;  // where REST serves it
  std::string_view content_type;
  std::string_view content;
};

// Static: the references stay valid.
[[nodiscard]] std::span<const DashboardFile> dashboard_files();

}  // namespace gossipd
