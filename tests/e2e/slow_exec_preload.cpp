// tests/e2e/slow_exec_preload.cpp - a process that takes its time to become another, by LD_PRELOAD.
//
// Where the file named by SLOW_EXEC_CONTROL is there, execv() removes it and then waits for a
// second: a test that sees it go has so long to do something to the process.
#include <time.h>
#include <unistd.h>

#include <cstdlib>

extern "C" int execv(const char* program, char* const arguments[]) {
  const char* const control = std::getenv("SLOW_EXEC_CONTROL");
  const timespec pause{1, 0};
  if (control != nullptr && ::unlink(control) == 0) ::nanosleep(&pause, nullptr);
  return ::execve(program, arguments, environ);
}
