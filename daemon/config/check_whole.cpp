#include "daemon/config/check_whole.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/balance/settings.h"
#include "core/base/printable.h"
#include "core/exchange/settings.h"
#include "daemon/config/advertise.h"
#include "daemon/config/settings.h"
#include "models/devices/device_names.h"

namespace gossipd {

namespace {

Error bad_config(std::string text) { return Error{"bad-config", std::move(text)}; }

std::optional<Error> check_device(const std::string& device) {
  const auto devices = split_devices(device);
  if (devices) return std::nullopt;
  return bad_config("trainer.device: " + devices.error().text);
}

std::optional<Error> check_name(const std::string& name) {
  const bool spoils_lines = std::ranges::any_of(name, [](char c) {
    return static_cast<unsigned char>(c) <= 0x20 || c == '"' || c == '=' || c == ',';
  });
  if (spoils_lines || printable(name) != name)
    return bad_config("name: '" + name +
                      "' holds a space, a quote, ',', '=' or a control character; use letters, "
                      "digits, '-' and '.'");
  if (name.starts_with('-') || name == "*" || name == "." || name == "..")
    return bad_config("name: '" + name +
                      "' reads as an option, a path or every name; begin with a letter");
  if (name.size() > name_bytes_max)
    return bad_config("name: is longer than " + std::to_string(name_bytes_max) +
                      " bytes; shorten it");
  return std::nullopt;
}

std::optional<Error> check_membership(const MembershipPolicy& m) {
  const auto ordered = [](const char* less, Duration a, const char* more,
                          Duration b) -> std::optional<Error> {
    if (a <= b) return std::nullopt;
    return bad_config(std::string("membership.") + less + " is longer than membership." + more +
                      "; make it shorter");
  };
  if (m.links_max != 0 && m.links > m.links_max)
    return bad_config("membership.links (" + std::to_string(m.links) +
                      ") is more than membership.links_max (" + std::to_string(m.links_max) +
                      "); raise links_max");
  if (m.links_max == 1)
    return bad_config(
        "membership.links_max is 1, so that two nodes that are linked let no third one in; give 2 "
        "or more, or 0 for one more than membership.links");
  if (auto e = ordered("ping_ms", m.ping, "suspect_after_ms", m.suspect_after)) return e;
  if (auto e = ordered("suspect_after_ms", m.suspect_after, "fail_after_ms", m.fail_after))
    return e;
  return ordered("redial_min_ms", m.redial_min, "redial_max_ms", m.redial_max);
}

std::optional<Error> check_peer_tls(const DaemonConfig& c) {
  const PeerCertificateFiles& files = c.peer_tls;
  const int given = static_cast<int>(!files.ca.empty()) +
                    static_cast<int>(!files.certificate.empty()) +
                    static_cast<int>(!files.key.empty());
  if (given != 0 && given != 3)
    return bad_config(
        "peer_tls.ca, peer_tls.certificate and peer_tls.key belong together: give all three, or "
        "none and a key file");
  if (given == 3 && !c.key_file.empty())
    return bad_config(
        "key_file and peer_tls.* exclude each other: a cluster has a key or certificates; leave "
        "one of them out, on every node the same");
  return std::nullopt;
}

std::optional<Error> check_invite(const DaemonConfig& c) {
  if (!c.invite) return std::nullopt;
  if (!c.key_file.empty())
    return bad_config("join: an invite holds the cluster's key, so key_file (" + c.key_file +
                      ") has no place beside it; leave one of them out");
  if (!c.peer_tls.ca.empty())
    return bad_config(
        "join: an invite is of a cluster with a key, so peer_tls.* has no place beside it; leave "
        "one of them out");
  return std::nullopt;
}

std::optional<Error> check_bootstrap(const DaemonConfig& c) {
  if (c.ordinal == 0u && c.invite)
    return bad_config(
        "bootstrap: node 0 founds the cluster, but an invite is to one that exists; leave out "
        "--bootstrap to join it, or give addresses and a --key-file");
  if (!c.ordinal || !c.join.empty() || c.invite_missing) return std::nullopt;
  return bad_config(
      "bootstrap: `join` names nobody; give every node the addresses of all, for example --join "
      "gossipd-0.gossipd --join gossipd-1.gossipd, so that no second cluster is ever founded");
}

// Both cannot be: the second one would not be bound. `localhost` is where listening takes it to be.
bool share_a_port(const Endpoint& one, const Endpoint& other) {
  if (one.port == 0 || one.port != other.port) return false;
  const auto host_of = [](const Endpoint& where) {
    return where.host == "localhost" ? std::string("127.0.0.1") : where.host;
  };
  const auto takes_all = [](const Endpoint& every, const Endpoint& where) {
    const bool is_v6 = where.host.find(':') != std::string::npos && where.host != "::";
    return is_every_address(every) && !(every.host == "0.0.0.0" && is_v6);
  };
  return host_of(one) == host_of(other) || takes_all(one, other) || takes_all(other, one);
}

std::optional<Error> check_ports(const DaemonConfig& c, const std::optional<Endpoint>& rest) {
  const Endpoint listen =
      c.listen.value_or(Endpoint{c.key_file == "none" ? "127.0.0.1" : "*", peer_port_default});
  std::vector<std::pair<std::string, Endpoint>> taken = {{"listen", listen}};
  for (const auto& [key, where] :
       {std::pair(std::string("rest.listen"), rest), {"metrics.listen", c.metrics_listen}}) {
    if (!where) continue;
    for (const auto& [first, before] : taken)
      if (share_a_port(before, *where))
        return bad_config(key + ": " + to_string(*where) + " is the port of " + first + " (" +
                          to_string(before) + ") too; give one of them another port");
    taken.emplace_back(key, *where);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Error> check_whole(const DaemonConfig& c) {
  if (auto e = check_name(c.name)) return e;
  if (auto e = check_device(c.device)) return e;
  if (auto e = check_membership(c.membership)) return e;
  if (auto e = check_peer_tls(c)) return e;
  if (auto e = check_invite(c)) return e;
  if (auto e = check_bootstrap(c)) return e;
  if (const auto mistake = exchange_mistake(c.exchange)) return bad_config(*mistake);
  if (const auto mistake = balance_mistake(c.balance)) return bad_config(*mistake);
  if (c.key_file == "none" && c.listen && !is_loopback(*c.listen))
    return bad_config(
        "listen: " + to_string(*c.listen) +
        " is beyond loopback, but without a key everything travels in plain; listen on 127.0.0.1, "
        "or give a key (gossipctl key generate FILE, then --key-file FILE on every node) or "
        "certificates (peer_tls.*)");
  Endpoint rest;
  const bool rest_on_tcp = c.rest != "none" && !c.rest.starts_with("unix:") &&
                           parse_endpoint(c.rest, rest_port_default, rest);
  if (rest_on_tcp && !is_loopback(rest) && c.rest_token_file.empty())
    return bad_config("rest.listen: " + c.rest +
                      " is beyond loopback, where everybody could steer this node; "
                      "use 127.0.0.1 or unix:PATH, or set rest.token_file");
  if (auto e = check_ports(c, rest_on_tcp ? std::optional(rest) : std::nullopt)) return e;
  if (c.rest_certificate.empty() != c.rest_key.empty())
    return bad_config(
        "rest.certificate and rest.key belong together: give both, or neither and the node makes "
        "its own");
  if (c.rest_tls == "on" && c.rest.starts_with("unix:"))
    return bad_config("rest.tls: there is no TLS at a Unix socket (" + c.rest +
                      "), which is this user's alone; leave it out, or let rest.listen be "
                      "HOST:PORT");
  return std::nullopt;
}

std::vector<std::string> warn_of_unused(const DaemonConfig& c) {
  Endpoint rest;
  if (c.rest_certificate.empty() || c.rest == "none" || c.rest_tls == "on") return {};
  if (c.rest.starts_with("unix:"))
    return {"rest.certificate and rest.key have no effect: there is no TLS at a Unix socket (" +
            c.rest + "); leave them out"};
  if (!parse_endpoint(c.rest, rest_port_default, rest) || !is_loopback(rest)) return {};
  return {"rest.certificate and rest.key have no effect: on loopback (" + c.rest +
          ") REST is plain HTTP; set rest.tls to on, or leave them out"};
}

std::vector<std::string> settings_of_own_training(DaemonConfig config) {
  DaemonConfig usual;
  const std::vector<Setting> given = settings_of(config), defaults = settings_of(usual);
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::string& key = given[i].key;
    if ((key.starts_with("trainer.") || key.starts_with("balance.")) && key != "trainer.socket" &&
        given[i].get() != defaults[i].get())
      keys.push_back(key);
  }
  return keys;
}

}  // namespace gossipd
