// gossip-lab - how would this job train on those machines? In virtual time, with real gradients.
#include <algorithm>
#include <cstdio>
#include <string_view>

#include "models/devices/blas.h"
#include "models/devices/runtime.h"
#include "tools/lab/commands.h"
#include "tools/unknown_words.h"
#include "tools/written_output.h"

int main(int argc, char** argv) {
  // It starts the program again, half a second that is wasted where nothing is trained.
  const auto is_given = [&](std::string_view word) {
    return std::find(argv + 1, argv + argc, word) != argv + argc;
  };
  if (is_given("run") && !is_given("--check"))
    gossipd::use_best_blas(argv[0], {argv + 1, argv + argc});
  gossipd::prepare_training_process(1);
  CLI::App app{
      "gossip-lab - a cluster in virtual time: gossipd's own core and real gradients, without the "
      "machines",
      "gossip-lab"};
  app.footer(
      "Exit codes: 0 ok, 1 failed, 2 usage. tools/lab/README.md is the reference of scenario "
      "files.");
  app.require_subcommand(1);
  int exit_code = 0;
  gossipd::lab::add_run(app, exit_code);
  gossipd::lab::add_check(app, exit_code);
  gossipd::lab::add_strategies(app, exit_code);
  gossipd::lab::add_compare(app, exit_code);
  gossipd::lab::add_plot(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    exit_code = app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "gossip-lab: %s; gossip-lab --help tells more\n",
                 gossipd::refused_words(app, error).c_str());
    return 2;
  }
  return gossipd::exit_code_once_written("gossip-lab", exit_code);
}
