#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "tools/gossipctl/gossipctl.h"
#include "tools/written_output.h"

int main(int argc, char** argv) {
  std::map<std::string, std::string> environment;
  for (const char* name : {"GOSSIPCTL_REST", "GOSSIPCTL_TOKEN_FILE", "GOSSIPCTL_CA_FILE"})
    if (const char* value = std::getenv(name)) environment[name] = value;
  winsize size{};
  if (::isatty(STDOUT_FILENO) == 1 && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0)
    environment["COLUMNS"] = std::to_string(size.ws_col);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const gossipd::ExitCode code =
      gossipd::run_gossipctl(arguments, environment, std::cout, std::cerr);
  return gossipd::exit_code_once_written("gossipctl", static_cast<int>(code));
}
