#include "tools/gossipctl/top.h"

#define NCURSES_WIDECHAR 1
#define NCURSES_NOMACROS 1  // timeout, move and clear are names of others
#include <curses.h>
#include <langinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <clocale>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>

#include "core/base/printable.h"
#include "tools/gossipctl/progress.h"
#include "tools/gossipctl/top_view.h"

namespace gossipd {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds period{1};
constexpr std::chrono::seconds request_timeout{2};  // so that q never waits for longer
constexpr int key_wait_ms = 100;

volatile std::sig_atomic_t signal_caught = 0;

// Signals that would end the process end the screen first.
class CaughtSignals {
 public:
  CaughtSignals() {
    signal_caught = 0;
    struct sigaction action {};
    action.sa_handler = [](int number) { signal_caught = number; };
    for (std::size_t n = 0; n < numbers.size(); ++n) ::sigaction(numbers[n], &action, &before_[n]);
  }
  ~CaughtSignals() {
    for (std::size_t n = 0; n < numbers.size(); ++n) ::sigaction(numbers[n], &before_[n], nullptr);
    if (signal_caught != 0) ::raise(signal_caught);
  }
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;

 private:
  static constexpr std::array numbers = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  std::array<struct sigaction, numbers.size()> before_{};
};

// Asks the daemon once a second on a thread of its own, so that keys never wait for a frozen one.
class Feed {
 public:
  Feed(const DaemonClient& client, std::string after)
      : client_(client.with_timeout(
            std::min<std::chrono::milliseconds>(request_timeout, client.timeout()))),
        after_(std::move(after)),
        thread_([this] { run(); }) {}
  ~Feed() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  // Takes what came since the last call into `state`; false: nothing did.
  bool read_into(TopState& state) {
    std::unique_lock lock(mutex_);
    if (!fresh_) return false;
    fresh_ = false;
    const DaemonClient::Answer answer = std::move(answer_);
    lock.unlock();
    state.connection = answer.ok ? std::string() : "no answer";
    if (answer.ok) state.take(answer.body);
    lock.lock();
    after_ = state.last_id;
    return true;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!stopped_) {
      // One answer is taken before the next is asked for, so that no event comes twice.
      if (!fresh_) {
        const std::string target = "/v1/events?follow=false&after=" + after_;
        lock.unlock();
        DaemonClient::Answer answer = client_.get(target);
        lock.lock();
        answer_ = std::move(answer);
        fresh_ = true;
      }
      wake_.wait_for(lock, period, [this] { return stopped_; });
    }
  }

  DaemonClient client_;
  std::mutex mutex_;  // guards all below
  std::condition_variable wake_;
  DaemonClient::Answer answer_;
  std::string after_;
  bool fresh_ = false;
  bool stopped_ = false;
  std::thread thread_;  // last: it uses the others
};

// The terminal in full screen, until the end of its life.
class Screen {
 public:
  Screen() : terminal_(::newterm(nullptr, stdout, stdin)) {
    if (terminal_ == nullptr) return;
    ::cbreak();
    ::noecho();
    ::keypad(stdscr, TRUE);
    ::curs_set(0);
    ::wtimeout(stdscr, key_wait_ms);
    ::set_escdelay(25);
    if (::has_colors() && std::getenv("NO_COLOR") == nullptr) {
      ::start_color();
      ::use_default_colors();
      for (const auto& [style, colour] : colours)
        ::init_pair(static_cast<short>(style), static_cast<short>(colour), -1);
      coloured_ = true;
    }
  }
  ~Screen() {
    if (terminal_ == nullptr) return;
    ::endwin();
    ::delscreen(terminal_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  [[nodiscard]] bool is_open() const { return terminal_ != nullptr; }
  [[nodiscard]] int key() const { return ::wgetch(stdscr); }
  void repaint() const { ::clearok(stdscr, TRUE); }  // at the next draw()
  void draw(const std::vector<Line>& lines) const {
    ::werase(stdscr);
    int row = 0;
    for (const Line& line : lines) {
      ::wmove(stdscr, row++, 0);
      for (const Span& span : line) {
        ::wattrset(stdscr, static_cast<int>(attribute(span.style)));
        ::waddnstr(stdscr, span.text.data(), static_cast<int>(span.text.size()));
      }
    }
    ::wrefresh(stdscr);
  }

 private:
  static constexpr std::array<std::pair<Style, int>, 4> colours = {{{Style::good, COLOR_GREEN},
                                                                    {Style::warning, COLOR_YELLOW},
                                                                    {Style::bad, COLOR_RED},
                                                                    {Style::accent, COLOR_CYAN}}};

  [[nodiscard]] attr_t attribute(Style style) const {
    if (style == Style::plain) return A_NORMAL;
    if (style == Style::strong) return A_BOLD;
    if (style == Style::quiet) return A_DIM;
    if (coloured_) return static_cast<attr_t>(COLOR_PAIR(static_cast<int>(style)));
    return style == Style::good ? A_NORMAL : A_BOLD;
  }

  SCREEN* terminal_;
  bool coloured_ = false;
};

// False: the screen is to end.
bool press(int key, TopChoice& choice) {
  const auto sorts = static_cast<int>(TopChoice::Sort::count_);
  const auto sort_by = [&](int step) {
    choice.sort =
        static_cast<TopChoice::Sort>((static_cast<int>(choice.sort) + sorts + step) % sorts);
  };
  switch (key) {
    case 'q':
    case 'Q': return false;
    case KEY_RIGHT: sort_by(1); break;
    case KEY_LEFT: sort_by(-1); break;
    case 'r': choice.reversed = !choice.reversed; break;
    case KEY_DOWN: ++choice.scroll; break;
    case KEY_UP: choice.scroll -= choice.scroll > 0 ? 1 : 0; break;
    case KEY_NPAGE: choice.scroll += 10; break;
    case KEY_PPAGE: choice.scroll -= std::min<std::size_t>(choice.scroll, 10); break;
    case KEY_HOME: choice.scroll = 0; break;
    default: break;
  }
  return true;
}

bool has_ended(const Json& status, const std::string& until) {
  return !until.empty() && text(status, "phase") == until;
}

ExitCode show_on(const Screen& screen, const DaemonClient& client, TopState& state,
                 const std::string& until, bool unicode) {
  Feed feed(client, state.last_id);
  TopChoice choice;
  Clock::time_point heard = Clock::now();
  for (int key = KEY_RESIZE;; key = screen.key()) {
    if (signal_caught != 0) return ExitCode::failed;  // the signal itself tells
    if (!press(key, choice)) return ExitCode::ok;
    const bool fresh = feed.read_into(state);
    if (fresh && state.connection.empty()) heard = Clock::now();
    if (has_ended(state.status, until)) return ExitCode::ok;
    if (!until.empty() && Clock::now() - heard > client.timeout()) return ExitCode::no_daemon;
    if (!fresh && key == ERR) continue;
    if (key == KEY_RESIZE) screen.repaint();
    screen.draw(show_top(state, choice, static_cast<std::size_t>(std::max(0, LINES)),
                         static_cast<std::size_t>(std::max(0, COLS)), unicode));
  }
}

// For files and pipes. A line that says what the one before said is left out.
ExitCode print_progress(const DaemonClient& client, Console& console, const std::string& until) {
  std::string last;
  for (bool first = true;; first = false) {
    const auto [status, body, failure] = ask(client, "/v1/status");
    if (failure && (first || !until.empty())) return fail(console, *failure);
    const std::string line = failure ? "no answer from " + client.address() : progress_line(status);
    if (line != last) {
      if (console.output != Output::json)
        console.out << line << std::endl;
      else if (failure)  // no line of JSON
        console.err << line << std::endl;
      else
        console.out << status.dump(-1, ' ', true, Json::error_handler_t::replace) << std::endl;
    }
    last = line;
    if (!console.out || has_ended(status, until)) return ExitCode::ok;
    // A job that ends is told at once, not at the next line.
    for (const auto end = Clock::now() + progress_interval; Clock::now() < end;) {
      std::this_thread::sleep_for(period);
      if (until.empty()) continue;
      const Asked now = ask(client, "/v1/status");
      if (now.failure || has_ended(now.json, until)) break;
    }
  }
}

}  // namespace

ExitCode top(const DaemonClient& client, Console& console, const std::string& until) {
  const bool terminal = console.width > 0 && console.output == Output::table &&
                        ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
  // "dumb" is a terminal that cannot move its cursor, as in an editor.
  const char* const kind = std::getenv("TERM");
  if (!terminal || (kind != nullptr && std::string_view(kind) == "dumb"))
    return print_progress(client, console, until);
  if (const Asked status = ask(client, "/v1/status"); status.failure)
    return fail(console, *status.failure);
  TopState state;
  // What fails at once is said in words, on the terminal as it is.
  const DaemonClient::Answer first = client.get("/v1/events?follow=false");
  if (!first.ok) return fail(console, first.failure);
  const DaemonClient::Answer history = client.get("/v1/history");
  if (history.ok) state.take_history(history.body);
  state.take(first.body);
  std::setlocale(LC_CTYPE, "");
  const bool unicode = std::strcmp(::nl_langinfo(CODESET), "UTF-8") == 0;
  std::optional<ExitCode> shown;
  {
    const CaughtSignals signals;
    const Screen screen;
    if (screen.is_open()) shown = show_on(screen, client, state, until, unicode);
  }
  if (!shown)
    console.err << "gossipctl: the terminal '" << printable(kind ? kind : "")
                << "' is unknown here, so there are lines in place of a screen; set TERM\n";
  const ExitCode code = shown ? *shown : print_progress(client, console, until);
  if (code == ExitCode::no_daemon)
    return fail(console, {code, "no daemon answers at " + client.address() + " any more",
                          "it was stopped, or has failed", "look at its log"});
  return code;
}

}  // namespace gossipd
