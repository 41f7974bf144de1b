#include "tools/gossipctl/invite.h"

#include "net/peer/invite.h"
#include "net/peer/keyring.h"
#include "tools/gossipctl/answers.h"

namespace gossipd {

namespace {

bool on_loopback(const Endpoint& endpoint) {
  return endpoint.host == "localhost" || endpoint.host == "::1" ||
         endpoint.host.starts_with("127.");
}

// This node first, then others that live, of which one may still be there when it is not.
std::vector<Endpoint> seeds_of(const Json& status, const Json& members) {
  std::vector<Endpoint> seeds;
  const auto add = [&seeds](const std::string& address) {
    Endpoint seed;
    if (seeds.size() >= invite_seeds_max || !parse_endpoint(address, peer_port_default, seed))
      return;
    if (std::find(seeds.begin(), seeds.end(), seed) == seeds.end()) seeds.push_back(seed);
  };
  add(text(status, "address"));
  for (const Json& member : list(members, "members"))
    if (text(member, "state") == "alive") add(text(member, "address"));
  return seeds;
}

Failure no_key(const Error& error, const std::string& path) {
  if (error.code == "key-missing")
    return {ExitCode::not_found, "there is no key " + path,
            "the daemon runs on another machine, or its cluster has certificates or no key",
            "run this on the daemon's machine, or name the cluster's key with --key-file FILE"};
  return {ExitCode::failed, error.text, "",
          "run this as the user of gossipd (sudo), or name the key with --key-file FILE"};
}

// A file from another cluster, or from before the key was changed, would let nobody in.
std::optional<Failure> not_of_daemon(const DaemonClient& client, std::uint64_t id,
                                     const std::string& path) {
  const Asked keys = ask(client, "/v1/keys");
  if (keys.failure) return keys.failure;
  std::string held;
  for (const Json& key : list(keys.json, "keys")) {
    if (text(key, "id") == to_hex(id)) return std::nullopt;
    held += (held.empty() ? "" : ", ") + text(key, "id");
  }
  return Failure{ExitCode::usage,
                 "the key in " + path + " (" + to_hex(id) + ") is none of the daemon's (" + held +
                     "), so nobody could join with it",
                 "the daemon has its key from another file (key_file)",
                 "name that file with --key-file FILE"};
}

}  // namespace

ExitCode invite(const DaemonClient& client, Console& console, const InviteRequest& request) {
  const Asked status = ask(client, "/v1/status");
  if (status.failure) return fail(console, *status.failure);
  const Asked members = ask(client, "/v1/members");
  if (members.failure) return fail(console, *members.failure);
  std::uint64_t cluster = 0;
  const std::vector<Endpoint> seeds = seeds_of(status.json, members.json);
  if (!from_hex(text(status.json, "cluster_id"), cluster) || cluster == 0 || seeds.empty())
    return fail(console, {ExitCode::refused_by_state, "this node belongs to no cluster yet", "",
                          "gossipctl wait --for ready"});
  const std::string path =
      request.key_file.empty() ? text(status.json, "state_dir") + "/cluster.key" : request.key_file;
  const Result<Keyring> keys = read_keyring(path);
  if (!keys) return fail(console, no_key(keys.error(), path));
  if (const auto other = not_of_daemon(client, keys->in_use().id, path))
    return fail(console, *other);
  const std::string word = format_invite({ClusterId{cluster}, keys->in_use(), seeds});
  const std::string line = "gossipd --join " + word;
  if (!request.to_file.empty()) {
    if (const auto error = write_secret_file(request.to_file, SecretText(line + "\n"), Replace::no))
      return fail(console, {ExitCode::failed, error->text, "", ""});
    print_path(console, "file", request.to_file);
    console.err << "take it to another box: gossipd --join @FILE --data DIR\n";
  } else if (console.output == Output::json) {
    Json addresses = Json::array();
    for (const Endpoint& seed : seeds) addresses.push_back(to_string(seed));
    console.out << Json{{"invite", word}, {"addresses", addresses}}.dump() << '\n';
  } else {
    console.out << line << '\n';
  }
  console.err << "whoever has it is a member of the cluster, until its key is changed (gossipctl "
                 "key)\n";
  if (std::all_of(seeds.begin(), seeds.end(), on_loopback))
    console.err << "it works on this machine only: " << to_string(seeds.front())
                << " is loopback; start gossipd with --listen or --advertise HOST:PORT for other "
                   "boxes\n";
  return ExitCode::ok;
}

}  // namespace gossipd
