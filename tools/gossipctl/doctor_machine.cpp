// What of this machine matters to a gossipd: key, disk, clock, descriptors, data, GPU, port.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/base/types.h"
#include "net/peer/keyring.h"
#include "tools/gossipctl/doctor.h"
#include "tools/gossipctl/table.h"

namespace gossipd {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int disk_writes = 20;
constexpr double disk_limit_s = 3;  // then no further write begins
constexpr double fsync_slow_s = 0.1, fsync_stuck_s = 1;
constexpr std::uint64_t free_bytes_low = 1'000'000'000, free_bytes_out = 100'000'000;
constexpr rlim_t descriptors_low = 1024;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Check check_port(bool daemon_answers) {
  const std::string port = std::to_string(peer_port_default);
  if (daemon_answers) return {"port", Verdict::ok, "a daemon runs here", ""};
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(peer_port_default);
  const bool free = fd >= 0 && ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                    ::bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0;
  const std::string why = std::strerror(errno);
  if (fd >= 0) ::close(fd);
  if (free) return {"port", Verdict::ok, "TCP port " + port + " is free", ""};
  return {"port", Verdict::warn, "TCP port " + port + " cannot be taken (" + why + ")",
          "ss -ltnp shows who has it; start gossipd with --listen HOST:PORT for another one"};
}

Check check_key(const fs::path& state_dir, const std::string& proof) {
  const std::string path = (state_dir / "cluster.key").string();
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno == EACCES)
      return {"key", Verdict::warn, path + " cannot be seen by this user",
              "run this as the user of gossipd, or with sudo"};
    if (!proof.empty()) return {"key", Verdict::ok, proof, ""};
    return {"key", Verdict::warn, "there is no " + path,
            "a founder writes it, a joiner gets it with its invite; none is needed with "
            "certificates or key_file"};
  }
  const Result<Keyring> keys = read_keyring(path);
  if (keys) return {"key", Verdict::ok, path + " is whole, and its owner's alone", ""};
  const bool other_user = keys.error().code == "io-error" || ::access(path.c_str(), R_OK) != 0;
  return {"key", other_user ? Verdict::warn : Verdict::fail, keys.error().text,
          other_user ? "run this as the user of gossipd, or with sudo"
                     : "take the key file of another member, or mend its mode: chmod 600 " + path};
}

Check check_clock() {
  timex state{};
  const int synchronised = ::ntp_adjtime(&state);
  if (synchronised >= 0 && synchronised != TIME_ERROR)
    return {"clock", Verdict::ok, "the system's clock is synchronised", ""};
  return {"clock", Verdict::warn, "the system's clock is synchronised by nobody",
          "run an NTP client (apt-get install systemd-timesyncd): training does not depend on it, "
          "but logs of several boxes and the validity of certificates do"};
}

Check check_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return {"descriptors", Verdict::warn, "the limit of open files cannot be read",
            "ulimit -n shows it"};
  const std::string words = limit.rlim_cur == RLIM_INFINITY ? "unlimited" : grouped(limit.rlim_cur);
  if (limit.rlim_cur >= descriptors_low)
    return {"descriptors", Verdict::ok, words + " open files are allowed in this shell", ""};
  return {"descriptors", Verdict::warn, "only " + words + " open files are allowed in this shell",
          "ulimit -n 4096, or LimitNOFILE=4096 in the systemd unit"};
}

Check check_data(const fs::path& data_dir) {
  std::error_code error;
  if (!fs::is_directory(data_dir, error))
    return {"data", Verdict::fail,
            data_dir.string() + " is no directory" + (error ? " (" + error.message() + ")" : ""),
            "name the directory of the data files with --data DIR"};
  const fs::directory_iterator begin(data_dir, error);
  if (error || begin == fs::directory_iterator())
    return {"data", Verdict::fail,
            data_dir.string() + (error ? " cannot be read (" + error.message() + ")" : " is empty"),
            "copy the job's data files there, readable by the user of gossipd"};
  return {"data", Verdict::ok, data_dir.string() + " has files; the daemon looks into them", ""};
}

Check check_gpu() {
  std::error_code error;
  std::ifstream file("/proc/driver/nvidia/version");
  std::string version;
  if (!std::getline(file, version)) {
    const bool card = fs::exists("/dev/nvidia0", error);
    return {"gpu", card ? Verdict::warn : Verdict::ok,
            card ? "a device node of an NVIDIA GPU, but no driver" : "no NVIDIA driver: CPU only",
            card ? "install or load the driver (modprobe nvidia), or train with --device cpu" : ""};
  }
  if (::access("/dev/nvidiactl", R_OK | W_OK) != 0)
    return {"gpu", Verdict::warn, "the NVIDIA driver is loaded, /dev/nvidiactl is not accessible",
            "add the user to the group of /dev/nvidia*, or pass the devices to the container"};
  return {"gpu", Verdict::ok, version, ""};
}

// Whether the daemon beside this program starts at all: its libraries, of gossipd LibTorch above
// all, are found then.
Check check_program() {
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  fs::path program = folder / "gossipd";
  std::string name = "libtorch";
  if (::access(program.c_str(), X_OK) != 0) program = folder / "gossipd-core", name = "program";
  if (error || ::access(program.c_str(), X_OK) != 0)
    return {"program", Verdict::warn, "there is no gossipd or gossipd-core beside gossipctl",
            "install one of them, or run this on a machine that has it"};
  const pid_t child = ::fork();
  if (child == 0) {
    const int nowhere = ::open("/dev/null", O_RDWR);
    ::dup2(nowhere, STDOUT_FILENO);
    ::dup2(nowhere, STDERR_FILENO);
    ::alarm(30);
    ::execl(program.c_str(), program.c_str(), "--version", nullptr);
    ::_exit(127);
  }
  int status = 0;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0)
    return {name, Verdict::ok, program.string() + " starts, so its libraries are there", ""};
  return {name, Verdict::fail, program.string() + " does not start",
          "ldd " + program.string() + " names the library that is missing"};
}

// The median time of a small durable write, which is what the protocol waits for; or why it failed.
Result<double> fsync_seconds(const fs::path& directory) {
  const std::string path = (directory / (".doctor." + std::to_string(::getpid()))).string();
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0)
    return Error{errno == EACCES ? "no-access" : "io-error", path + ": " + std::strerror(errno)};
  const std::string page(4096, 'd');
  std::vector<double> times;
  std::string failure;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < disk_writes && (times.empty() || since(begin) < disk_limit_s); ++i) {
    const Clock::time_point start = Clock::now();
    if (::pwrite(fd, page.data(), page.size(), 0) != static_cast<ssize_t>(page.size()) ||
        ::fsync(fd) != 0) {
      failure = std::strerror(errno);
      break;
    }
    times.push_back(since(start));
  }
  ::close(fd);
  ::unlink(path.c_str());
  if (!failure.empty()) return Error{"io-error", path + ": " + failure};
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

Check check_speed(const fs::path& directory) {
  const Result<double> took = fsync_seconds(directory);
  if (!took)
    return {"disk", took.error().code == "no-access" ? Verdict::warn : Verdict::fail,
            took.error().text,
            "run this as the user of gossipd; make room, or name another --state-dir"};
  const std::string words = "a durable write takes " + human_milliseconds(*took * 1e3);
  if (*took < fsync_slow_s) return {"disk", Verdict::ok, words, ""};
  return {"disk", *took < fsync_stuck_s ? Verdict::warn : Verdict::fail, words,
          "look for errors in dmesg; put the state directory on a local disk"};
}

Check check_room(const fs::path& directory) {
  struct statvfs info {};
  if (::statvfs(directory.c_str(), &info) != 0)
    return {"room", Verdict::warn, directory.string() + ": " + std::strerror(errno),
            "name an absolute --state-dir"};
  const std::uint64_t free = std::uint64_t{info.f_bavail} * info.f_frsize;
  const std::string words =
      human_bytes(static_cast<double>(free)) + " are free in " + directory.string();
  if (free >= free_bytes_low) return {"room", Verdict::ok, words, ""};
  return {"room", free < free_bytes_out ? Verdict::fail : Verdict::warn, words,
          "a checkpoint is written beside the one before: make room for six models"};
}

// The directory, or the nearest one above it that exists.
fs::path existing(fs::path directory) {
  std::error_code error;
  while (!fs::is_directory(directory, error) && directory.has_parent_path() &&
         directory != directory.parent_path())
    directory = directory.parent_path();
  return directory;
}

}  // namespace

std::vector<Check> check_machine(const std::string& state_dir, const std::string& data_dir,
                                 bool daemon_answers, const std::string& proof) {
  std::vector<Check> checks = {check_port(daemon_answers), check_program(), check_gpu(),
                               check_clock(), check_descriptors()};
  std::error_code error;
  const fs::file_status there = fs::status(state_dir, error);
  if (fs::is_directory(there)) {
    checks.push_back(check_key(state_dir, proof));
    checks.push_back(check_speed(state_dir));
    checks.push_back(check_room(state_dir));
  } else if (there.type() == fs::file_type::not_found) {
    checks.push_back({"state", Verdict::ok, state_dir + " does not exist yet", ""});
    checks.push_back(check_room(existing(state_dir)));
  } else {
    checks.push_back(error ? Check{"state", Verdict::warn,
                                   state_dir + " cannot be looked into: " + error.message(),
                                   "run this as the user of gossipd, or with sudo"}
                           : Check{"state", Verdict::warn, state_dir + " is no directory",
                                   "name the directory with --state-dir"});
  }
  if (!data_dir.empty()) checks.push_back(check_data(data_dir));
  return checks;
}

}  // namespace gossipd
