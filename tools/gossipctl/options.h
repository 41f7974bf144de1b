// tools/gossipctl/options.h - what a command line says, and the definition of all commands.
//
// declare() is the only place that names commands and options: parsing, help and completion follow
// from it.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/gossipctl/checkpoint_file.h"
#include "tools/gossipctl/doctor.h"
#include "tools/gossipctl/invite.h"

namespace gossipd {

struct Options {
  std::string subcommand;  // such as list, of key list
  std::string rest = "127.0.0.1:7611";
  std::string token_file;
  std::string ca_file;
  std::string output = "table";
  bool no_headers = false;
  double timeout_s = 0;  // 0: the command's own
  std::vector<std::string> seeds;
  std::string condition = "ready";
  std::uint64_t more_samples = 0;  // of job extend
  std::string next_job;            // file of job start; empty: another command
  std::string key_file = "cluster.key";
  std::string key;     // an id or the beginning of one
  std::string member;  // of forget: an id, a name or the beginning of one
  std::string until;   // of top: a phase
  std::string shell = "bash";
  std::vector<std::string> help_about;
  CheckpointExport exported;
  InviteRequest invite;
  DoctorRequest doctor;
};

// `options` must outlive the app, which fills it.
void declare(CLI::App& app, Options& options);

}  // namespace gossipd
