#include "models/job/toml_reader.h"

#include "core/base/did_you_mean.h"
#include "models_test_support.h"

using namespace gossipd;
using test::contains;

TEST_CASE("A TOML key that nobody asks for is an error that names its neighbour") {
  TomlReader reader("[optimizer]\nmomentm = 0.9\n", "job.toml");
  reader.table("optimizer").get_double("momentum", 0.5, 0, 1);
  const auto error = reader.finish();
  REQUIRE(error);
  CHECK(error->code == "bad-config");
  CHECK(error->text == "job.toml:2: optimizer.momentm: unknown key; did you mean 'momentum'?");
}

TEST_CASE("An unknown TOML key without a neighbour is answered with the known keys") {
  TomlReader reader("colour = 1\n", "job.toml");
  reader.root().get_integer("batch", 1);
  reader.root().get_string("name", "");
  CHECK(reader.finish()->text ==
        "job.toml:1: colour: unknown key; remove it, or use one of: batch, name");
}

TEST_CASE("A TOML table that nobody asks for is an unknown key") {
  TomlReader reader("[optimiser]\nmomentum = 1\n", "job.toml");
  reader.table("optimizer");
  CHECK(contains(reader.finish()->text, "did you mean 'optimizer'?"));
}

TEST_CASE("One run of the TOML reader shows every mistake, by line") {
  TomlReader reader("a = 'x'\nb = 7\nc = 'blue'\nd = 1\n", "f");
  TomlTable root = reader.root();
  root.get_choice("c", "red", {"red", "green"});
  root.get_integer("b", 1, 0, 5);
  root.get_bool("d", false);
  root.get_double("a", 1.0);
  CHECK(reader.finish()->text ==
        "f:1: a: must be a number, not a string; for example a = 1\n"
        "f:2: b: 7 is out of range; choose a value from 0 to 5\n"
        "f:3: c: 'blue' is not a choice; choose one of: red, green\n"
        "f:4: d: must be true or false (without quotes), not an integer");
}

TEST_CASE("Text that is not TOML is refused with its line, and nothing else is said about it") {
  TomlReader reader("a = 1\nb = = 2\n", "f");
  reader.root().require_string("name");
  const auto error = reader.finish();
  REQUIRE(error);
  CHECK(error->code == "bad-toml");
  CHECK(error->text.starts_with("f:2: this is not TOML"));
  CHECK(!contains(error->text, "name"));
}

TEST_CASE("TOML longer than the bound is not even parsed") {
  TomlReader reader(std::string(1001, '#'), "f", 1000);
  CHECK(reader.finish()->code == "bad-toml");
}

TEST_CASE("Infinity and NaN are not numbers for the TOML reader") {
  TomlReader reader("a = inf\nb = nan\n", "f");
  CHECK(reader.root().get_double("a", 2) == 2);
  CHECK(reader.root().get_double("b", 3) == 3);
  CHECK(reader.finish());
}

TEST_CASE("A string alone is a list of one for the TOML reader, and a long one is refused") {
  TomlReader reader("a = 'x'\nb = ['y', 'z']\nc = 7\nd = '" + std::string(5000, 'x') + "'\n", "f");
  TomlTable root = reader.root();
  CHECK(root.get_strings("a", {"w"}) == std::vector<std::string>{"x"});
  CHECK(root.get_strings("b", {}) == std::vector<std::string>{"y", "z"});
  CHECK(root.get_strings("c", {"w"}) == std::vector<std::string>{"w"});
  CHECK(root.get_strings("d", {"w"}) == std::vector<std::string>{"w"});
  const auto error = reader.finish();
  REQUIRE(error);
  CHECK(contains(error->text, "f:3: c: must be a list"));
  CHECK(contains(error->text, "f:4: d: "));
}

TEST_CASE("A TOML table asked for twice keeps what is known about it") {
  TomlReader reader("[t]\na = 1\nb = 2\n", "f");
  CHECK(reader.table("t").get_integer("a", 0) == 1);
  CHECK(reader.table("t").get_integer("b", 0) == 2);
  CHECK(!reader.finish());
}

TEST_CASE("Each table of a TOML list is read and checked by itself") {
  TomlReader reader("[[seed]]\nhost = 'a'\n[[seed]]\nhots = 'b'\n", "f");
  auto seeds = reader.root().tables("seed");
  REQUIRE(seeds.size() == 2);
  CHECK(seeds[0].get_string("host", "") == "a");
  CHECK(seeds[1].get_string("host", "none") == "none");
  CHECK(contains(reader.finish()->text, "f:4: seed[1].hots: unknown key; did you mean 'host'?"));
}

TEST_CASE("A key of another TOML type than a table is refused where a table is wanted") {
  TomlReader reader("model = 'cnn'\n", "f");
  CHECK(reader.table("model").get_string("kind", "mlp") == "mlp");
  CHECK(contains(reader.finish()->text, "model: must be a table"));
}

TEST_CASE("Control characters in a TOML key do not reach the terminal") {
  TomlReader reader("\"a\\u001b[31m\" = 1\n", "f");
  reader.root().get_bool("x", true);
  CHECK(!contains(reader.finish()->text, "\x1b"));
}

TEST_CASE("Did-you-mean forgives a swap of letters but no other word") {
  const std::vector<std::string> words{"momentum", "nesterov"};
  CHECK(did_you_mean("momnetum", words) == "momentum");
  CHECK(did_you_mean("batch", words).empty());
}

TEST_CASE("A key of more parts than any has is refused before tables are built within each other") {
  std::string dotted;
  while (dotted.size() < 60'000) dotted += "a.";
  for (const std::string& text :
       {dotted + "a = 1\n", "[" + dotted + "a]\n", "x = {" + dotted + "a = 1}\n"}) {
    TomlReader reader(text, "f");
    CHECK(contains(reader.finish()->text, "f: a key has more than 32 parts; shorten it"));
  }
  TomlReader deep("x = " + std::string(30'000, '['), "f");
  CHECK(contains(deep.finish()->text, "this is not TOML"));
}
