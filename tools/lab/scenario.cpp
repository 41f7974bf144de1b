#include "tools/lab/scenario.h"

#include <toml++/toml.h>
#include <algorithm>
#include <filesystem>
#include <sstream>

#include "core/base/did_you_mean.h"
#include "models/data/idx.h"
#include "models/job/toml_reader.h"

namespace gossipd::lab {

namespace {

Error bad_config(std::string text) { return Error{"bad-config", std::move(text)}; }

Result<toml::table> parse(const std::string& text, const std::string& origin) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    std::ostringstream words;
    words << origin << ":" << error.source().begin.line << ": " << error.description()
          << "; mend the file there";
    return Error{"bad-toml", words.str()};
  }
}

// Values of `over` replace those of `under`, table by table.
void merge(toml::table& under, const toml::table& over) {
  for (const auto& [key, value] : over) {
    if (const auto* table = value.as_table(); table != nullptr && under[key].is_table())
      merge(*under[key].as_table(), *table);
    else
      under.insert_or_assign(key, value);
  }
}

std::optional<Error> apply_override(toml::table& root, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    return bad_config("--set: '" + text +
                      "' has no value; write KEY=VALUE, for example exchange.codec=int8");
  const std::string key = text.substr(0, equals), value = text.substr(equals + 1);
  toml::table parsed;
  try {
    parsed = toml::parse("value = " + value);
  } catch (const toml::parse_error&) {
    parsed.insert_or_assign("value", value);  // a bare word is a string
  }
  toml::table* table = &root;
  std::size_t start = 0;
  for (std::size_t dot = key.find('.'); dot != std::string::npos;
       start = dot + 1, dot = key.find('.', start)) {
    const std::string part = key.substr(start, dot - start);
    if (!table->contains(part)) table->insert_or_assign(part, toml::table{});
    table = (*table)[part].as_table();
    if (table == nullptr)
      return bad_config("--set " + key + ": '" + part +
                        "' is no table; look the key up in tools/lab/README.md");
  }
  table->insert_or_assign(key.substr(start), *parsed.get("value"));
  return std::nullopt;
}

std::string text_of(const toml::table& table) {
  std::ostringstream out;
  out << toml::toml_formatter(table);
  return out.str();
}

// A table of another kind must not keep keys that only the file's kind has, so another optimiser or
// schedule starts a new table.
void drop_tables_of_another_kind(toml::table& file, const toml::table& given) {
  for (const auto& [key, value] : given) {
    const auto* table = value.as_table();
    const auto kind = table != nullptr ? (*table)["kind"].value<std::string>() : std::nullopt;
    if (kind && file[key]["kind"].value<std::string>() != kind) file.erase(key);
  }
}

// [job]: the file it names, with the other keys of [job] in place of the file's.
Result<Job> read_job(toml::table& root, const std::filesystem::path& directory,
                     const std::string& origin) {
  toml::table merged;
  if (toml::table* given = root["job"].as_table()) {
    if (const auto file = (*given)["file"].value<std::string>()) {
      const auto path = std::filesystem::path(*file).is_relative() ? directory / *file
                                                                   : std::filesystem::path(*file);
      const Result<std::string> text = read_text_file(path.lexically_normal().string());
      if (!text) return bad_config(origin + ": job.file: " + text.error().text);
      Result<toml::table> parsed = parse(*text, path.string());
      if (!parsed) return parsed.error();
      merged = std::move(*parsed);
      given->erase("file");
    }
    drop_tables_of_another_kind(merged, *given);
    merge(merged, *given);
  } else {
    return bad_config(
        origin + ": job: is missing; write [job] with file = \"…/deploy/jobs/fashion-mnist.toml\"");
  }
  // The scenario divides the data (data.split), whatever the job's file says.
  if (auto* data = merged["data"].as_table()) data->erase("division");
  root.insert_or_assign("job", merged);
  return Job::parse(text_of(merged), origin + " [job]");
}

// Job::parse has checked the job's keys; here they must only be known.
void mark_known(TomlTable table, const toml::table& keys) {
  for (const auto& [key, value] : keys) {
    (void)table.has(key.str());
    if (const auto* inner = value.as_table()) mark_known(table.table(key.str()), *inner);
  }
}

MachineSpec read_machine(TomlTable& t, const MachineSpec& d) {
  MachineSpec m;
  m.speed = t.get_double("speed", d.speed, 1e-4, 1e4);
  m.step_base_s = t.get_double("step_base_ms", d.step_base_s * 1e3, 0, 1e7) / 1e3;
  m.step_per_sample_s = t.get_double("step_per_sample_ms", d.step_per_sample_s * 1e3, 0, 1e6) / 1e3;
  m.jitter = t.get_enum("jitter", d.jitter,
                        {{"none", MachineSpec::Jitter::none},
                         {"lognormal", MachineSpec::Jitter::lognormal},
                         {"pareto", MachineSpec::Jitter::pareto}});
  m.jitter_scale = t.get_double(
      "jitter_scale",
      m.jitter == MachineSpec::Jitter::pareto ? std::max(d.jitter_scale, 1.5) : d.jitter_scale,
      1e-6, 100);
  if (m.jitter == MachineSpec::Jitter::pareto && m.jitter_scale <= 1.0)
    t.refuse(
        "jitter_scale",
        "the tail index of pareto must be above 1, or steps have no mean; 1.5 is a heavy tail");
  if (m.step_base_s + m.step_per_sample_s <= 0)
    t.refuse("step_base_ms", "a step takes no time; raise step_base_ms or step_per_sample_ms");
  m.uplink_bps = t.get_double("uplink_mbps", d.uplink_bps / 1e6, 1e-3, 1e7) * 1e6;
  m.downlink_bps = t.get_double("downlink_mbps", d.downlink_bps / 1e6, 1e-3, 1e7) * 1e6;
  return m;
}

WireSpec read_wire(TomlTable& t, const WireSpec& d) {
  WireSpec w;
  w.latency_s = t.get_double("latency_ms", d.latency_s * 1e3, 0, 1e6) / 1e3;
  w.jitter_s = t.get_double("jitter_ms", d.jitter_s * 1e3, 0, 1e6) / 1e3;
  w.bandwidth_bps = t.get_double("bandwidth_mbps", d.bandwidth_bps / 1e6, 0, 1e7) * 1e6;
  w.loss = t.get_double("loss", d.loss, 0, 0.5);
  return w;
}

void read_nodes(TomlReader& reader, Scenario& s) {
  TomlTable defaults = reader.table("machine");
  const MachineSpec machine = read_machine(defaults, {});
  for (TomlTable& group : reader.root().tables("nodes", lab_nodes_max)) {
    const auto count = static_cast<std::size_t>(group.get_integer("count", 1, 1, lab_nodes_max));
    const MachineSpec spec = read_machine(group, machine);
    const double starts = group.get_double("starts_at_s", 0, 0, 1e7);
    for (std::size_t i = 0; i < count && s.machines.size() <= lab_nodes_max; ++i) {
      s.machines.push_back(spec);
      s.starts_at_s.push_back(starts);
    }
  }
  if (s.machines.empty())
    reader.root().refuse("nodes", "there are none; write [[nodes]] with count = 8");
  if (s.machines.size() > lab_nodes_max)
    reader.root().refuse("nodes", "more than " + std::to_string(lab_nodes_max) + "; use fewer");
  if (!s.starts_at_s.empty() && s.starts_at_s[0] > 0)
    reader.root().refuse("nodes", "the first node founds the cluster; it must start at 0");
}

void read_network(TomlReader& reader, Scenario& s) {
  TomlTable network = reader.table("network");
  s.wire = read_wire(network, {});
  s.topology = network.get_enum("topology", s.topology,
                                {{"overlay", Scenario::Topology::overlay},
                                 {"full", Scenario::Topology::full},
                                 {"ring", Scenario::Topology::ring},
                                 {"random", Scenario::Topology::random}});
  s.degree = static_cast<std::size_t>(network.get_integer("degree", 3, 1, 64));
  for (TomlTable& pair : reader.root().tables("wires", 4096)) {
    const auto between =
        pair.get_integers("between", {}, 0, static_cast<std::int64_t>(s.machines.size()) - 1, 2);
    if (between.size() != 2 || between[0] == between[1])
      pair.refuse("between", "names two different nodes, for example [0, 3]");
    const WireSpec wire = read_wire(pair, s.wire);
    if (between.size() == 2)
      s.wires[{static_cast<std::size_t>(between[0]), static_cast<std::size_t>(between[1])}] = wire;
  }
}

void read_events(TomlReader& reader, Scenario& s) {
  const auto last = static_cast<std::int64_t>(s.machines.size()) - 1;
  for (TomlTable& t : reader.root().tables("events", 1024)) {
    EventSpec e;
    e.what = t.get_enum("what", EventSpec::What::kill,
                        {{"kill", EventSpec::What::kill},
                         {"start", EventSpec::What::start},
                         {"freeze", EventSpec::What::freeze},
                         {"leave", EventSpec::What::leave},
                         {"speed", EventSpec::What::speed},
                         {"cut", EventSpec::What::cut},
                         {"heal", EventSpec::What::heal}});
    e.at_s = t.get_double("at_s", 0, 0, 1e9);
    e.node = static_cast<std::size_t>(t.require_integer("node", 0, last));
    if (e.what == EventSpec::What::cut || e.what == EventSpec::What::heal)
      e.other = static_cast<std::size_t>(t.require_integer("other", 0, last));
    if (e.what == EventSpec::What::freeze) e.for_s = t.get_double("for_s", 1, 1e-3, 1e9);
    if (e.what == EventSpec::What::speed) e.speed = t.get_double("speed", 1, 1e-4, 1e4);
    s.events.push_back(e);
  }
}

void read_poison(TomlReader& reader, Scenario& s) {
  using Kind = PoisonSpec::Kind;
  TomlTable t = reader.table("poison");
  PoisonSpec& p = s.poison;
  p.kind = t.get_enum("kind", Kind::none,
                      {{"none", Kind::none},
                       {"value", Kind::value},
                       {"scale", Kind::scale},
                       {"random-labels", Kind::random_labels},
                       {"permuted-labels", Kind::permuted_labels},
                       {"rate", Kind::rate},
                       {"lie", Kind::lie},
                       {"absent", Kind::absent}});
  const auto last = static_cast<std::int64_t>(s.machines.size()) - 1;
  p.node = static_cast<std::size_t>(t.get_integer("node", last, 0, last));
  p.value = t.get_double("value", p.value, -1e38, 1e38);
  p.samples = static_cast<std::size_t>(t.get_integer("samples", 1, 1, 1'000'000));
  p.at_s = t.get_double("at_s", 0, 0, 1e9);
  if (p.kind != Kind::none && last < 1)
    t.refuse("kind", "one node of several is poisoned; write more [[nodes]]");
}

const StrategyEntry* find_strategy(const std::string& name) {
  for (const StrategyEntry& entry : strategies())
    if (entry.name == name) return &entry;
  return nullptr;
}

std::string value_text(TomlTable table, const std::string& key, const Setting& setting) {
  switch (setting.kind) {
    case SettingKind::boolean: return table.get_bool(key, setting.get() == "true") ? "on" : "off";
    case SettingKind::integer: return std::to_string(table.get_integer(key, 0));
    case SettingKind::number: {
      std::ostringstream text;
      text.precision(17);
      text << table.get_double(key, 0);
      return text.str();
    }
    default: return table.get_string(key, setting.get());
  }
}

// Knobs are the strategy's own settings; gossip's have the names of a node file.
void read_strategy(TomlReader& reader, Scenario& s) {
  TomlTable table = reader.table("strategy");
  s.strategy = table.get_string("name", s.strategy);
  const StrategyEntry* entry = find_strategy(s.strategy);
  if (entry == nullptr) {
    std::vector<std::string> names;
    for (const StrategyEntry& e : strategies()) names.push_back(e.name);
    const std::string close = did_you_mean(s.strategy, names);
    return table.refuse("name", "there is no strategy '" + s.strategy + "'" +
                                    (close.empty() ? "" : "; did you mean '" + close + "'?") +
                                    " (gossip-lab strategies lists them)");
  }
  const std::unique_ptr<Strategy> strategy = entry->make();
  for (const Setting& setting : strategy->settings()) {
    const std::size_t dot = setting.key.find('.');
    TomlTable of = reader.table(setting.key.substr(0, dot));
    const std::string key = setting.key.substr(dot + 1);
    if (!of.has(key)) continue;
    const std::string value = value_text(of, key, setting);
    if (const SettingRefused refused = setting.set(value))
      of.refuse(key, *refused);
    else
      s.knobs[setting.key] = setting.get();
  }
  if (const auto mistake = strategy->mistake(s.job)) table.refuse("name", *mistake);
  const bool faults = std::any_of(s.events.begin(), s.events.end(), [](const EventSpec& e) {
    return e.what != EventSpec::What::speed;
  });
  const bool late =
      std::any_of(s.starts_at_s.begin(), s.starts_at_s.end(), [](double at) { return at > 0; });
  using Poison = PoisonSpec::Kind;
  const Poison poison = s.poison.kind;
  const bool gossip_only =
      poison == Poison::rate || poison == Poison::lie || poison == Poison::absent;
  if (!strategy->takes_events() && gossip_only)
    table.refuse("name", "poison.kind: '" + s.strategy + "' takes poisoned data only; use gossip");
  if (!strategy->takes_events() && (faults || late))
    table.refuse("name", "'" + s.strategy +
                             "' is a reference row that knows no failures and no joiners; take out "
                             "the events (speed may stay) or use gossip");
}

}  // namespace

Result<Scenario> Scenario::load(const std::string& path,
                                const std::vector<std::string>& overrides) {
  const Result<std::string> file = read_text_file(path);
  if (!file) return bad_config(file.error().text);
  Result<toml::table> parsed = parse(*file, path);
  if (!parsed) return parsed.error();
  toml::table root = std::move(*parsed);
  for (const std::string& text : overrides)
    if (auto error = apply_override(root, text)) return *error;
  const std::filesystem::path directory = std::filesystem::absolute(path).parent_path();

  Scenario s;
  // Messages have the file's line numbers unless something overrides it.
  TomlReader reader(overrides.empty() ? *file : text_of(root),
                    overrides.empty() ? path : path + " with --set");
  if (const toml::table* keys = root["job"].as_table()) mark_known(reader.table("job"), *keys);
  Result<Job> job = read_job(root, directory, path);
  if (!job) return job.error();
  s.job = std::move(*job);
  s.text = text_of(root);
  s.name = reader.root().get_string("name", std::filesystem::path(path).stem().string());
  TomlTable data = reader.table("data");
  s.data_dir = data.get_string("dir", fashion_mnist_directory);
  s.dirichlet = data.get_choice("split", "iid", {"iid", "dirichlet"}) == "dirichlet";
  s.alpha = data.get_double("alpha", s.alpha, 1e-3, 1e6);
  s.equal_sizes = data.get_bool("equal_sizes", s.equal_sizes);
  read_nodes(reader, s);
  if (!s.machines.empty()) {
    read_network(reader, s);
    read_events(reader, s);
    read_poison(reader, s);
  }
  read_strategy(reader, s);
  TomlTable run = reader.table("run");
  s.evaluate_nodes =
      static_cast<std::size_t>(run.get_integer("evaluate_nodes", 1, 1, lab_nodes_max));
  s.evaluate_first = run.get_bool("evaluate_first", false);
  s.final_nodes = static_cast<std::size_t>(run.get_integer("final_nodes", 8, 1, lab_nodes_max));
  s.target_accuracy = run.get_double("target_accuracy", s.target_accuracy, 0, 1);
  s.time_limit_s = run.get_double("time_limit_s", s.time_limit_s, 0, 1e9);
  if (auto error = reader.finish()) return *error;
  return s;
}

std::unique_ptr<Strategy> Scenario::make_strategy() const {
  std::unique_ptr<Strategy> made = find_strategy(strategy)->make();
  for (const Setting& setting : made->settings())
    if (const auto found = knobs.find(setting.key); found != knobs.end())
      GOSSIPD_ASSERT(!setting.set(found->second));
  return made;
}

Job Scenario::job_of(std::uint64_t seed) const {
  Job with_seed = job;
  with_seed.seed = seed;
  return with_seed;
}

std::string Scenario::run_id(std::uint64_t seed) const {
  std::uint64_t hash = 0xcbf29ce484222325ull ^ seed;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return to_hex(hash);
}

}  // namespace gossipd::lab
