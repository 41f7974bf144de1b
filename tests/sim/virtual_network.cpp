#include "tests/sim/virtual_network.h"

#include <algorithm>

namespace gossipd::sim {
namespace {

constexpr Duration connect_timeout = std::chrono::seconds(5);
const char* const reset_words = "connection reset by peer";

}  // namespace

void VirtualNetwork::set_latency(Duration one_way) {
  default_.latency = one_way;
  for (auto& [hosts, way] : ways_) way.latency = one_way;
}

VirtualNetwork::Way& VirtualNetwork::way(std::size_t from, std::size_t to) {
  return ways_.try_emplace({from, to}, default_).first->second;
}

void VirtualNetwork::release(std::size_t from, std::size_t to) {
  way(from, to).held = false;
  for (const auto& [key, session] : sessions_)
    for (const int end : {0, 1})
      if (session->pair.hosts[end] == from && session->pair.hosts[1 - end] == to)
        schedule(session, end);
}

void VirtualNetwork::heal() {
  ways_.clear();
  for (const auto& [key, session] : sessions_)
    for (const int end : {0, 1}) schedule(session, end);
}

VirtualNetwork::Found VirtualNetwork::find(std::size_t host, SessionId id) const {
  const auto found = sessions_.find({host, id});
  if (found == sessions_.end()) return {};
  const Session& session = *found->second;
  return {found->second, session.pair.hosts[0] == host && session.pair.ids[0] == id ? 0 : 1};
}

void VirtualNetwork::dial(std::size_t from, std::size_t to, const Endpoint& endpoint) {
  const Duration there_and_back = way(from, to).latency + way(to, from).latency;
  const std::uint64_t life = handler_.life(from);  // a dial under way dies with its process
  events_.at(events_.now() + there_and_back, [this, from, to, endpoint, life] {
    if (handler_.life(from) != life) return;
    if (way(from, to).held || way(to, from).held) {
      events_.at(events_.now() + connect_timeout, [this, from, endpoint, life] {
        if (handler_.life(from) == life) handler_.dial_failed(from, endpoint, "timed out");
      });
    } else if (!handler_.is_up(to)) {
      handler_.dial_failed(from, endpoint, "connection refused");
    } else if (handler_.is_up(from)) {
      open(from, to, endpoint);
    }
  });
}

void VirtualNetwork::open(std::size_t from, std::size_t to, const Endpoint& endpoint) {
  const auto session = std::make_shared<Session>();
  session->pair = Pair{{from, to}, {SessionId{++next_session_}, SessionId{++next_session_}}};
  for (const int end : {0, 1})
    sessions_[{session->pair.hosts[end], session->pair.ids[end]}] = session;
  handler_.session_opened(from, session->pair.ids[0], true, endpoint);
  handler_.session_opened(to, session->pair.ids[1], false,
                          Endpoint{"node" + std::to_string(from), 40000});
}

bool VirtualNetwork::send(std::size_t from, SessionId id, Lane lane, SharedBytes message) {
  const Found found = find(from, id);
  if (!found) return false;
  if (found.session->broken) return true;
  Item item;
  item.lane = lane;
  item.message = std::move(message);
  push(found.session, found.end, std::move(item));
  return true;
}

void VirtualNetwork::push(const SessionPtr& session, int from, Item item) {
  const Way& w = way(session->pair.hosts[from], session->pair.hosts[1 - from]);
  std::deque<Item>& items = session->items[from];
  const Instant now = events_.now();
  const double bytes = item.message ? static_cast<double>(item.message->size()) : 0;
  session->free_at[from] = std::max(session->free_at[from], now) +
                           (w.bytes_per_s > 0 ? from_seconds(bytes / w.bytes_per_s) : Duration{});
  item.departs = session->free_at[from];
  item.arrives = item.departs + w.latency + from_seconds(seconds(w.jitter) * random_.uniform());
  // Control overtakes bulk that has not left yet.
  auto place = items.end();
  if (item.what == Item::What::message && item.lane == Lane::control)
    while (place != items.begin() && std::prev(place)->what == Item::What::message &&
           std::prev(place)->lane == Lane::bulk && std::prev(place)->departs > now)
      --place;
  items.insert(place, std::move(item));
  schedule(session, from);
}

// One event for the first item; the others wait for it, which keeps the order.
void VirtualNetwork::schedule(const SessionPtr& session, int from) {
  if (session->scheduled[from] || session->items[from].empty()) return;
  session->scheduled[from] = true;
  events_.at(session->items[from].front().arrives, [this, session, from] {
    session->scheduled[from] = false;
    arrive(session, from);
  });
}

void VirtualNetwork::arrive(const SessionPtr& session, int from) {
  const int to = 1 - from;
  const std::size_t sender = session->pair.hosts[from], receiver = session->pair.hosts[to];
  std::deque<Item>& items = session->items[from];
  if (items.empty() || way(sender, receiver).held) return;  // release() goes on
  if (session->open[to] && handler_.frozen_until(receiver) > events_.now()) {
    items.front().arrives = handler_.frozen_until(receiver);
    return schedule(session, from);
  }
  // it has overtaken the awaited item
  if (items.front().arrives > events_.now()) return schedule(session, from);
  const Item item = std::move(items.front());
  items.pop_front();
  if (!session->open[to]) {
    // A running machine answers an unknown segment with a reset, after its earlier messages; a dead
    // one does not answer.
    const bool ends_already = std::any_of(session->items[to].begin(), session->items[to].end(),
                                          [](const Item& i) { return i.what == Item::What::end; });
    if (session->open[from] && !ends_already && (!session->silent[to] || handler_.is_up(receiver)))
      say_end(session, to, reset_words);
    items.clear();
    return;
  }
  if (item.what == Item::What::end) {
    end_here(*session, to);
    handler_.session_closed(receiver, session->pair.ids[to], item.reason);
    return;
  }
  if (item.lane == Lane::bulk && session->open[from] && item.what == Item::What::message)
    handler_.bulk_sent(sender, session->pair.ids[from], item.message->size());
  if (item.what == Item::What::part)
    handler_.part_arrived(receiver, session->pair.ids[to]);
  else
    handler_.message_arrived(sender, receiver, session->pair.ids[to], item.lane, *item.message);
  schedule(session, from);
}

void VirtualNetwork::end_here(Session& session, int end) {
  session.open[end] = false;
  sessions_.erase({session.pair.hosts[end], session.pair.ids[end]});
}

void VirtualNetwork::say_end(const SessionPtr& session, int from, const std::string& reason) {
  Item item;
  item.what = Item::What::end;
  item.reason = reason;
  push(session, from, std::move(item));
}

void VirtualNetwork::close(std::size_t from, SessionId id, const std::string& reason) {
  const Found found = find(from, id);
  if (!found) return;
  end_here(*found.session, found.end);
  if (found.session->broken) return;
  // Sends waiting control first; waiting bulk stays.
  std::erase_if(found.session->items[found.end], [this](const Item& item) {
    return item.lane == Lane::bulk && item.departs > events_.now();
  });
  say_end(found.session, found.end, "closed by peer: " + reason);
}

void VirtualNetwork::truncate(Session& session, int from, std::size_t keep) {
  std::deque<Item>& items = session.items[from];
  if (keep >= items.size()) return;
  items.resize(keep + 1);
  if (items.back().what == Item::What::message) items.back().what = Item::What::part;
}

void VirtualNetwork::reset(const Pair& pair, bool first_hears, bool second_hears) {
  const Found found = find(pair.hosts[0], pair.ids[0]);
  if (!found) return;
  const bool hears[2] = {first_hears, second_hears};
  for (const int from : {0, 1}) {
    truncate(*found.session, from, random_.below(found.session->items[from].size() + 1));
    if (hears[1 - from]) say_end(found.session, from, reset_words);
  }
  found.session->broken = true;
}

void VirtualNetwork::reset_all() {
  std::set<SessionPtr> all;
  for (const auto& [key, session] : sessions_) all.insert(session);
  for (const SessionPtr& session : all) {
    for (const int end : {0, 1}) session->items[end].clear();
    for (const int end : {0, 1}) {
      if (!session->open[end]) continue;
      end_here(*session, end);
      handler_.session_closed(session->pair.hosts[end], session->pair.ids[end], reset_words);
    }
  }
}

void VirtualNetwork::host_down(std::size_t host, bool silently) {
  for (const Pair& pair : sessions_of(host))
    for (const int end : {0, 1}) {
      const Found found = find(host, pair.ids[end]);
      if (!found) continue;
      const bool told = !silently && !found.session->broken;
      truncate(*found.session, end, random_.below(found.session->items[end].size() + 1));
      end_here(*found.session, end);
      found.session->silent[end] = !told;
      if (told) say_end(found.session, end, reset_words);
    }
}

std::vector<VirtualNetwork::Pair> VirtualNetwork::sessions() const {
  std::vector<Pair> pairs;
  for (const auto& [key, session] : sessions_)
    if (session->open[0] && session->open[1] && key.second == session->pair.ids[0])
      pairs.push_back(session->pair);
  return pairs;
}

std::vector<VirtualNetwork::Pair> VirtualNetwork::sessions_of(std::size_t host) const {
  std::vector<Pair> pairs;
  for (auto it = sessions_.lower_bound({host, SessionId{}});
       it != sessions_.end() && it->first.first == host; ++it)
    pairs.push_back(it->second->pair);
  return pairs;
}

bool VirtualNetwork::is_open(std::size_t host, SessionId id) const {
  return sessions_.contains({host, id});
}

std::optional<std::size_t> VirtualNetwork::peer_of(std::size_t host, SessionId id) const {
  const Found found = find(host, id);
  if (!found) return std::nullopt;
  return found.session->pair.hosts[1 - found.end];
}

bool VirtualNetwork::is_quiet(std::size_t host, SessionId id) const {
  const Found found = find(host, id);
  return found && !found.session->broken && found.session->open[0] && found.session->open[1] &&
         found.session->items[0].empty() && found.session->items[1].empty();
}

VirtualNetwork::Queued VirtualNetwork::queued(std::size_t host, SessionId id) const {
  Queued queued;
  if (const Found found = find(host, id))
    for (const Item& item : found.session->items[found.end]) {
      if (item.lane == Lane::bulk)
        queued.bulk_bytes += item.message ? item.message->size() : 0;
      else
        ++queued.control_messages;
    }
  return queued;
}

}  // namespace gossipd::sim
