#include "daemon/init/init.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/base/printable.h"
#include "daemon/config/config.h"
#include "daemon/init/job_draft.h"
#include "daemon/init/shell_word.h"

namespace gossipd {

namespace {

struct InitOptions {
  std::string data;
  std::string model;
  std::string out = "job.toml";
  bool force = false;
};

int fail(const std::string& text, int code) {
  std::fprintf(stderr, "gossipd init: %s\n", printable(text, Lines::many).c_str());
  return code;
}

std::string whole_path(const std::string& path) {
  std::error_code unknown;  // then it stays as it is
  const auto whole = std::filesystem::absolute(path, unknown).lexically_normal();
  return unknown ? path : whole.string();
}

// TorchScript is a ZIP archive; what is in it the first step finds out.
bool is_archive(const std::string& path) {
  char begin[4] = {};
  std::ifstream(path, std::ios::binary).read(begin, sizeof begin);
  return std::memcmp(begin, "PK\3\4", sizeof begin) == 0;
}

std::string last_part(const std::string& directory) {
  const std::filesystem::path path(whole_path(directory));
  return path.filename().empty() ? path.parent_path().filename().string()
                                 : path.filename().string();
}

// An error's words; empty: it is written. What a file held before is lost only once the new content
// is there.
std::string write(const InitOptions& options, const std::string& text) {
  std::error_code unknown;
  const bool replaces = options.force && std::filesystem::is_regular_file(options.out, unknown);
  const std::filesystem::path whole = replaces ? std::filesystem::canonical(options.out, unknown)
                                               : std::filesystem::path(options.out);
  const std::string path = whole.string() + (replaces ? ".new" : "");
  const int create = options.force ? O_TRUNC : O_EXCL;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | create, 0644);
  if (file < 0 && errno == EEXIST)
    return options.out + ": exists; give --force to write over it, or -o FILE for another";
  if (file < 0) return options.out + ": cannot write it: " + std::strerror(errno);
  std::string_view rest = text;
  std::string error;
  while (!rest.empty() && error.empty()) {
    const ssize_t wrote = ::write(file, rest.data(), rest.size());
    if (wrote < 0 && errno != EINTR)
      error = options.out + ": cannot write it: " + std::strerror(errno);
    if (wrote > 0) rest.remove_prefix(static_cast<std::size_t>(wrote));
  }
  if (::close(file) != 0 && error.empty())
    error = options.out + ": cannot write it: " + std::strerror(errno);
  if (replaces && error.empty() && ::rename(path.c_str(), whole.c_str()) != 0)
    error = options.out + ": cannot write it: " + std::strerror(errno);
  // What is left is no job, and would have to be written over by force.
  if (!error.empty() && (replaces || !options.force)) ::unlink(path.c_str());
  return error;
}

void print_next(const InitOptions& options, const DataLook& look) {
  std::printf("%s: %s, %zu samples to train on, %zu held out%s\n\n", printable(options.out).c_str(),
              printable(look.words).c_str(), look.train_samples, look.held_out_samples,
              look.left_out.empty() ? "" : printable("; left out: " + look.left_out).c_str());
  const std::string with =
      "--job " + shell_word(options.out) + " --data " + shell_word(options.data);
  std::printf("    gossipd %s --check-config   # reads the data and makes two steps\n",
              printable(with).c_str());
  std::printf("    gossipd %s                  # founds a cluster\n", printable(with).c_str());
}

int init(const InitOptions& options) {
  std::error_code ignored;
  if (options.out != "-" && !options.force && std::filesystem::exists(options.out, ignored))
    return fail(options.out + ": exists; give --force to write over it, or -o FILE for another",
                exit_bad_config);
  if (!options.model.empty() && !std::filesystem::is_regular_file(options.model, ignored))
    return fail(options.model + ": is no file; --model names a TorchScript model", exit_bad_config);
  if (!options.model.empty() && !is_archive(options.model))
    return fail(options.model +
                    ": is no TorchScript model, which is an archive that "
                    "torch.jit.save() writes (models/MODELS.md)",
                exit_bad_config);
  const std::string model = options.model.empty() ? std::string() : whole_path(options.model);
  if (printable(model) != model)
    return fail(options.model +
                    ": its path cannot stand in a job, which takes UTF-8 without control "
                    "characters; rename it",
                exit_bad_config);
  const Result<DataLook> look = look_at_data(options.data);
  if (!look) return fail(look.error().text, exit_bad_config);
  const DraftOptions draft{.name = last_part(options.data), .model_file = model};
  const Result<std::string> text = draft_job(*look, draft);
  if (!text) return fail(options.data + ": " + text.error().text, exit_bad_config);
  for (const std::string& note : look->notes)
    std::fprintf(stderr, "warning: %s\n", printable(options.data + ": " + note).c_str());
  if (options.out == "-") {
    std::fputs(text->c_str(), stdout);
    return 0;  // main() looks whether it was written
  }
  if (const std::string error = write(options, *text); !error.empty()) return fail(error, 1);
  print_next(options, *look);
  return 0;
}

}  // namespace

int run_init(const std::vector<std::string>& arguments) {
  InitOptions options;
  CLI::App app{"gossipd init - writes a job file for the data that a directory holds",
               "gossipd init"};
  app.add_option("--data", options.data, "directory of the data files")
      ->type_name("DIR")
      ->required();
  app.add_option("--model", options.model, "TorchScript model (default: a built-in one that fits)")
      ->type_name("FILE");
  app.add_option("-o,--output", options.out, "job file to write (default job.toml); - prints it")
      ->type_name("FILE");
  app.add_flag("--force", options.force, "write over a file that exists");
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    return fail(std::string(error.what()) + "; gossipd init --help lists the flags",
                exit_bad_config);
  }
  return init(options);
}

}  // namespace gossipd
