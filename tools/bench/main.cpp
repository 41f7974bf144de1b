#include "tools/bench/commands.h"

int main(int argc, char** argv) {
  CLI::App app{"gossip-bench: what gossipd costs, as ratios measured in one run", "gossip-bench"};
  app.set_version_flag("--version", GOSSIPD_VERSION);
  app.require_subcommand(1);
  gossipd::bench::add_codec_command(app);
  gossipd::bench::add_loader_command(app);
  gossipd::bench::add_overhead_command(app);
#ifdef GOSSIPD_WITH_TORCH
  gossipd::bench::add_training_command(app);
#endif
  CLI11_PARSE(app, argc, argv);
  return 0;
}
