// How deeply a text nests, before a parser recurses on it.
#include <doctest/doctest.h>

#include <string>

#include "core/base/nesting.h"

using namespace gossipd;

TEST_CASE("JSON nests as deep as its brackets, but for those in strings") {
  CHECK_FALSE(json_nests_deeper("[[1], {\"a\": []}]", 3));
  CHECK(json_nests_deeper("[[1], {\"a\": [[]]}]", 3));
  CHECK_FALSE(json_nests_deeper(R"(["[[[[", "\"[[[[", "\\", "]]]]"])", 1));
  CHECK(json_nests_deeper(R"(["\\", [1]])", 1));
  CHECK(json_nests_deeper(std::string(100'000, '{')));
  CHECK_FALSE(json_nests_deeper(""));
  CHECK_FALSE(json_nests_deeper("]]]]["));
}

TEST_CASE(
    "a TOML key has as many parts as dots divide it into, but for dots in quotes, numbers and "
    "comments") {
  CHECK_FALSE(toml_key_is_longer("a.b.c = 1\n[d.e.f]\n", 3));
  CHECK(toml_key_is_longer("a.b.c.d = 1", 3));
  CHECK(toml_key_is_longer("[a . b. \"c\" .d]", 3));
  CHECK(toml_key_is_longer("x = {a.b.c.d = 1}", 3));
  CHECK_FALSE(toml_key_is_longer("x = [0.1, 0.2, 0.3, 0.4, 0.5]", 3));
  CHECK_FALSE(toml_key_is_longer("a.\"b.c.d.e.f\".g = '1.2.3.4.5'", 3));
  CHECK_FALSE(toml_key_is_longer("a = 1 # a.b.c.d.e\nb = 2", 3));
  CHECK_FALSE(toml_key_is_longer("a = \"\"\"\n1.2.3.4\n\"5.6.7.8\\\"\"\"\"\"\nb = 1", 3));
  // a quote before the end belongs to the text
  CHECK(toml_key_is_longer("x = {y = \"\"\"a\"\"\"\", a.b.c.d = 1}", 3));
  CHECK(toml_key_is_longer("s = \"never ends\na.b.c.d = 1", 3));  // a line ends it
  CHECK_FALSE(toml_key_is_longer("s = \"\\", 3));
}
