#include "net/addresses.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <map>
#include <memory>
#include <set>
#include <string>

namespace gossipd {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// connections that the kernel holds until accepted; it may allow fewer
constexpr int listen_backlog = 1024;

// Shared by the waiting coroutines and the resolver's completion, whichever ends last.
struct LookUp {
  std::set<asio::steady_timer*> waiting;
  bool answered = false;
  bool wanted = true;  // the LookUps are there
  error_code error;
  std::vector<asio::ip::address> found;
};

Error resolve_error(const Endpoint& host, const std::string& why) {
  return Error{"resolve", "cannot find the address of '" + host.host + "': " + why};
}

Error listen_error(const Endpoint& where, const error_code& error) {
  std::string text = "cannot listen on " + to_string(where) + ": " + error.message();
  if (error == asio::error::address_in_use) {
    text +=
        "; another process (perhaps another gossipd) uses the port: stop it, or choose another "
        "port, or port 0 for any";
  } else if (error == asio::error::access_denied) {
    text += "; ports below 1024 need privileges: choose a higher one";
  } else if (error == boost::system::errc::address_not_available) {
    text += "; this host has no such address: use one that 'ip address' shows, or '*' for all";
  }
  return Error{"listen", text};
}

// No other address can be bound. False as well where no descriptor is left.
bool is_of_this_machine(const asio::ip::address& address) {
  const tcp::endpoint there(address, 0);
  const int probe = ::socket(there.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return false;
  const bool bound = ::bind(probe, there.data(), static_cast<socklen_t>(there.size())) == 0;
  ::close(probe);
  return bound;
}

}  // namespace

Endpoint to_endpoint(const tcp::endpoint& address) {
  const auto& ip = address.address();
  if (ip.is_v6() && ip.to_v6().is_v4_mapped()) {
    return Endpoint{asio::ip::make_address_v4(asio::ip::v4_mapped, ip.to_v6()).to_string(),
                    address.port()};
  }
  return Endpoint{ip.to_string(), address.port()};
}

bool is_loopback(const asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).is_loopback();
  }
  return address.is_loopback();
}

std::vector<tcp::endpoint> own_last(std::vector<tcp::endpoint> addresses,
                                    const std::vector<Endpoint>& listening) {
  const auto leads_here = [&](const tcp::endpoint& there) {
    return std::ranges::any_of(listening, [&](const Endpoint& own) {
      if (own.port != there.port()) return false;
      const bool everywhere = own.host == "::" || own.host == "0.0.0.0";
      return everywhere ? is_of_this_machine(there.address()) : own == to_endpoint(there);
    });
  };
  if (addresses.size() > 1)
    // not that of std::ranges: clang 14, which builds the fuzz targets, can't compile it
    std::stable_partition(addresses.begin(), addresses.end(),
                          [&](const auto& there) { return !leads_here(there); });
  return addresses;
}

Source source_of(const asio::ip::address& address) {
  if (address.is_v4()) return Source{false, address.to_v4().to_uint()};
  const asio::ip::address_v6 v6 = address.to_v6();
  if (v6.is_v4_mapped())
    return Source{false, asio::ip::make_address_v4(asio::ip::v4_mapped, v6).to_uint()};
  Source source{true, 0};
  const auto bytes = v6.to_bytes();
  for (std::size_t i = 0; i < 8; ++i) source.network = source.network << 8 | bytes[i];
  return source;
}

std::optional<Source> source_of(const std::string& host) {
  error_code not_numeric;
  const auto address = asio::ip::make_address(host, not_numeric);
  return not_numeric ? std::nullopt : std::optional(source_of(address));
}

struct LookUps::State {
  explicit State(asio::io_context& io_in) : io(io_in) {}

  // With the fewest names under way.
  asio::thread_pool& free_lane() {
    std::map<asio::thread_pool*, std::size_t> load;
    for (const auto& pool : pools) load[pool.get()] = 0;
    for (const auto& [host, running] : names) ++load[running.lane];
    const auto least = std::ranges::min_element(load, {}, [](const auto& l) { return l.second; });
    if (least != load.end() && (least->second == 0 || pools.size() == lanes)) return *least->first;
    return *pools.emplace_back(std::make_unique<asio::thread_pool>(1));
  }

  // Null: the system has no thread left for it.
  std::shared_ptr<LookUp> begin(const std::string& host) {
    try {
      return begin_on(free_lane(), host);
    } catch (const boost::system::system_error&) {
      names.erase(host);
      return nullptr;
    }
  }

  std::shared_ptr<LookUp> begin_on(asio::thread_pool& lane, const std::string& host) {
    Running& running = names[host];
    running = {std::make_shared<LookUp>(), &lane, std::make_unique<tcp::resolver>(lane)};
    running.resolver->async_resolve(
        host, "",
        asio::bind_executor(io, [this, host, lookup = running.lookup](const error_code& error,
                                                                      const auto& results) {
          lookup->answered = true;
          lookup->error = error;
          for (const auto& entry : results) lookup->found.push_back(entry.endpoint().address());
          for (asio::steady_timer* waiting : lookup->waiting) waiting->cancel();
          if (lookup->wanted) names.erase(host);
        }));
    return running.lookup;
  }

  ~State() {
    for (auto& [host, running] : names) running.lookup->wanted = false;
  }

  struct Running {
    std::shared_ptr<LookUp> lookup;
    asio::thread_pool* lane = nullptr;
    std::unique_ptr<tcp::resolver> resolver;
  };
  asio::io_context& io;
  std::vector<std::unique_ptr<asio::thread_pool>> pools;  // made when they are needed
  std::map<std::string, Running> names;                   // under way
};

LookUps::LookUps(asio::io_context& io) : state_(std::make_unique<State>(io)) {}
// Waits for the system's resolver.
LookUps::~LookUps() = default;

asio::awaitable<Result<std::vector<tcp::endpoint>>> LookUps::resolve(
    Endpoint host, std::chrono::milliseconds timeout, asio::steady_timer& waiting) {
  error_code not_numeric;
  const auto numeric = asio::ip::make_address(host.host, not_numeric);
  if (!not_numeric) co_return std::vector<tcp::endpoint>{tcp::endpoint(numeric, host.port)};

  const auto under_way = state_->names.find(host.host);
  const bool asked = under_way != state_->names.end();
  if (!asked && state_->names.size() >= running_max)
    co_return Error{"too-many", "cannot look up '" + host.host + "': the name server leaves " +
                                    std::to_string(running_max) + " other names unanswered"};
  const auto lookup = asked ? under_way->second.lookup : state_->begin(host.host);
  if (!lookup)
    co_return Error{"short-of", "cannot look up '" + host.host +
                                    "': no thread can be started; raise this user's limit of "
                                    "processes (ulimit -u, pids.max)"};
  lookup->waiting.insert(&waiting);
  waiting.expires_after(timeout);
  (void)co_await waiting.async_wait(asio::as_tuple(asio::use_awaitable));
  lookup->waiting.erase(&waiting);
  if (!lookup->answered) co_return resolve_error(host, "the name server did not answer in time");
  if (lookup->error || lookup->found.empty()) {
    co_return resolve_error(host, lookup->error ? lookup->error.message() : "it has none");
  }
  std::vector<tcp::endpoint> found;
  for (const auto& address : lookup->found) found.emplace_back(address, host.port);
  co_return found;
}

Result<tcp::endpoint> listen_address(asio::io_context& io, const Endpoint& where) {
  if (where.host.empty() || where.host == "*") {
    error_code no_v6;
    tcp::acceptor probe(io);
    probe.open(tcp::v6(), no_v6);
    if (!no_v6) probe.bind(tcp::endpoint(asio::ip::address_v6::loopback(), 0), no_v6);
    return tcp::endpoint(no_v6 ? tcp::v4() : tcp::v6(), where.port);
  }
  if (where.host == "localhost") return tcp::endpoint(asio::ip::address_v4::loopback(), where.port);
  error_code error;
  const auto numeric = asio::ip::make_address(where.host, error);
  if (!error) return tcp::endpoint(numeric, where.port);
  tcp::resolver resolver(io);
  const auto results = resolver.resolve(where.host, std::to_string(where.port),
                                        tcp::resolver::numeric_service, error);
  if (error || results.empty()) {
    return Error{"listen", "cannot listen on " + to_string(where) + ": '" + where.host +
                               "' has no address here (" + error.message() + ")"};
  }
  return results.begin()->endpoint();
}

Result<tcp::acceptor> open_acceptor(asio::io_context& io, const tcp::endpoint& address) {
  error_code error;
  tcp::acceptor acceptor(io);
  acceptor.open(address.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error && address.address().is_v6() && address.address().is_unspecified()) {
    acceptor.set_option(asio::ip::v6_only(false), error);
  }
  if (!error) acceptor.bind(address, error);
  if (!error) acceptor.listen(listen_backlog, error);
  if (error) return listen_error(to_endpoint(address), error);
  return acceptor;
}

}  // namespace gossipd
