#include <cstdio>

#include "models/devices/blas.h"
#include "tools/bench/commands.h"
#include "tools/unknown_words.h"
#include "tools/written_output.h"

int main(int argc, char** argv) {
  gossipd::use_best_blas(argv[0], {argv + 1, argv + argc});
  CLI::App app{"gossip-bench: what gossipd costs, as ratios measured in one run", "gossip-bench"};
  app.set_version_flag("--version", GOSSIPD_VERSION);
  app.require_subcommand(1);
  gossipd::bench::add_codec_command(app);
  gossipd::bench::add_exchange_command(app);
  gossipd::bench::add_loader_command(app);
  gossipd::bench::add_overhead_command(app);
#ifdef GOSSIPD_WITH_TORCH
  gossipd::bench::add_training_command(app);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // help or version
    return gossipd::exit_code_once_written("gossip-bench", app.exit(asked));
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "gossip-bench: %s; gossip-bench --help tells more\n",
                 gossipd::refused_words(app, error).c_str());
    return 2;
  }
  return gossipd::exit_code_once_written("gossip-bench", 0);
}
