// tools/gossipctl/lists.h - the commands that list many of a kind, and how a person names one.
#pragma once

#include <string>

#include "tools/gossipctl/answers.h"
#include "tools/gossipctl/commands.h"

namespace gossipd {

ExitCode show_members(const DaemonClient&, Console&);
ExitCode show_links(const DaemonClient&, Console&);
ExitCode list_keys(const DaemonClient&, Console&);

// The node asked first, then members that live, then the others, each by name.
[[nodiscard]] std::vector<Json> in_useful_order(const Json& members);

// The last that was heard of it; "-" of one that has gone, which nobody reaches now.
[[nodiscard]] std::string present_reachability(const Json& member);

// The id behind `word`: an id, a name, or what only one of them begins with.
struct Chosen {
  std::string id;
  std::optional<Failure> failure;
};
[[nodiscard]] Chosen choose_member(const DaemonClient&, const std::string& word);
[[nodiscard]] Chosen choose_key(const DaemonClient&, const std::string& word);

// `json` as names and values, "trainer.state" for what is within: for programs that read no JSON.
void print_flat(std::ostream& out, const Json& json);

}  // namespace gossipd
