#include "core/wire/control.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/base/result.h"
#include "core/wire/cbor_bounds.h"

namespace gossipd {
namespace {

using nlohmann::json;

constexpr std::size_t text_bytes_max = 1024;
// The longest that we write: a full list of members has 4,400 items, a resync 4,100. Room for what
// later versions add.
constexpr CborBounds bounds{.depth_max = 4, .items_max = 16384, .text_bytes_max = job_bytes_max};

// The field of a map, or the item of a list; nullptr where there is none.
const json* at(const json& map, const char* key) {
  const auto found = map.find(key);
  return found == map.end() ? nullptr : &*found;
}
const json* at(const json& list, std::size_t index) {
  return index < list.size() ? &list[index] : nullptr;
}

template <typename Key>
std::string text(const json& from, Key key, std::size_t bytes_max = text_bytes_max) {
  const json* found = at(from, key);
  if (found == nullptr || !found->is_string()) return {};
  std::string value = found->get<std::string>();
  if (value.size() > bytes_max) value.resize(bytes_max);
  return value;
}

template <typename Key>
std::uint64_t number(const json& from, Key key, std::uint64_t otherwise = 0) {
  const json* found = at(from, key);
  return found != nullptr && found->is_number_unsigned() ? found->get<std::uint64_t>() : otherwise;
}

template <typename Key>
double real(const json& from, Key key, double otherwise = 0) {
  const json* found = at(from, key);
  if (found == nullptr || !found->is_number()) return otherwise;
  const double value = found->get<double>();
  // Figures are told on as floats: one beyond their range would be infinite there.
  return std::abs(value) <= std::numeric_limits<float>::max() ? value : otherwise;
}

bool flag(const json& map, const char* key) {
  const auto found = map.find(key);
  return found != map.end() && found->is_boolean() && found->get<bool>();
}

Endpoint endpoint(const json& map) {
  return Endpoint{text(map, "host", 255), static_cast<std::uint16_t>(number(map, "port") & 0xffff)};
}

// Lists, since names of fields would be most of a message; later releases add items at the end.
struct RecordItem {
  enum : std::size_t {
    id,
    name,
    host,
    port,
    incarnation,
    state,
    tick,
    phase,
    samples,
    step,
    rate,
    batch,
    loss,
    consensus_distance,
    budget_revision,
    budget,
    news,
    version,
    device,
    reachability,
    accuracy
  };
};
struct StatsItem {
  enum : std::size_t {
    id,
    incarnation,
    tick,
    samples,
    step,
    rate,
    batch,
    loss,
    consensus_distance,
    age,
    accuracy
  };
};

json to_json(const MemberRecord& r) {
  return json::array({raw(r.id),
                      r.name,
                      r.address.host,
                      r.address.port,
                      r.incarnation,
                      static_cast<unsigned>(r.state),
                      r.tick,
                      static_cast<unsigned>(r.phase),
                      r.samples,
                      r.step,
                      static_cast<float>(r.samples_per_second),
                      r.batch,
                      static_cast<float>(r.loss),
                      static_cast<float>(r.consensus_distance),
                      r.budget.revision,
                      r.budget.samples,
                      r.news,
                      r.version,
                      r.device,
                      static_cast<unsigned>(r.reachability),
                      static_cast<float>(r.accuracy)});
}

json to_json(const MemberStats& f) {
  return json::array({raw(f.id), f.incarnation, f.tick, f.samples, f.step,
                      static_cast<float>(f.samples_per_second), f.batch, static_cast<float>(f.loss),
                      static_cast<float>(f.consensus_distance),
                      static_cast<float>(std::clamp(f.age_seconds, 0.0, stats_age_max_s)),
                      static_cast<float>(f.accuracy)});
}

json to_json(const Suspicion& s) { return json::array({raw(s.id), s.incarnation, raw(s.by)}); }

template <typename Item>
void put_list(json& map, const char* key, const std::vector<Item>& items) {
  if (items.empty()) return;
  json& list = map[key] = json::array();
  for (const Item& item : items) list.push_back(to_json(item));
}

std::optional<MemberRecord> to_record(const json& list) {
  if (!list.is_array()) return std::nullopt;
  MemberRecord r;
  r.id = NodeId{number(list, RecordItem::id)};
  r.name = text(list, RecordItem::name, name_bytes_max);
  r.address = Endpoint{text(list, RecordItem::host, 255),
                       static_cast<std::uint16_t>(number(list, RecordItem::port) & 0xffff)};
  r.incarnation = number(list, RecordItem::incarnation);
  const std::uint64_t state = number(list, RecordItem::state, 99);
  const std::uint64_t phase = number(list, RecordItem::phase, 99);
  if (r.id == NodeId{} || state > raw(MemberState::forgotten) ||
      phase > raw(Phase::waiting_for_trainer))
    return std::nullopt;
  r.state = static_cast<MemberState>(state);
  r.phase = static_cast<Phase>(phase);
  r.tick = number(list, RecordItem::tick);
  r.samples = number(list, RecordItem::samples);
  r.step = number(list, RecordItem::step);
  r.samples_per_second = real(list, RecordItem::rate);
  r.batch = static_cast<std::uint32_t>(number(list, RecordItem::batch) & 0xffffffff);
  r.loss = real(list, RecordItem::loss);
  r.consensus_distance = real(list, RecordItem::consensus_distance, 1);
  r.budget = Budget{number(list, RecordItem::budget_revision), number(list, RecordItem::budget)};
  r.news = number(list, RecordItem::news);
  r.version = text(list, RecordItem::version, version_bytes_max);
  r.device = text(list, RecordItem::device, device_bytes_max);
  const std::uint64_t reachability = number(list, RecordItem::reachability);
  if (reachability <= raw(Reachability::address_silent))
    r.reachability = static_cast<Reachability>(reachability);
  r.accuracy = real(list, RecordItem::accuracy, -1);
  return r;
}

std::optional<MemberStats> to_stats(const json& list) {
  if (!list.is_array()) return std::nullopt;
  MemberStats f;
  f.id = NodeId{number(list, StatsItem::id)};
  f.incarnation = number(list, StatsItem::incarnation);
  f.tick = number(list, StatsItem::tick);
  f.samples = number(list, StatsItem::samples);
  f.step = number(list, StatsItem::step);
  f.samples_per_second = real(list, StatsItem::rate);
  f.batch = static_cast<std::uint32_t>(number(list, StatsItem::batch) & 0xffffffff);
  f.loss = real(list, StatsItem::loss);
  f.consensus_distance = real(list, StatsItem::consensus_distance, 1);
  f.age_seconds = std::clamp(real(list, StatsItem::age), 0.0, stats_age_max_s);
  f.accuracy = real(list, StatsItem::accuracy, -1);
  return f.id == NodeId{} ? std::nullopt : std::optional(f);
}

std::optional<Suspicion> to_suspicion(const json& list) {
  if (!list.is_array()) return std::nullopt;
  const Suspicion s{NodeId{number(list, 0)}, number(list, 1), NodeId{number(list, 2)}};
  return s.id == NodeId{} || s.by == NodeId{} ? std::nullopt : std::optional(s);
}

// The items that can be read of a list of at most `most`; false: there is no such list. A list that
// is missing is empty.
template <typename Item>
bool get_list(const json& map, const char* key, std::size_t most,
              std::optional<Item> (*read)(const json&), std::vector<Item>& out) {
  const json* list = at(map, key);
  if (list == nullptr) return true;
  if (!list->is_array() || list->size() > most) return false;
  for (const json& item : *list)
    if (auto value = read(item)) out.push_back(std::move(*value));
  return true;
}

Result<Control> to_digest(const json& map) {
  Digest m;
  const json* buckets = at(map, "buckets");
  if (buckets == nullptr || !buckets->is_array() || buckets->empty() ||
      buckets->size() > digest_buckets_max)
    return Error{"malformed",
                 "digest without a list of at most " + std::to_string(digest_buckets_max)};
  for (const json& bucket : *buckets)
    m.buckets.push_back(bucket.is_number_unsigned() ? bucket.get<std::uint64_t>() : 0);
  return Control{std::move(m)};
}

bool get_blocks(const json& map, const char* key, std::size_t most,
                std::vector<std::uint32_t>& out) {
  const json* list = at(map, key);
  if (list == nullptr || !list->is_array() || list->size() > most) return false;
  for (const json& block : *list) {
    if (!block.is_number_unsigned()) return false;
    out.push_back(static_cast<std::uint32_t>(block.get<std::uint64_t>() & 0xffffffff));
  }
  return true;
}

struct ToJson {
  json operator()(const Hello& m) const {
    json map{{"kind", "hello"},        {"protocol", m.protocol}, {"cluster", raw(m.cluster)},
             {"id", raw(m.id)},        {"inc", m.incarnation},   {"name", m.name},
             {"host", m.address.host}, {"port", m.address.port}, {"job", raw(m.job)},
             {"leaving", m.leaving},   {"probe", m.probe},       {"newest", m.newest},
             {"instance", m.instance}};
    if (m.founds) map["founds"] = true;
    if (m.generation > 1) map["founded"] = raw(m.founded), map["generation"] = m.generation;
    if (m.links) map["links"] = *m.links;
    if (m.rotates) map["rotates"] = true;
    return map;
  }
  json operator()(const Refuse& m) const {
    return {{"kind", "refuse"}, {"code", m.reason.code}, {"text", m.reason.text}};
  }
  json operator()(const Members& m) const {
    json map{{"kind", "members"}};
    put_list(map, "records", m.records);
    put_list(map, "figures", m.stats);
    put_list(map, "suspects", m.suspicions);
    return map;
  }
  json operator()(const Digest& m) const { return {{"kind", "digest"}, {"buckets", m.buckets}}; }
  json operator()(const JobRequest&) const { return {{"kind", "job?"}}; }
  json operator()(const JobOffer& m) const {
    return {{"kind", "job"},
            {"hash", raw(m.hash)},
            {"budget", m.budget_samples},
            {"document", m.document}};
  }
  json operator()(const Succession& m) const {
    return {{"kind", "next job"},
            {"founded", raw(m.founded)},
            {"generation", m.generation},
            {"hash", raw(m.hash)},
            {"document", m.document}};
  }
  json operator()(const FileRequest& m) const {
    return {{"kind", "file?"},
            {"high", m.file.hash_high},
            {"low", m.file.hash_low},
            {"bytes", m.file.bytes},
            {"offset", m.offset}};
  }
  json operator()(const FileAbsent& m) const {
    return {{"kind", "nofile"},
            {"high", m.file.hash_high},
            {"low", m.file.hash_low},
            {"bytes", m.file.bytes}};
  }
  json operator()(const Ready& m) const {
    return {{"kind", "ready"},  {"schema", raw(m.schema)}, {"model", m.has_model},
            {"nonce", m.nonce}, {"conv", m.epoch},         {"spoken", m.spoken},
            {"heard", m.heard}, {"first", m.first_block},  {"held", m.held_flips},
            {"bf16", m.bf16},   {"initial", m.initial},    {"age", m.initial_age}};
  }
  json operator()(const Ping& m) const {
    json map = {{"kind", "ping"}, {"nonce", m.nonce}};
    if (m.links != 0) map["links"] = m.links;
    return map;
  }
  json operator()(const Pong& m) const {
    json map = {{"kind", "pong"}, {"nonce", m.nonce}};
    if (m.clock_ms != 0) map["clock"] = m.clock_ms;
    return map;
  }
  json operator()(const Resync& m) const { return {{"kind", "resync"}, {"blocks", m.blocks}}; }
  json operator()(const Bye& m) const { return {{"kind", "bye"}, {"why", m.why}}; }
  json operator()(const Cloned& m) const {
    return {{"kind", "cloned"},           {"id", raw(m.id)},           {"keeps", m.keeps},
            {"gives_up", m.gives_up},     {"host", m.keeper.host},     {"port", m.keeper.port},
            {"other_host", m.other.host}, {"other_port", m.other.port}};
  }
  json operator()(const Reached& m) const {
    return {{"kind", "reached"},
            {"host", m.address.host},
            {"port", m.address.port},
            {"answers", m.answers},
            {"reason", m.reason}};
  }
  json operator()(const Spare&) const { return {{"kind", "spare"}}; }
  json operator()(const UnknownControl& m) const { return {{"kind", m.kind}}; }
};

std::uint32_t links_in(const json& map) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(number(map, "links"), members_max));
}

Result<Control> to_hello(const json& map) {
  Hello m{static_cast<std::uint32_t>(number(map, "protocol") & 0xffffffff),
          ClusterId{number(map, "cluster")},
          NodeId{number(map, "id")},
          number(map, "inc"),
          text(map, "name", name_bytes_max),
          endpoint(map),
          JobHash{number(map, "job")},
          flag(map, "leaving"),
          flag(map, "probe")};
  m.newest = std::max(m.protocol, static_cast<std::uint32_t>(number(map, "newest") & 0xffffffff));
  if (m.id == NodeId{}) return Error{"malformed", "hello without a node id"};
  m.instance = number(map, "instance");
  m.founds = flag(map, "founds");
  m.generation = std::max<std::uint64_t>(1, number(map, "generation"));
  m.founded = m.generation > 1 ? ClusterId{number(map, "founded")} : m.cluster;
  if (map.contains("links")) m.links = links_in(map);
  m.rotates = flag(map, "rotates");
  return Control{std::move(m)};
}

Result<Control> to_refuse(const json& map) {
  return Control{Refuse{Error{text(map, "code", 64), text(map, "text")}}};
}

Result<Control> to_members(const json& map) {
  Members m;
  if (!get_list(map, "records", records_per_message_max, to_record, m.records) ||
      !get_list(map, "figures", stats_per_message_max, to_stats, m.stats) ||
      !get_list(map, "suspects", suspicions_per_message_max, to_suspicion, m.suspicions))
    return Error{"malformed", "members without lists of at most " +
                                  std::to_string(records_per_message_max) + " records, " +
                                  std::to_string(stats_per_message_max) + " stats and " +
                                  std::to_string(suspicions_per_message_max) + " suspicions"};
  return Control{std::move(m)};
}

Result<Control> to_job_request(const json&) { return Control{JobRequest{}}; }

Result<Control> to_succession(const json& map) {
  Succession m{ClusterId{number(map, "founded")}, number(map, "generation"),
               JobHash{number(map, "hash")}, text(map, "document", job_bytes_max)};
  if (m.document.empty() || m.generation <= 1 || m.founded == ClusterId{})
    return Error{"malformed", "a next job without its text, number or cluster"};
  return Control{std::move(m)};
}

Result<Control> to_job_offer(const json& map) {
  JobOffer m{JobHash{number(map, "hash")}, number(map, "budget"),
             text(map, "document", job_bytes_max)};
  if (m.document.empty()) return Error{"malformed", "job without a document"};
  return Control{std::move(m)};
}

JobFile file_of(const json& map) {
  return {number(map, "high"), number(map, "low"), number(map, "bytes")};
}

Result<Control> to_file_request(const json& map) {
  return Control{FileRequest{file_of(map), number(map, "offset")}};
}

Result<Control> to_file_absent(const json& map) { return Control{FileAbsent{file_of(map)}}; }

Result<Control> to_ready(const json& map) {
  Ready m{SchemaHash{number(map, "schema")},
          flag(map, "model"),
          number(map, "nonce"),
          number(map, "conv"),
          static_cast<std::uint32_t>(number(map, "spoken") & 0xffffffff),
          static_cast<std::uint32_t>(number(map, "heard") & 0xffffffff),
          static_cast<std::uint32_t>(number(map, "first") & 0xffffffff)};
  if (map.contains("held") && !get_blocks(map, "held", held_flips_max, m.held_flips))
    return Error{"malformed", "ready without a list of at most " + std::to_string(held_flips_max) +
                                  " blocks held"};
  m.bf16 = flag(map, "bf16");
  m.initial = number(map, "initial");
  m.initial_age = number(map, "age");
  return Control{std::move(m)};
}

Result<Control> to_ping(const json& map) {
  return Control{Ping{number(map, "nonce"), links_in(map)}};
}
Result<Control> to_pong(const json& map) {
  return Control{Pong{number(map, "nonce"), number(map, "clock")}};
}

Result<Control> to_spare(const json&) { return Control{Spare{}}; }

Result<Control> to_resync(const json& map) {
  Resync m;
  if (!get_blocks(map, "blocks", resync_blocks_max, m.blocks))
    return Error{"malformed", "resync without a list of at most " +
                                  std::to_string(resync_blocks_max) + " blocks"};
  return Control{std::move(m)};
}

Result<Control> to_cloned(const json& map) {
  Cloned m{
      NodeId{number(map, "id")}, number(map, "keeps"), number(map, "gives_up"), endpoint(map), {}};
  m.other = Endpoint{text(map, "other_host", 255),
                     static_cast<std::uint16_t>(number(map, "other_port") & 0xffff)};
  if (m.id == NodeId{} || m.keeps == 0 || m.gives_up <= m.keeps)
    return Error{"malformed",
                 "cloned without an id and two instances, the lower of which keeps it"};
  return Control{std::move(m)};
}

Result<Control> to_reached(const json& map) {
  return Control{
      Reached{endpoint(map), flag(map, "answers"), text(map, "reason", reached_reason_bytes_max)}};
}

Result<Control> to_bye(const json& map) { return Control{Bye{text(map, "why", 64)}}; }

Result<Control> from_json(const json& map) {
  static constexpr std::pair<std::string_view, Result<Control> (*)(const json&)> readers[] = {
      {"hello", to_hello},        {"refuse", to_refuse},
      {"members", to_members},    {"digest", to_digest},
      {"job?", to_job_request},   {"job", to_job_offer},
      {"file?", to_file_request}, {"nofile", to_file_absent},
      {"ready", to_ready},        {"ping", to_ping},
      {"pong", to_pong},          {"resync", to_resync},
      {"cloned", to_cloned},      {"bye", to_bye},
      {"spare", to_spare},        {"reached", to_reached},
      {"next job", to_succession}};
  const std::string kind = text(map, "kind");
  for (const auto& [name, read] : readers)
    if (kind == name) return read(map);
  return Control{UnknownControl{kind.substr(0, 64)}};
}

}  // namespace

Bytes encode_control(const Control& message) {
  const json map = std::visit(ToJson{}, message);
  // Names come from users and may not be UTF-8; CBOR output does not check, so nothing throws here.
  std::vector<std::uint8_t> out;
  json::to_cbor(map, out);
  Bytes bytes(out.size());
  std::transform(out.begin(), out.end(), bytes.begin(),
                 [](std::uint8_t b) { return std::byte{b}; });
  return bytes;
}

Result<Control> decode_control(std::span<const std::byte> message) {
  if (message.empty() || message.size() > control_bytes_max)
    return Error{"malformed", "a control message of " + std::to_string(message.size()) + " bytes"};
  if (const auto wrong = beyond(bounds, message))
    return Error{"malformed", "a control message with " + *wrong};
  const auto* first = reinterpret_cast<const std::uint8_t*>(message.data());
  const auto* last = first + message.size();
  try {
    const json map = json::from_cbor(first, last, true, false);
    if (!map.is_object()) return Error{"malformed", "a control message that is no CBOR map"};
    return from_json(map);
  } catch (const json::exception& error) {
    return Error{"malformed", error.what()};
  }
}

}  // namespace gossipd
