#include <csignal>
#include <thread>

#include "net_test_support.h"

using namespace gossipd;
using namespace gossipd::test;
using namespace std::chrono_literals;

TEST_CASE("timers fire in the order of their due times, each once") {
  EventLoop loop;
  std::vector<int> fired;
  Timer second(loop, [&] { fired.push_back(2); });
  Timer first(loop, [&] { fired.push_back(1); });
  second.arm_after(20ms);
  first.arm_after(1ms);
  REQUIRE(loop.run_until([&] { return fired.size() == 2; }, patience));
  CHECK(fired == std::vector{1, 2});
  CHECK(!first.armed());
}

TEST_CASE(
    "a timer moved later fires at the later time and a timer moved earlier at the earlier one") {
  EventLoop loop;
  std::vector<char> fired;
  Timer later(loop, [&] { fired.push_back('l'); });
  Timer reference(loop, [&] { fired.push_back('r'); });
  Timer earlier(loop, [&] { fired.push_back('e'); });
  const Instant now = EventLoop::now();
  later.arm_at(now + 1ms);
  later.arm_at(now + 40ms);
  reference.arm_at(now + 20ms);
  earlier.arm_at(now + 1h);
  earlier.arm_at(now + 2ms);
  REQUIRE(loop.run_until([&] { return fired.size() == 3; }, patience));
  CHECK(fired == std::vector{'e', 'r', 'l'});
}

TEST_CASE("a cancelled or destroyed timer never fires") {
  EventLoop loop;
  bool wrong = false, done = false;
  Timer cancelled(loop, [&] { wrong = true; });
  auto destroyed = std::make_unique<Timer>(loop, [&] { wrong = true; });
  Timer last(loop, [&] { done = true; });
  cancelled.arm_after(1ms);
  destroyed->arm_after(1ms);
  last.arm_after(10ms);
  cancelled.cancel();
  destroyed.reset();
  REQUIRE(loop.run_until([&] { return done; }, patience));
  CHECK(!wrong);
}

TEST_CASE("a timer may be destroyed or armed again by its own callback") {
  EventLoop loop;
  int fired = 0;
  auto timer = std::make_unique<Timer>(loop, [] {});
  timer = std::make_unique<Timer>(loop, [&] {
    if (++fired < 3) return timer->arm_after(1ms);
    timer.reset();
    ++fired;
  });
  timer->arm_after(0ms);
  REQUIRE(loop.run_until([&] { return fired == 4; }, patience));
}

TEST_CASE("tasks posted by another thread run on the loop's thread in order") {
  EventLoop loop;
  std::vector<int> ran;
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) loop.post([&ran, i] { ran.push_back(i); });
    loop.post([&loop] { loop.stop(); });
  });
  loop.run();
  other.join();
  REQUIRE(ran.size() == 100);
  CHECK(std::is_sorted(ran.begin(), ran.end()));
}

TEST_CASE("a signal that comes while the loop stops is not lost") {
  EventLoop loop;
  int signals = 0;
  loop.on_signals({SIGUSR1}, [&](int) { ++signals; });
  loop.post([&] {
    REQUIRE(std::raise(SIGUSR1) == 0);
    loop.stop();
  });
  loop.run();
  CHECK(signals == 0);
  loop.run_ready();
  CHECK(signals == 1);
}

TEST_CASE("a signal becomes a call on the loop") {
  EventLoop loop;
  std::vector<int> signals;
  loop.on_signals({SIGUSR1}, [&](int number) { signals.push_back(number); });
  std::raise(SIGUSR1);
  REQUIRE(loop.run_until([&] { return signals.size() == 1; }, patience));
  std::raise(SIGUSR1);
  REQUIRE(loop.run_until([&] { return signals.size() == 2; }, patience));
  CHECK(signals == std::vector{SIGUSR1, SIGUSR1});
}
