# Writes the C++ source that holds the dashboard's files: cmake -D OUT=FILE -D FILES="a;b" -P this
set(types "html=text/html" "css=text/css" "js=text/javascript" "svg=image/svg+xml")
set(arrays "")
set(entries "")
set(number 0)
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  get_filename_component(suffix ${file} LAST_EXT)
  string(SUBSTRING ${suffix} 1 -1 suffix)
  set(type "")
  foreach(known IN LISTS types)
    if(known MATCHES "^${suffix}=(.*)$")
      set(type "${CMAKE_MATCH_1}")
    endif()
  endforeach()
  if(NOT type)
    message(FATAL_ERROR "embed.cmake: ${file}: what type is a .${suffix} file?")
  endif()
  if(type MATCHES "^text/")
    string(APPEND type "; charset=utf-8")
  endif()
  set(path "/dashboard/${name}")
  if(name STREQUAL "index.html")
    set(path "/")
  endif()
  file(READ ${file} bytes HEX)
  string(LENGTH "${bytes}" digits)
  math(EXPR length "${digits} / 2")
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
  string(APPEND arrays "const char file_${number}[] = {${bytes}'\\0'};\n")
  string(APPEND entries "    {\"${path}\", \"${type}\", {file_${number}, ${length}}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT} "#include \"daemon/rest/dashboard/files.h\"

namespace gossipd {
namespace {
${arrays}
const DashboardFile files[] = {
${entries}};
}  // namespace

std::span<const DashboardFile> dashboard_files() { return files; }

}  // namespace gossipd
")
