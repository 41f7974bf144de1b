// tests/e2e/slow_disk_preload.cpp - a slow disk for one process, by LD_PRELOAD.
//
// Every fsync() and fdatasync() first waits as long as the file named by SLOW_DISK_CONTROL says: a
// number of seconds, or `stuck` for as long as it says so. The file is reread continually, so a
// test can slow down and free the disk of a running process. A call by the process's first thread,
// gossipd's protocol thread, leaves a byte in the file NAME.first-thread.
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include <sys/syscall.h>

namespace {

constexpr long look_again_ns = 20'000'000;

double now_s() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

bool still_waits(const char* control, double began_s) {
  const int file = ::open(control, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char text[32] = {};
  const ssize_t length = ::read(file, text, sizeof text - 1);
  ::close(file);
  if (length <= 0) return false;
  return std::strncmp(text, "stuck", 5) == 0 || now_s() - began_s < std::atof(text);
}

void wait_for_the_disk() {
  const char* control = std::getenv("SLOW_DISK_CONTROL");
  if (control == nullptr) return;
  if (::syscall(SYS_gettid) == ::getpid()) {
    const int witness = ::open((std::string(control) + ".first-thread").c_str(),
                               O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (witness >= 0 && ::write(witness, "!", 1) == 1) ::close(witness);
  }
  const timespec pause{0, look_again_ns};
  for (const double began_s = now_s(); still_waits(control, began_s);) ::nanosleep(&pause, nullptr);
}

}  // namespace

extern "C" int fsync(int file) {
  wait_for_the_disk();
  return static_cast<int>(::syscall(SYS_fsync, file));
}

extern "C" int fdatasync(int file) {
  wait_for_the_disk();
  return static_cast<int>(::syscall(SYS_fdatasync, file));
}
