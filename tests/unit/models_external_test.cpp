// The daemon's end of an attachment, against a trainer that the test plays over the real socket.
#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <thread>

#include "models/external/segment_list.h"
#include "models_attached_process.h"

using namespace gossipd;
using attach::FromDaemon;
using attach::FromTrainer;
using attach::Go;
using test::attach_words;
using test::End;
using test::floats;
using test::Memory;
using test::Process;
using test::schema;
using test::segments;
using test::TemporaryDirectory;

namespace {

// The code of the first notice that a process of another user hears at `path`; nothing: it may not
// even connect. Needs root.
std::optional<std::string> heard_as(const std::string& path, uid_t user, gid_t group,
                                    std::vector<gid_t> groups = {}) {
  const Bytes words = attach::encode(FromTrainer(attach_words()));
  const Bytes list =
      attach::encode(FromTrainer(attach::Segments{.first = 0, .segments = segments()}));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const Descriptor out(ends[0]);
  Descriptor in(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {  // only system calls: other threads may have held locks
    std::byte packet[attach::packet_bytes_max];
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (::setgroups(groups.size(), groups.data()) != 0 || ::setresgid(group, group, group) != 0 ||
        ::setresuid(user, user, user) != 0 ||
        ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      ::_exit(1);
    (void)!::send(socket, words.data(), words.size(), MSG_NOSIGNAL);
    (void)!::send(socket, list.data(), list.size(), MSG_NOSIGNAL);
    const ssize_t count = ::recv(socket, packet, sizeof packet, 0);
    if (count > 0) (void)!::write(in.number(), packet, static_cast<std::size_t>(count));
    ::_exit(0);
  }
  in = Descriptor();
  Bytes heard(attach::packet_bytes_max);
  const ssize_t count = ::read(out.number(), heard.data(), heard.size());
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (count <= 0) return std::nullopt;
  heard.resize(static_cast<std::size_t>(count));
  const auto packet = attach::decode_from_daemon(heard, floats);
  REQUIRE(packet);
  return std::get<attach::Notice>(*packet).code;
}

const std::vector<float> ones(floats, 1.0f), twos(floats, 2.0f), threes(floats, 3.0f);

// The first model of a cluster, up to its DONE.
void hand_in(Process& trainer, std::uint8_t run, const std::vector<float>& model) {
  trainer.attach(attach_words(run));
  (void)trainer.expect<attach::Attached>();
  const Memory memory(trainer);
  trainer.send(attach::StepDone{.sequence = 1, .loss = std::nan("")});
  const Go go = trainer.expect<Go>();
  CHECK(go.flags == (Go::copy | Go::paused));
  std::ranges::copy(model, memory.part(1 + go.snapshot).begin());
  trainer.send(attach::Done{.sequence = go.sequence});
}

// What one daemon after the other finds of the account, and keeps.
struct Disk {
  ExternalEngine::Options options() {
    return {.account = account, .keep = [this](const RunAccount& kept) -> std::optional<Error> {
              account = kept;
              return std::nullopt;
            }};
  }
  std::optional<RunAccount> account;
};

}  // namespace

// ---- who is let in ----

TEST_CASE("a trainer with another model is refused by the first tensor that differs") {
  const End end;
  std::vector<Segment> other = segments();
  other[0].shape = {6, 1};
  Process trainer(end.path);
  trainer.attach(attach_words(), other);
  trainer.expect_refusal("other-segments", "'w' is 6 x 1 here and 2 x 3 in the job");
}

TEST_CASE("the second trainer at one socket is refused, and let in when the first has gone") {
  End end;
  Process first(end.path);
  end.let_in(first);
  Process second(end.path);
  second.attach(attach_words(2));
  second.expect_refusal("occupied", std::to_string(::getpid()));
  first.leave();
  end.meet_until([](const auto& news) { return !news.present; });
  Process third(end.path);
  end.let_in(third, 3);
}

TEST_CASE("nonsense ends a connection with the reason, and nobody else's") {
  End end;
  Process good(end.path);
  end.let_in(good);
  Process garbage(end.path), unasked(end.path), odd(end.path), wrong_sum(end.path);
  garbage.send_bytes(Bytes(100, std::byte{7}));
  garbage.expect_refusal("bad-packet");
  unasked.send(attach::StepDone{.sequence = 1});
  unasked.expect_refusal("bad-packet", "come first");
  odd.send(attach_words());
  odd.send(attach::Segments{.first = 1, .segments = segments()});
  odd.expect_refusal("bad-packet");
  attach::Attach more = attach_words();
  more.floats = 10;
  wrong_sum.attach(more);
  wrong_sum.expect_refusal("bad-packet", "9 floats");
  CHECK(end.step(good, 1, 0).answers == 1);
}

TEST_CASE("a trainer that waits hears why, and is let in when there is a model") {
  TemporaryDirectory directory;
  auto socket = std::move(*TrainerSocket::open((directory / "s").string()));
  Process trainer(socket->path());
  trainer.attach(attach_words());
  CHECK(trainer.expect<attach::Notice>().code == "no-cluster");
  CHECK(socket->first_schema().hash() == schema().hash());
  socket->wait("preparing", "soon");
  CHECK(trainer.expect<attach::Notice>().code == "preparing");
  auto engine = std::move(*ExternalEngine::create(schema(), *socket, {}));
  while (!engine->meet({}).present) {
  }
  (void)trainer.expect<attach::Attached>();
}

TEST_CASE("another user is let in by the socket's group alone") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: only root can be another user");
    return;
  }
  constexpr uid_t nobody = 65534;
  constexpr gid_t trainers = 65533, others = 65532;
  TemporaryDirectory directory;
  // A directory with the set-group-ID bit gives its group to the socket.
  REQUIRE(::chown(directory.string().c_str(), 0, trainers) == 0);
  REQUIRE(::chmod(directory.string().c_str(), 02711) == 0);
  const auto socket = std::move(*TrainerSocket::open((directory / "s").string()));
  CHECK(heard_as(socket->path(), nobody, trainers) == "no-cluster");
  CHECK(heard_as(socket->path(), nobody, others, {trainers}) == "no-cluster");
  CHECK(heard_as(socket->path(), 0, others) == "no-cluster");
  CHECK(heard_as(socket->path(), nobody, others) == std::nullopt);  // mode 0660
  REQUIRE(::chmod(socket->path().c_str(), 0666) == 0);
  CHECK(heard_as(socket->path(), nobody, others) == "not-allowed");
  CHECK(heard_as(socket->path(), nobody, trainers) == "no-cluster");
}

TEST_CASE("without a file descriptor the socket pauses, and takes who waits when there is one") {
  TemporaryDirectory directory;
  const auto socket = std::move(*TrainerSocket::open((directory / "s").string()));
  rlimit usual{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
  rlimit low = usual;
  low.rlim_cur = 1 + static_cast<rlim_t>(Descriptor(::open("/dev/null", O_RDONLY)).number());
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  const auto began = std::chrono::steady_clock::now();
  Process trainer(socket->path());  // has the last one
  while (socket->accepts_failed() < 3) std::this_thread::yield();
  const auto took = std::chrono::steady_clock::now() - began;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
  CHECK(took >= 2 * accept_pause);
  trainer.attach(attach_words());
  CHECK(trainer.expect<attach::Notice>().code == "no-cluster");
}

TEST_CASE("a socket that is closed refuses who waits in its own words and leaves no path") {
  TemporaryDirectory directory;
  const auto socket = std::move(*TrainerSocket::open((directory / "s").string()));
  Process trainer(socket->path());
  trainer.attach(attach_words());
  CHECK(trainer.expect<attach::Notice>().code == "no-cluster");
  socket->close("not-external", "the daemon trains the job itself");
  trainer.expect_refusal("not-external", "itself");
  CHECK_FALSE(std::filesystem::exists(socket->path()));
}

// ---- one model in two processes ----

TEST_CASE("the first trainer's model is the cluster's, unless it is not finite") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  End end;
  std::string events;
  std::thread daemon([&] {
    CHECK(end.engine->take_first_model([&](const std::string& said) { events += said + '\n'; }));
  });
  std::vector<float> nan = threes, infinite = threes, masked = threes;
  nan[0] = std::nanf("");
  infinite[7] = infinity;
  masked[8] = -infinity;  // of the local segment
  Process first(end.path), second(end.path), third(end.path);
  hand_in(first, 1, nan);
  first.expect_refusal("not-finite", "'w'");
  hand_in(second, 2, infinite);
  second.expect_refusal("not-finite", "'mean'");
  hand_in(third, 3, masked);
  daemon.join();
  CHECK(end.mirror() == masked);
  CHECK_MESSAGE(events.find("event=trainer-gone why=\"the cluster") != std::string::npos, events);
}

TEST_CASE("an update and a copy reach the trainer once, and the copy the exchange") {
  End end;
  end.engine->replace_model(ones);
  Process trainer(end.path);
  end.let_in(trainer);
  const Memory memory(trainer);
  const Go first = end.step(trainer, 1, 0);
  CHECK(first.flags == Go::replace);
  CHECK(first.ranges == std::vector<attach::Range>{{.first = 0, .floats = 8}});  // not the local
  CHECK(memory.part(0)[0] == 1);
  end.done(trainer, first, 0);

  std::vector<float> update(floats, 0.0f), copy(floats);
  update[3] = 2;
  end.engine->add_to_model(update);
  end.engine->begin_copy(copy);
  CHECK_FALSE(end.engine->copied());
  const Go second = end.step(trainer, 2, 1);
  CHECK(second.flags == (Go::add | Go::copy));
  CHECK(memory.part(0)[3] == 2);
  std::ranges::copy(twos, memory.part(1 + second.snapshot).begin());
  end.done(trainer, second, 1);
  CHECK(end.engine->copied());
  CHECK(copy == twos);
  CHECK(end.mirror() == twos);
  CHECK(end.step(trainer, 3, 2).flags == 0);
}

TEST_CASE("an update whose trainer dies is in the mirror once, whether it was sent or not") {
  for (const bool sent : {false, true}) {
    CAPTURE(sent);
    End end;
    end.engine->replace_model(ones);
    Process trainer(end.path);
    end.let_in(trainer);
    end.done(trainer, end.step(trainer, 1, 0), 0);
    const Memory memory(trainer);
    std::vector<float> copy(floats);
    end.engine->add_to_model(twos);
    end.engine->begin_copy(copy);
    if (sent) {
      const Go go = end.step(trainer, 2, 5);
      std::ranges::fill(memory.part(1 + go.snapshot).first(4), 7.0f);  // dies on the way
    }
    trainer.leave();
    end.meet_until([](const auto& news) { return !news.present; });
    REQUIRE(end.engine->copied());
    CHECK(std::vector(copy.begin(), copy.begin() + 8) == std::vector(8, 3.0f));
    CHECK(end.mirror() == copy);
    CHECK(end.order.step == (sent ? 5 : 0));

    Process next(end.path);
    end.let_in(next, 2);
    const Memory fresh(next);
    const Go go = end.step(next, 1, 0);
    CHECK(go.flags == Go::replace);
    CHECK(fresh.part(0)[0] == 3);
  }
}

TEST_CASE("a model on loan comes back at once while no trainer is there to make steps") {
  End end;
  end.engine->replace_model(ones);
  test::Desk desk;
  const auto trainer = Trainer::with_engine(
      test::parse_job(
          "name = 'mine'\nbatch = 64\nbudget_samples = 1000\n[model]\nkind = 'external'"),
      {}, std::move(end.engine));
  trainer->start(desk.callbacks(), true);
  constexpr Step never = Step{1} << 60;
  trainer->give(
      {.values = std::vector<float>(floats, 1.0f), .snapshot_step = never, .training = true});
  std::vector<float> shared = desk.snapshot().model;
  shared.resize(8);
  CHECK(shared == std::vector(8, 2.0f));
}

TEST_CASE("a run that a daemon before has written down keeps its model and its counters") {
  Disk disk;
  {
    End before(disk.options());
    before.engine->replace_model(ones);
    before.order.step = 100;
    before.order.samples = 1000;
    Process trainer(before.path);
    before.let_in(trainer, 9);
    before.done(trainer, before.step(trainer, 1, 3), 3);
    (void)before.step(trainer, 2, 5);
    CHECK(before.order.step == 102);
    CHECK(before.order.samples == 1000 + 2 * 64);
  }
  REQUIRE(disk.account);
  End end(disk.options());
  end.engine->replace_model(twos);  // an old checkpoint
  end.order.step = 50;
  end.order.samples = 500;
  Process trainer(end.path);
  end.let_in(trainer, 9, 5);
  CHECK(end.order.step == 102);
  const Go go = end.step(trainer, 1, 8);
  CHECK(go.flags == Go::copy);
  CHECK(end.order.step == 105);
  CHECK(end.order.samples == 1000 + 5 * 64);
}

TEST_CASE("what a run has done is on disk when its trainer has died, and goes on if it has not") {
  Disk disk;
  {
    End before(disk.options());
    before.engine->replace_model(ones);
    Process trainer(before.path);
    before.let_in(trainer, 9);
    before.done(trainer, before.step(trainer, 1, 3), 3);
    (void)before.step(trainer, 2, 8);
    trainer.leave();
    before.meet_until([](const auto& news) { return !news.present; });
  }
  REQUIRE(disk.account);
  End after(disk.options());
  after.engine->replace_model(ones);  // a checkpoint of before
  after.order.step = 2;
  after.order.samples = 2 * 64;
  after.meet_until([](const auto& news) { return news.step.has_value(); });
  CHECK(after.order.step == 5);
  CHECK(after.order.samples == 5 * 64);
  SUBCASE("another run") {
    Process trainer(after.path);
    after.let_in(trainer, 10);
    (void)after.step(trainer, 1, 3);
    CHECK(after.order.step == 5);
    CHECK(after.order.samples == 5 * 64);
  }
  SUBCASE("the same one, which says in ATTACH what it has done alone") {
    Process trainer(after.path);
    after.let_in(trainer, 9, 9);
    CHECK(after.order.step == 6);
    CHECK(after.order.samples == 6 * 64);
    (void)after.step(trainer, 1, 10);
    CHECK(after.order.step == 7);
    CHECK(after.order.samples == 7 * 64);
  }
}

TEST_CASE("a run counts beyond what members remember of lost ones, whenever they tell it") {
  Disk disk;
  const auto tell = [](End& end) {
    end.order.remembered_step = 50;
    end.order.remembered_samples = 50 * 64;
    end.engine->wake();
    (void)end.meet();
  };
  End end(disk.options());
  end.engine->replace_model(ones);
  end.order.step = 10;  // of the checkpoint
  end.order.samples = 10 * 64;
  Process trainer(end.path);
  SUBCASE("before the run") {
    tell(end);
    CHECK(end.order.step == 50);
    end.let_in(trainer, 9);
    end.done(trainer, end.step(trainer, 1, 3), 3);
    (void)end.step(trainer, 2, 8);
  }
  SUBCASE("within it") {
    end.let_in(trainer, 9);
    end.done(trainer, end.step(trainer, 1, 3), 3);
    (void)end.step(trainer, 2, 6);
    CHECK(end.order.step == 13);
    tell(end);
    CHECK(end.order.step == 53);
    (void)end.step(trainer, 3, 8);
  }
  SUBCASE("after it") {
    end.let_in(trainer, 9);
    end.done(trainer, end.step(trainer, 1, 3), 3);
    (void)end.step(trainer, 2, 8);
    trainer.leave();
    end.meet_until([](const auto& news) { return !news.present; });
    tell(end);
  }
  CHECK(end.order.step == 55);
  CHECK(end.order.samples == 55 * 64);
  // The next daemon has no newer checkpoint, and the run comes back.
  REQUIRE(disk.account);
  end.engine.reset();
  End after(disk.options());
  after.engine->replace_model(ones);
  after.order.step = 10;
  after.order.samples = 10 * 64;
  Process again(after.path);
  after.let_in(again, 9, 12);
  CHECK(after.order.step == 59);
  CHECK(after.order.samples == 59 * 64);
}

TEST_CASE("a known run that says less than is remembered counts beyond that") {
  End end({.account = RunAccount{.run = {9}, .node_began = {.steps = 2, .samples = 2 * 64}}});
  end.engine->replace_model(ones);
  end.order.remembered_step = 50;
  end.order.remembered_samples = 50 * 64;
  Process trainer(end.path);
  end.let_in(trainer, 9, 12);
  CHECK(end.order.step == 50);
  (void)end.step(trainer, 1, 15);
  CHECK(end.order.step == 53);
  CHECK(end.order.samples == 53 * 64);
}

TEST_CASE("what a trainer may not do ends its connection") {
  const auto refused = [](const std::vector<FromTrainer>& packets) {
    End end;
    end.engine->replace_model(ones);
    Process trainer(end.path);
    end.let_in(trainer);
    (void)end.step(trainer, 1, 4);  // a replace, so a DONE is due
    for (const FromTrainer& packet : packets) trainer.send(packet);
    end.meet_until([](const auto& news) { return !news.present; });
    trainer.expect_refusal("bad-packet");
  };
  refused({attach::StepDone{.sequence = 2, .counters = {.steps = 5, .samples = 320}}});
  refused({attach::Done{.sequence = 2, .counters = {.steps = 4, .samples = 256}}});
  refused({attach::Done{.sequence = 1, .counters = {.steps = 3, .samples = 256}}});
  refused({attach::Done{.sequence = 1, .counters = {.steps = 4, .samples = 256}},
           attach::StepDone{.sequence = 3, .counters = {.steps = 5, .samples = 320}}});
  refused({attach_words()});
}

TEST_CASE("no step counts whose run could not be written down") {
  End end({.keep = [](const RunAccount&) { return std::optional(Error{"io-error", "full"}); }});
  Process trainer(end.path);
  end.let_in(trainer);
  trainer.send(attach::StepDone{.sequence = 1, .counters = {.steps = 5, .samples = 320}});
  end.meet_until([](const auto& news) { return !news.present; });
  trainer.expect_refusal("io-error", "full");
  CHECK(end.order.step == 0);
}

TEST_CASE("the memory cannot be shrunk by the trainer") {
  End end;
  Process trainer(end.path);
  end.let_in(trainer);
  CHECK(::ftruncate(trainer.memory(), 4096) != 0);
}

TEST_CASE("a socket that somebody listens at is not taken over, and one that was left is") {
  TemporaryDirectory directory;
  const std::string path = (directory / "s").string();
  {
    const auto first = TrainerSocket::open(path);
    REQUIRE(first);
    CHECK(TrainerSocket::open(path).error().text.find("another process") != std::string::npos);
    CHECK(TrainerSocket::open(path).error().code == "listen");  // may pass
  }
  { const Result<Descriptor> left = listen_for_packets(path); }  // closed, the name stays
  CHECK(TrainerSocket::open(path));
  CHECK(TrainerSocket::open((directory / "none/s").string()).error().code == "bad-config");
  CHECK(TrainerSocket::open((directory / std::string(300, 's')).string()).error().code ==
        "bad-config");
  std::ofstream(directory / "file") << "precious";
  CHECK(TrainerSocket::open((directory / "file").string()).error().code == "bad-config");
  const std::string deep = (directory / std::string(150, 'd')).string();
  std::filesystem::create_directory(deep);
  CHECK(TrainerSocket::open(deep + "/s"));
}
