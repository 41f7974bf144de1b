#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>

#include "daemon/config/advertise.h"
#include "daemon/config/config.h"
#include "daemon/config/refused_line.h"
#include "daemon/config/settings.h"
#include "daemon/disk/state_store.h"
#include "net/peer/invite.h"
#include "tests/unit/daemon_support.h"

using namespace gossipd;

namespace {

Result<CommandLine> read(const std::vector<std::string>& arguments, Environment environment = {}) {
  environment.emplace("HOME", "/home/somebody");
  return read_command_line(arguments, environment);
}

// The text of the error, or "" when there was none.
std::string mistake(const std::vector<std::string>& arguments, Environment environment = {}) {
  const auto line = read(arguments, std::move(environment));
  return line ? std::string() : line.error().text;
}

bool mentions(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

}  // namespace

TEST_CASE("a flag beats the environment, which beats the file, which beats the default") {
  const TemporaryDirectory directory;
  const std::string file = directory.write("node.toml",
                                           "name = \"from-file\"\n[exchange]\ncodec = "
                                           "\"int4\"\nround_steps = 9\n[log]\nlevel = \"error\"\n");
  const auto line =
      read({"--config", file, "--name", "from-flag"},
           {{"GOSSIPD_NAME", "from-environment"}, {"GOSSIPD_EXCHANGE_CODEC", "int8"}});
  REQUIRE(line);
  CHECK(line->config.name == "from-flag");
  CHECK(line->config.exchange.codec == Codec{CodecId::int8});
  CHECK(line->config.exchange.round_steps == 9);
  CHECK(line->config.log_level == "error");
  CHECK(line->config.exchange.mixing == ExchangePolicy{}.mixing);
}

TEST_CASE("--set reaches every setting, and a setting's own flag beats it") {
  const auto line =
      read({"--set", "membership.ping_ms=250", "--set", "trainer.device=cuda", "--device", "cpu"});
  REQUIRE(line);
  CHECK(line->config.membership.ping == std::chrono::milliseconds(250));
  CHECK(line->config.device == "cpu");
}

TEST_CASE("the environment may name the node file") {
  const TemporaryDirectory directory;
  const std::string file = directory.write("node.toml", "name = \"from-file\"\n");
  const auto line = read({}, {{"GOSSIPD_CONFIG", file}});
  REQUIRE(line);
  CHECK(line->config.name == "from-file");
}

TEST_CASE("paths in a node file are relative to that file") {
  const TemporaryDirectory directory;
  std::string file = directory.write(
      "node.toml",
      "job = \"jobs/one.toml\"\nkey_file = \"none\"\n[rest]\nlisten = \"unix:so ck\"\n");
  const auto line = read({"--config", file});
  REQUIRE(line);
  CHECK(line->config.job_file == (directory.path() / "jobs/one.toml").string());
  CHECK(line->config.key_file == "none");
  CHECK(line->config.rest == "unix:" + (directory.path() / "so ck").string());
  const Invite invite{ClusterId{1}, ClusterKey{}, {{"box2", 7610}}};
  std::filesystem::permissions(directory.write("inv.txt", format_invite(invite)),
                               std::filesystem::perms(0600));
  file = directory.write("node.toml", "join = [\"box1\", \"@inv.txt\"]\n");
  const auto joins = read({"--config", file});
  REQUIRE(joins);
  CHECK(joins->config.invite == invite);
  CHECK(joins->config.join.size() == 2);
}

TEST_CASE("each line that a package's node file offers can be taken as it is") {
  const TemporaryDirectory directory;
  for (const char* name : {"node.toml", "node-core.toml"}) {
    std::istringstream lines(read_file(std::string(GOSSIPD_SOURCE_DIR "/deploy/packages/") + name));
    std::vector<std::string> keys;
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("# ") || !mentions(line, " = ")) continue;
      keys.push_back(line.substr(2, line.find(" = ") - 2));
      const std::string file = directory.write("node.toml", line.substr(2) + "\n");
      const auto read_line = read({"--config", file, "--state-dir", directory.path().string()});
      CAPTURE(line);
      if (keys.back() == "join")
        CHECK(mentions(read_line.error().text, "join: there is no invite file /etc/gossipd"));
      else
        CHECK_MESSAGE(read_line, read_line.error().text);
    }
    CHECK(std::ranges::find(keys, "join") != keys.end());
  }
}

TEST_CASE("`join` of the node file may be one string") {
  const TemporaryDirectory directory;
  const auto line = read({"--config", directory.write("node.toml", "join = \"box1\"\n")});
  REQUIRE(line);
  CHECK(line->config.join == std::vector{Endpoint{"box1", peer_port_default}});
  // also where it does not count
  CHECK(read({"--config", (directory.path() / "node.toml").string(), "--join", "box2"}));
}

TEST_CASE("a name that reads as a list, an option or every name is refused") {
  for (const char* name : {"n1,n2", "-x", "*", "..", "a b"}) {
    CAPTURE(name);
    CHECK(mentions(mistake({"--name=" + std::string(name)}), "name: '" + std::string(name) + "' "));
  }
  for (const char* name : {"box-1.lan", "gpu_2", "7", "büro"})
    CHECK(read({"--name", name})->config.name == name);
}

TEST_CASE("a state directory is known by its whole path, which a client elsewhere can use") {
  const auto line = read_command_line({"--state-dir", "state/../here"}, {});
  REQUIRE(line);
  CHECK(line->config.state_dir == (std::filesystem::current_path() / "here").string());
}

TEST_CASE("--join may be repeated and takes one address each time") {
  const auto line = read({"--join", "box1", "--join", "[::1]:99"});
  REQUIRE(line);
  REQUIRE(line->config.join.size() == 2);
  CHECK(line->config.join[0] == Endpoint{"box1", peer_port_default});
  CHECK(line->config.join[1] == Endpoint{"::1", 99});
}

TEST_CASE("a shard is written 1-based") {
  const auto line = read({"--shard", "2/3"});
  REQUIRE(line);
  CHECK(line->config.shard_index == 1);
  CHECK(line->config.shard_count == 3);
}

TEST_CASE("shard = auto is the default, and can be written over another one") {
  const auto plain = read({});
  REQUIRE(plain);
  CHECK(plain->config.shard_count == 0);
  const auto line = read({"--set", "shard=2/3", "--shard", "auto"});
  REQUIRE(line);
  CHECK(line->config.shard_count == 0);
  CHECK(line->config.shard_index == 0);
}

TEST_CASE("an unknown key is an error that suggests the one that was meant") {
  const TemporaryDirectory directory;
  const std::string file = directory.write("node.toml", "[exchange]\ncodek = \"int8\"\n");
  const std::string text = mistake({"--config", file});
  CHECK(mentions(text, "node.toml:2"));
  CHECK(mentions(text, "codek"));
  CHECK(mentions(text, "did you mean"));
  CHECK(mentions(text, "codec"));
}

TEST_CASE("an unknown --set key and an unknown flag suggest the one that was meant") {
  CHECK(mentions(mistake({"--set", "exchange.codek=int8"}), "did you mean 'exchange.codec'"));
  CHECK(mentions(mistake({"--jop", "x.toml"}), "did you mean --job"));
}

TEST_CASE("a word that is no flag is named, with where commands live") {
  const std::string text = mistake({"status"});
  CHECK(mentions(text, "'status' is no flag"));
  CHECK(mentions(text, "gossipctl"));
}

TEST_CASE("an invite is taken with what a shell or a file has left around it") {
  const Invite invite{ClusterId{1}, ClusterKey{}, {{"box1", 7610}}};
  const std::string word = format_invite(invite);
  for (const std::string& text : {word, " " + word, "gossipd --join " + word, "\"" + word + "\""}) {
    const auto line = read({"--join", text});
    REQUIRE(line);
    CHECK(line->config.invite == invite);
  }
  CHECK(mentions(mistake({"--join", "gossip2" + word.substr(7)}), "no whole invite"));
  for (const char* placeholder : {"gossip1...", "gossip1…", "gossip1abc..."})
    CHECK(mentions(mistake({"--join", placeholder}), "no whole invite"));
  CHECK_FALSE(mentions(mistake({"--join", " " + word + "a"}), word));
}

TEST_CASE("an invite of a source that another overrules is not looked for") {
  const TemporaryDirectory directory;
  const std::string file = directory.write("node.toml", "join = [\"@gone\"]\n");
  CHECK(mentions(mistake({"--config", file}), "there is no invite file"));
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--join", "box1"}, {"--set", "join=box1", "--set", "name=x"}}) {
    std::vector<std::string> arguments{"--config", file};
    arguments.insert(arguments.end(), words.begin(), words.end());
    const auto line = read(arguments, {{"GOSSIPD_JOIN", "@nor-here"}});
    REQUIRE(line);
    CHECK(line->config.join == std::vector{Endpoint{"box1", peer_port_default}});
  }
  CHECK(read({"--config", file}, {{"GOSSIPD_JOIN", "box1"}}));
  CHECK(read({"--join", "box1", "--set", "join=@gone"}));
}

TEST_CASE("a node with a state goes on without the file of its invite, and is told") {
  const TemporaryDirectory directory;
  const std::vector<std::string> words{"--join", "@gone",       "--join",
                                       "box1",   "--state-dir", directory.path().string()};
  CHECK(mentions(mistake(words), "join: there is no invite file gone"));
  (void)directory.write("node.json", format_node_state(NodeState{}, 1));
  const auto line = read(words);
  REQUIRE(line);
  CHECK(line->config.join == std::vector{Endpoint{"box1", peer_port_default}});
  CHECK_FALSE(line->config.invite);
  REQUIRE(line->warnings.size() == 1);
  CHECK(mentions(line->warnings[0], "a member goes on without"));
  // What the file says wrongly is still an error.
  (void)directory.write("empty", "");
  std::filesystem::permissions(directory.path() / "empty", std::filesystem::perms(0600));
  CHECK(mentions(mistake({"--join", "@" + (directory.path() / "empty").string(), "--state-dir",
                          directory.path().string()}),
                 "no whole invite"));
}

TEST_CASE("seeds of an invite that is gone stay, beside the addresses that are given now") {
  const Endpoint box1{"box1", 7610}, box2{"box2", 7610}, box3{"box3", 7610};
  DaemonConfig before, now;
  before.join = {box1, box2};
  before.invite = Invite{ClusterId{1}, ClusterKey{}, {box1}};
  const auto seeds = [&](std::vector<Endpoint> given) {
    now.join = std::move(given);
    keep_seeds_of_lost_invite(now, before);
    return now.join;
  };
  CHECK(seeds({box3}) == std::vector{box3});  // no invite is named any more
  now.invite_missing = Error{"key-missing", "there is no invite file"};
  CHECK(seeds({box3}) == std::vector{box3, box1});
  CHECK(seeds({box1, box3}) == std::vector{box1, box3});
  CHECK(seeds({}) == std::vector{box1});
  before.invite.reset();  // it was gone before
  CHECK(seeds({box3}) == std::vector{box3});
  CHECK(seeds({}) == before.join);
}

TEST_CASE("a flag without a value takes none of the next flag, nor nothing") {
  const std::string join = "--join has no value", way_out = "`gossipctl invite` on a member";
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--join", "--data", "x"}, {"--join", ""}, {"--join=", "x"}}) {
    CHECK(mentions(mistake(words), join));
    CHECK(mentions(mistake(words), way_out));
  }
  CHECK(mentions(mistake({"--join", "--data", "x"}), "'--data' follows it"));
  CHECK(mentions(mistake({"--key-file", "--data", "x"}), "--key-file=--data if that is"));
  CHECK(mentions(mistake({"--data=", "x"}), "--data has no value"));
  const auto line = read({"--data=--x"});
  REQUIRE(line);
  CHECK(line->config.data_dir.ends_with("--x"));
}

TEST_CASE("several mistakes are one line of the log") {
  const TemporaryDirectory directory;
  const std::string file = directory.write("node.toml", "odd = 1\neven = 2\n");
  const auto line = read({"--config", file});
  REQUIRE_FALSE(line);
  const std::string text = mistakes_in_log(line.error());
  CHECK(mentions(text, "odd"));
  CHECK(mentions(text, "; " + file + ":2: even"));
  CHECK_FALSE(mentions(text, "\n"));
}

TEST_CASE("a refusal comes in the log's format, wherever that was asked for") {
  const TemporaryDirectory directory;
  const std::string file = directory.write("node.toml", "[log]\nformat = \"logfmt\"\nodd = 1\n");
  using Words = std::vector<std::string>;
  const auto format = [](const Words& words, const Environment& environment = {}) {
    return config_of_refusal(words, environment).log_format;
  };
  CHECK(format({"--bogus"}) == LogFormat::text);
  CHECK(format({"--config", file}) == LogFormat::logfmt);
  CHECK(format({}, {{"GOSSIPD_CONFIG", file}, {"GOSSIPD_LOG_FORMAT", "json"}}) == LogFormat::json);
  CHECK(format({"--set", "log.format=json", "--config=" + file}) == LogFormat::json);
  CHECK(format({"--log-format=text", "--set=log.format=json"}) == LogFormat::text);
  CHECK(format({"--set", "log.format=yaml"}) == LogFormat::text);
}

TEST_CASE("a FIFO or a directory in place of a file is refused, and nobody waits for it") {
  const TemporaryDirectory directory;
  const std::string fifo = (directory.path() / "fifo").string();
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  for (const char* flag : {"--config", "--job", "--key-file", "--rest-token-file"}) {
    CAPTURE(std::string(flag));
    CHECK(mentions(mistake({flag, fifo}), fifo + ": is a FIFO"));
    CHECK(mentions(mistake({flag, directory.path().string()}), "is a directory"));
  }
  CHECK(mentions(mistake({"--set", "peer_tls.ca=" + fifo}), "peer_tls.ca: " + fifo));
}

TEST_CASE("an address with more than one colon needs brackets") {
  for (const char* address : {"foo:bar:3", "::1", "2001:db8::1:7610"})
    for (const char* flag : {"--join", "--listen", "--advertise"}) {
      CAPTURE(std::string(address));
      const std::string text = mistake({flag, address});
      CHECK(mentions(text, address));
      CHECK(mentions(text, "needs brackets"));
    }
  CHECK(mentions(mistake({"--rest", "::1"}), "[::1]:7611"));
}

TEST_CASE("an unknown GOSSIPD_ variable is a warning, not an error") {
  const auto line = read({}, {{"GOSSIPD_NAMME", "x"}});
  REQUIRE(line);
  REQUIRE(line->warnings.size() == 1);
  CHECK(mentions(line->warnings[0], "GOSSIPD_NAMME"));
  CHECK(mentions(line->warnings[0], "did you mean GOSSIPD_NAME"));
}

TEST_CASE("every bad value is refused with its name, the reason and a way out") {
  const std::vector<std::vector<std::string>> bad = {{"--set", "exchange.codec=int7"},
                                                     {"--set", "exchange.mixing=-1"},
                                                     {"--set", "exchange.threshold=nan"},
                                                     {"--set", "exchange.enabled=maybe"},
                                                     {"--set", "membership.links=0"},
                                                     {"--set", "membership.tick_ms=0"},
                                                     {"--set", "exchange.round_steps=1.5"},
                                                     {"--shard", "0/3"},
                                                     {"--shard", "4/3"},
                                                     {"--shard", "3"},
                                                     {"--rest", "nowhere:70000"},
                                                     {"--join", "bad host"},
                                                     {"--listen", "box:port"},
                                                     {"--log-level", "loud"},
                                                     {"--device", "tpu"},
                                                     {"--threads", "-1"},
                                                     {"--trainer-min-step-ms", "fast"},
                                                     {"--exchange", "perhaps"},
                                                     {"--name", "two words"},
                                                     {"--name", "caf\xe9"},
                                                     {"--name", "a\x1b[31m"},
                                                     {"--name", "a=b"},
                                                     {"--join", "caf\xe9"},
                                                     {"--set", "log.level=\xff"},
                                                     {"--advertise", "b\x1bx:1"},
                                                     {"--set", "no-value"},
                                                     {"--config", "/does/not/exist.toml"}};
  for (const auto& arguments : bad) {
    const std::string text = mistake(arguments);
    CAPTURE(arguments);
    CAPTURE(text);
    CHECK_FALSE(text.empty());
    CHECK(mentions(text, ";"));  // "what: why; way out"
  }
}

TEST_CASE("settings that contradict each other are refused") {
  CHECK(mentions(mistake({"--set", "membership.links=20", "--set", "membership.links_max=12"}),
                 "links_max"));
  CHECK(mentions(mistake({"--set", "membership.links=1", "--set", "membership.links_max=1"}),
                 "let no third one in"));
  CHECK(mentions(mistake({"--state-dir", ""}), "is empty; give a directory"));
  CHECK(mentions(mistake({"--set", "membership.suspect_after_ms=20000"}), "fail_after_ms"));
  CHECK(mentions(mistake({"--key-file", "none", "--listen", "0.0.0.0"}), "beyond loopback"));
  CHECK(mentions(mistake({"--rest", "0.0.0.0:7611"}), "token"));
  CHECK(mistake({"--rest", "unix:/run/gossipd.sock"}).empty());
  CHECK(mentions(mistake({"--set", "rest.certificate=/etc/box1.pem"}), "rest.key"));
  const std::vector<std::string> certificates = {"--set", "peer_tls.ca=ca.pem",
                                                 "--set", "peer_tls.certificate=box1.pem",
                                                 "--set", "peer_tls.key=box1.key"};
  CHECK(mistake(certificates).empty());
  CHECK(mentions(mistake({certificates.begin(), certificates.end() - 2}), "peer_tls.key"));
  for (const char* key : {"cluster.key", "none"}) {
    std::vector<std::string> both = certificates;
    both.insert(both.end(), {"--key-file", key});
    CHECK(mentions(mistake(both), "exclude each other"));
  }
}

TEST_CASE("two listeners on one port are refused before anything is made") {
  using Words = std::vector<std::string>;
  for (const auto& [listen, rest] :
       {std::pair("127.0.0.1:7700", "127.0.0.1:7700"), std::pair("0.0.0.0:7700", "localhost:7700"),
        std::pair("*:7700", "127.0.0.1:7700"), std::pair("localhost:7700", "127.0.0.1:7700"),
        std::pair("[::]:7700", "127.0.0.1:7700")})
    CHECK(mentions(mistake({"--listen", listen, "--rest", rest}),
                   "is the port of listen (" + std::string(listen) + ") too"));
  CHECK(mentions(mistake({"--rest", "127.0.0.1:7610"}), "rest.listen: 127.0.0.1:7610"));
  CHECK(mentions(mistake({"--rest", "127.0.0.1:7700", "--metrics-listen", "0.0.0.0:7700"}),
                 "metrics.listen: 0.0.0.0:7700 is the port of rest.listen (127.0.0.1:7700) too"));
  for (const Words& words : {Words{"--listen", "127.0.0.1:0", "--rest", "127.0.0.1:0"},
                             Words{"--listen", "127.0.0.1:7700", "--rest", "[::1]:7700"},
                             Words{"--listen", "0.0.0.0:7700", "--rest", "[::1]:7700"},
                             Words{"--listen", "127.0.0.2:7700", "--rest", "127.0.0.1:7700"},
                             Words{"--listen", "0.0.0.0:7700", "--rest", "unix:/run/gossipd.sock"}})
    CHECK(mistake(words).empty());
}

TEST_CASE("the output of --check-config reads back as the same configuration") {
  const TemporaryDirectory directory;
  const auto first =
      read({"--name", "box1", "--join", "a", "--join", "b:1", "--shard", "2/5", "--set",
            "exchange.codec=top_k:31", "--set", "exchange.threshold=0.123", "--set",
            "membership.ping_ms=233.33333", "--exchange", "off", "--check-config"});
  REQUIRE(first);
  CHECK(first->action == CommandLine::Action::check_config);
  const std::string text = to_toml(first->config);
  const auto second = read({"--config", directory.write("again.toml", text)});
  REQUIRE_MESSAGE(second, (second ? std::string() : second.error().text));
  CHECK(to_toml(second->config) == text);
}

TEST_CASE("every setting has a default that it accepts itself, and help") {
  DaemonConfig config;
  for (const Setting& s : settings_of(config)) {
    CAPTURE(s.key);
    CHECK_FALSE(s.help.empty());
    if (!s.get().empty()) CHECK_FALSE(s.set(s.get()).has_value());
  }
}

TEST_CASE("the reference in daemon/README.md lists every setting with its default") {
  DaemonConfig config;
  const std::string readme = read_file(GOSSIPD_SOURCE_DIR "/daemon/README.md");
  for (const Setting& s : settings_of(config)) {
    CAPTURE(s.key);
    const std::size_t at = readme.find("| `" + s.key + "` |");
    REQUIRE(at != std::string::npos);
    const std::string line = readme.substr(at, readme.find('\n', at) - at);
    if (!s.get().empty()) CHECK(mentions(line, "`" + s.get() + "`"));
  }
}

TEST_CASE("help and version are printed without reading any file") {
  const auto help = read({"--help", "--config", "/does/not/exist"});
  REQUIRE(help);
  CHECK(help->action == CommandLine::Action::print_and_exit);
  CHECK(mentions(help->output, "--key-file"));
  CHECK(mentions(read({"--version"})->output, GOSSIPD_VERSION));
}

TEST_CASE("a node advertises loopback only among seeds that are loopback") {
  const Endpoint everywhere{"0.0.0.0", 7610};
  const auto chosen = [](const Endpoint& bound, const std::vector<Endpoint>& seeds) {
    return choose_advertised(bound, seeds, own_address_towards(seeds));
  };
  const std::string own = chosen(everywhere, {}).host;  // of an interface, if any is up
  CHECK(chosen({"10.0.0.1", 7610}, {{"127.0.0.1", 7611}}) == Endpoint{"10.0.0.1", 7610});
  for (const char* loop : {"127.0.0.1", "localhost"})
    CHECK(chosen(everywhere, {{loop, 7611}}).host == "127.0.0.1");
  // As a box's own name, which its hosts file may lead to loopback, in the list of all boxes.
  CHECK(chosen(everywhere, {{"0", 7610}}) == Endpoint{own, 7610});
  CHECK(chosen(everywhere, {{"127.0.0.1", 7610}, {"0", 7610}}).host == own);
}

TEST_CASE("of names whose server is silent one is asked for, and after it addresses alone") {
  static std::vector<std::string> asked;
  const auto silent = [](const char* host, const char* service, const addrinfo* hints,
                         addrinfo** found) {
    if (hints->ai_flags == AI_NUMERICHOST) return ::getaddrinfo(host, service, hints, found);
    asked.emplace_back(host);
    return EAI_AGAIN;
  };
  CHECK(!own_address_towards({{"a", 1}, {"b", 1}, {"127.0.0.1", 1}, {"c", 1}}, silent));
  CHECK(asked == std::vector<std::string>{"a"});
  asked.clear();
  const auto unknown = [](const char* host, const char*, const addrinfo*, addrinfo**) {
    asked.emplace_back(host);
    return EAI_NONAME;
  };
  CHECK(!own_address_towards({{"a", 1}, {"b", 1}}, unknown));
  CHECK(asked == std::vector<std::string>{"a", "b"});
}

TEST_CASE("a node knows which addresses lead back to itself") {
  const Endpoint advertised{"box1.example", 7610};
  const std::vector<Endpoint> everywhere = {{"::", 7610}}, loopback = {{"127.0.0.1", 7610}},
                              one = {{"10.0.0.1", 7610}};
  CHECK(leads_to(advertised, advertised, one));
  CHECK(leads_to({"10.0.0.1", 7610}, advertised, one));
  CHECK(!leads_to({"10.0.0.1", 7611}, advertised, one));
  CHECK(!leads_to({"127.0.0.1", 7610}, advertised, one));
  CHECK(!leads_to({"box2", 7610}, advertised, everywhere));
  CHECK(!leads_to({"192.0.2.1", 7610}, advertised, everywhere));
  for (const char* host : {"127.0.0.1", "127.0.1.1", "localhost", "::1"})
    CHECK(leads_to({host, 7610}, advertised, everywhere));
  CHECK(!leads_to({"127.0.0.1", 7609}, advertised, everywhere));
  CHECK(leads_to({"localhost", 7610}, advertised, loopback));
  CHECK(!leads_to({"127.0.0.2", 7610}, advertised, loopback));
}
