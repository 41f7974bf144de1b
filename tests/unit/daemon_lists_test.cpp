// Lists as programs and narrow terminals get them, and members by name.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/unit/daemon_fake_server.h"
#include "tests/unit/daemon_made_up.h"
#include "tools/gossipctl/table.h"

using namespace gossipd;

namespace {

bool mentions(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells = {""};
  for (const char c : line)
    if (c == '\t')
      cells.emplace_back();
    else
      cells.back() += c;
  return cells;
}

std::size_t characters(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

MemberView other(std::uint64_t id, const std::string& name, MemberState state) {
  MemberView m = MadeUpDaemon::member(id, name, false);
  m.record.state = state;
  return m;
}

}  // namespace

TEST_CASE("members come self first, then those that live by name, then the others") {
  MadeUpDaemon daemon;
  daemon.made_up_members = {
      other(1, "gone", MemberState::left),   other(2, "zoe", MemberState::alive),
      other(3, "ill", MemberState::suspect), MadeUpDaemon::member(0xaa, "mid", true),
      other(4, "ada", MemberState::alive),   other(5, "dead", MemberState::failed)};
  const FakeServer server(handler_of(daemon));
  const Ran ran = gossipctl({"members", "-o", "tsv", "--no-headers", "--rest", server.address()});
  std::vector<std::string> names;
  for (const std::string& line : lines_of(ran.out)) names.push_back(cells_of(line)[0]);
  CHECK(names == std::vector<std::string>{"mid", "ada", "zoe", "ill", "dead", "gone"});
}

TEST_CASE("a member that has gone is called reachable by no list") {
  MadeUpDaemon daemon;
  for (const MemberState state :
       {MemberState::alive, MemberState::suspect, MemberState::failed, MemberState::left}) {
    daemon.made_up_members = {MadeUpDaemon::member(0xaa, "box1", true), other(1, "box2", state)};
    daemon.made_up_members[1].record.reachability = Reachability::reachable;
    const bool present = state == MemberState::alive || state == MemberState::suspect;
    const FakeServer server(handler_of(daemon));
    for (const char* list : {"members", "reachability"}) {
      CAPTURE(list);
      const Ran ran = gossipctl({list, "-o", "tsv", "--no-headers", "--rest", server.address()});
      CHECK(mentions(lines_of(ran.out).at(1), "\treachable\t") == present);
    }
  }
}

TEST_CASE("tab-separated cells have no spaces and are never empty, whatever a member is called") {
  MadeUpDaemon daemon;
  daemon.made_up_members[1].record.name = " my box\t2\nx ";
  daemon.made_up_members[0].record.name = "";
  daemon.made_up_links[0].name = "a b";
  const FakeServer server(handler_of(daemon));
  for (const char* list : {"members", "links", "key"}) {
    CAPTURE(list);
    std::vector<std::string> words = {list, "-o", "tsv", "--rest", server.address()};
    if (std::string(list) == "key") words.insert(words.begin() + 1, "list");
    const Ran ran = gossipctl(words);
    CHECK(ran.code == ExitCode::ok);
    const std::vector<std::string> lines = lines_of(ran.out);
    REQUIRE(lines.size() >= 2);
    for (const std::string& line : lines) {
      CHECK(cells_of(line).size() == cells_of(lines[0]).size());
      for (const std::string& cell : cells_of(line)) {
        CHECK(!cell.empty());
        CHECK(!mentions(cell, " "));
      }
    }
  }
  const Ran members = gossipctl({"members", "-o", "tsv", "--rest", server.address()});
  CHECK(mentions(members.out, "name\taddress\tstate"));
  CHECK(mentions(members.out, "\t18240\t"));  // a number, ungrouped
}

TEST_CASE("status in tab-separated values is a name and a value a line, those within dotted") {
  MadeUpDaemon daemon;
  const FakeServer server(handler_of(daemon));
  const Ran ran = gossipctl({"status", "-o", "tsv", "--rest", server.address()});
  CHECK(mentions(ran.out, "step\t18240\n"));
  CHECK(mentions(ran.out, "trainer.state\tnone\n"));
  CHECK(mentions(ran.out, "checkpoints.current.step\t18000\n"));
  for (const std::string& line : lines_of(ran.out)) CHECK(cells_of(line).size() == 2);
}

TEST_CASE("a narrow terminal gets fewer columns, the least important going first") {
  MadeUpDaemon daemon;
  const FakeServer server(handler_of(daemon));
  const auto links = [&server](const std::string& columns) {
    return gossipctl({"links", "--rest", server.address()}, {{"COLUMNS", columns}}).out;
  };
  const std::string whole = gossipctl({"links", "--rest", server.address()}).out;
  CHECK(characters(lines_of(whole)[0]) > 120);
  CHECK(links("0") == whole);
  CHECK(links("rubbish") == whole);
  std::size_t before = 1000;
  for (const std::size_t width : {200, 140, 120, 100, 80, 60, 40, 20}) {
    CAPTURE(width);
    const std::vector<std::string> lines = lines_of(links(std::to_string(width)));
    REQUIRE(lines.size() == 2);
    for (const std::string& line : lines) CHECK(characters(line) <= width);
    CHECK(mentions(lines[0], "PEER"));
    CHECK(mentions(lines[1], "box2"));
    const auto columns =
        static_cast<std::size_t>(std::count(lines[0].begin(), lines[0].end(), ' '));
    CHECK(columns <= before);
    before = columns;
  }
  CHECK(mentions(links("80"), "REFUSED"));
  CHECK(!mentions(links("80"), "PROTOCOL"));
  CHECK(!mentions(links("40"), "CORRECTION"));
  const std::string tsv =
      gossipctl({"links", "-o", "tsv", "--rest", server.address()}, {{"COLUMNS", "40"}}).out;
  CHECK(mentions(tsv, "protocol"));
}

TEST_CASE("a long name is shortened where it would not fit, by characters and not by bytes") {
  std::ostringstream out;
  const std::vector<Column> columns = {{"NAME", "name"}, {"X", "x"}};
  print_rows(out, columns, {{"\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4", "1"}},
             {.output = Output::table, .headers = true, .width = 9});
  CHECK(out.str() == "NAME    X\n\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xe2\x80\xa6  1\n");
}

TEST_CASE("a wide character takes two columns of a table, a combining one none") {
  const auto print = [](const std::string& name, std::size_t width) {
    std::ostringstream out;
    print_rows(out, {{.title = "NAME", .name = "name"}, {.title = "X", .name = "x"}},
               {{name, "1"}, {"abcdef", "2"}},
               {.output = Output::table, .headers = false, .width = width});
    return out.str();
  };
  CHECK(print("盒子", 80) == "盒子    1\nabcdef  2\n");
  CHECK(print("u\u0308ber", 80) == "u\u0308ber    1\nabcdef  2\n");
  CHECK(print("盒子盒子", 9) == "盒子…   1\nabcdef  2\n");  // half of a third has no room
  CHECK(print("\xff\xfe", 80) == "??      1\nabcdef  2\n");
}

TEST_CASE("a member is named by its name, its id, or how only that one begins") {
  MadeUpDaemon daemon;
  daemon.made_up_members = {MadeUpDaemon::member(0xaa, "box1", true),
                            other(0xbb00000000000000, "box2", MemberState::failed),
                            other(0xbc00000000000000, "box20", MemberState::failed),
                            other(0xcc, "twin", MemberState::failed),
                            other(0xcd, "twin", MemberState::failed)};
  const FakeServer server(handler_of(daemon));
  const auto forget = [&](const std::string& word) {
    daemon.forgot = NodeId{};
    return gossipctl({"forget", word, "--rest", server.address()});
  };
  for (const char* word : {"box2", "bb00000000000000", "bb"}) {
    CAPTURE(word);
    CHECK(forget(word).code == ExitCode::ok);
    CHECK(daemon.forgot == NodeId{0xbb00000000000000});
  }
  CHECK(forget("box20").code == ExitCode::ok);
  CHECK(daemon.forgot == NodeId{0xbc00000000000000});
  for (const char* word : {"b", "box", "twin"}) {
    CAPTURE(word);
    const Ran ran = forget(word);
    CHECK(ran.code == ExitCode::usage);
    CHECK(mentions(ran.err, std::string("'") + word + "' may be any of"));
    CHECK(daemon.forgot == NodeId{});
  }
  CHECK(mentions(forget("twin").err, "00000000000000cc (twin), 00000000000000cd (twin)"));
  const Ran nobody = forget("boxx");
  CHECK(nobody.code == ExitCode::not_found);
  CHECK(mentions(nobody.err, "there is no member 'boxx'"));
  CHECK(forget("").code != ExitCode::ok);
}

TEST_CASE("a key is named by how only its id begins") {
  MadeUpDaemon daemon;
  daemon.made_up_keys = KeysView{{{0xa1ull << 56, true, 2}, {0xb2ull << 56, false, 0}}, {}};
  const FakeServer server(handler_of(daemon));
  CHECK(gossipctl({"key", "use", "b2", "--rest", server.address()}).code == ExitCode::ok);
  CHECK(daemon.used == 0xb2ull << 56);
  CHECK(gossipctl({"key", "use", "c", "--rest", server.address()}).code == ExitCode::not_found);
}
