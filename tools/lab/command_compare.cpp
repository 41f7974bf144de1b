// gossip-lab compare: results of several rows side by side.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "tools/lab/commands.h"
#include "tools/lab/rows.h"

namespace gossipd::lab {

namespace {

struct Column {
  std::string head;
  std::vector<std::string> cells;
};

template <typename... Values>
std::string format(const char* pattern, Values... values) {
  char text[128];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

std::string bytes_text(double bytes) {
  if (bytes >= 1e9) return format("%.2f GB", bytes / 1e9);
  if (bytes >= 1e6) return format("%.2f MB", bytes / 1e6);
  return format("%.1f KB", bytes / 1e3);
}

// Over seeds; "-" where a run has no figure, and one run has no deviation.
std::string mean_text(const Summary& s, int digits) {
  if (std::isnan(s.mean)) return "-";
  if (s.count < 2) return format("%.*f", digits, s.mean);
  return format("%.*f ± %.*f", digits, s.mean, digits, s.deviation);
}

// Of shares, in points of a hundred, paired by seed.
std::string difference_text(const Summary& s) {
  if (s.count == 0 || std::isnan(s.mean)) return "-";
  if (s.count < 2) return format("%+.2f", 100 * s.mean);
  return format("%+.2f (95 %%: ±%.2f)", 100 * s.mean, 100 * s.bound95);
}

double share_of_dense_baseline(const RunResult& r) {
  return r.dense_baseline_bytes == 0
             ? 0
             : static_cast<double>(r.bytes) / static_cast<double>(r.dense_baseline_bytes);
}

// Of the runs that reached it.
std::vector<double> seconds_to_target(const Row& row) {
  std::vector<double> out;
  for (const RunResult& run : row.runs)
    if (run.seconds_to_target > 0) out.push_back(run.seconds_to_target);
  return out;
}

// A run that was stopped says nothing of where it would have ended.
double if_finished(const RunResult& r, double figure) { return r.finished ? figure : std::nan(""); }

// Of the next token; means something only where the loss is its cross-entropy.
double perplexity(const RunResult& r) { return if_finished(r, std::exp(r.loss)); }
double accuracy(const RunResult& r) { return if_finished(r, r.accuracy_mean()); }
double train_loss(const RunResult& r) { return if_finished(r, r.train_loss); }
double seconds_to_target_if_reached(const RunResult& r) {
  return r.seconds_to_target > 0 ? r.seconds_to_target : std::nan("");
}

std::vector<Column> table_of(const std::vector<Row>& rows, const Row& base, bool with_perplexity) {
  std::vector<Column> table;
  for (const char* const head :
       {"row", "seeds", "accuracy %", "against", "to target", "virtual time", "bytes",
        "of dense baseline", "samples", "messages", "age mean", "age max", "consensus_distance",
        "state/node", "state/server"})
    table.push_back({head, {}});
  table[3].head += " " + base.name;
  if (with_perplexity) table.push_back({"perplexity", {}});
  for (const Row& row : rows) {
    const Summary percent = row.of([](const RunResult& r) { return 100 * r.accuracy_mean(); });
    const std::vector<double> reached = seconds_to_target(row);
    std::size_t c = 0;
    const auto cell = [&](std::string text) { table[c++].cells.push_back(std::move(text)); };
    const bool unfinished = std::any_of(row.runs.begin(), row.runs.end(),
                                        [](const RunResult& r) { return !r.finished; });
    cell(row.name + (unfinished ? " (not finished)" : ""));
    cell(std::to_string(row.runs.size()));
    cell(mean_text(percent, 2));
    cell(&row == &base ? "-" : difference_text(paired_difference(row, base, accuracy)));
    cell(reached.empty() ? "-"
                         : format("%.1f s", summarise(reached).mean) +
                               (reached.size() < row.runs.size()
                                    ? format(" (%zu of %zu)", reached.size(), row.runs.size())
                                    : ""));
    cell(format("%.1f s", row.of([](const RunResult& r) { return r.seconds; }).mean));
    cell(bytes_text(row.of([](const RunResult& r) { return static_cast<double>(r.bytes); }).mean));
    cell(format("%.3f %%", 100 * row.of(share_of_dense_baseline).mean));
    cell(format("%.0f",
                row.of([](const RunResult& r) { return static_cast<double>(r.samples); }).mean));
    cell(format("%.0f",
                row.of([](const RunResult& r) { return static_cast<double>(r.messages); }).mean));
    cell(format("%.1f", row.of([](const RunResult& r) { return r.age_mean; }).mean));
    cell(format("%.0f", row.of([](const RunResult& r) { return r.age_max; }).mean));
    cell(format("%.4f", row.of([](const RunResult& r) { return r.consensus_distance; }).mean));
    cell(bytes_text(
        row.of([](const RunResult& r) { return static_cast<double>(r.state_bytes_node); }).mean));
    cell(bytes_text(
        row.of([](const RunResult& r) { return static_cast<double>(r.state_bytes_server); }).mean));
    if (!with_perplexity) continue;
    cell(mean_text(row.of(perplexity), 3));
  }
  return table;
}

// Counts characters, since "±" has two bytes.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

void print(const std::vector<Column>& table, bool markdown) {
  std::vector<std::size_t> widths;
  for (const Column& column : table) {
    std::size_t most = width(column.head);
    for (const std::string& cell : column.cells) most = std::max(most, width(cell));
    widths.push_back(most);
  }
  const auto line = [&](auto&& cell_of) {
    std::string text = markdown ? "|" : "";
    for (std::size_t c = 0; c < table.size(); ++c) {
      const std::string cell = cell_of(c);
      text += (markdown ? " " : "") + cell + std::string(widths[c] - width(cell), ' ') +
              (markdown ? " |" : "  ");
    }
    std::cout << text << "\n";
  };
  line([&](std::size_t c) { return table[c].head; });
  if (markdown) line([&](std::size_t c) { return std::string(widths[c], '-'); });
  for (std::size_t r = 0; r < table[0].cells.size(); ++r)
    line([&](std::size_t c) { return table[c].cells[r]; });
}

nlohmann::json json_of(const std::vector<Row>& rows, const Row& base) {
  nlohmann::json all = nlohmann::json::array();
  const auto put = [](const Summary& s) {
    // Written as null: what takes more values than there are.
    const double none = std::nan("");
    return nlohmann::json{{"mean", s.count > 0 ? s.mean : none},
                          {"deviation", s.count > 1 ? s.deviation : none},
                          {"bound95", s.count > 1 ? s.bound95 : none},
                          {"count", s.count}};
  };
  for (const Row& row : rows) {
    const std::vector<double> reached = seconds_to_target(row);
    all.push_back(
        {{"name", row.name},
         {"runs", row.runs.size()},
         {"strategy", row.strategy},
         {"accuracy", put(row.of(accuracy))},
         {"accuracy_difference", put(paired_difference(row, base, accuracy))},
         {"perplexity", put(row.of(perplexity))},
         {"train_loss", put(row.of(train_loss))},
         {"train_loss_difference", put(paired_difference(row, base, train_loss))},
         {"seconds_to_target", put(summarise(reached))},
         {"seconds_to_target_difference",
          put(paired_difference(row, base, seconds_to_target_if_reached))},
         {"seconds", put(row.of([](const RunResult& r) { return r.seconds; }))},
         {"bytes", put(row.of([](const RunResult& r) { return static_cast<double>(r.bytes); }))},
         {"share_of_dense_baseline", put(row.of(share_of_dense_baseline))},
         {"messages",
          put(row.of([](const RunResult& r) { return static_cast<double>(r.messages); }))},
         {"age_mean", put(row.of([](const RunResult& r) { return r.age_mean; }))},
         {"age_max", put(row.of([](const RunResult& r) { return r.age_max; }))},
         {"consensus_distance",
          put(row.of([](const RunResult& r) { return r.consensus_distance; }))},
         {"step_time_variation",
          put(row.of([](const RunResult& r) { return r.step_time_variation; }))},
         {"state_bytes_node",
          put(row.of([](const RunResult& r) { return static_cast<double>(r.state_bytes_node); }))},
         {"state_bytes_server", put(row.of([](const RunResult& r) {
            return static_cast<double>(r.state_bytes_server);
          }))}});
  }
  return {{"against", base.name}, {"rows", all}};
}

}  // namespace

void add_compare(CLI::App& app, int& exit_code) {
  auto files = std::make_shared<std::vector<std::string>>();
  auto against = std::make_shared<std::string>();
  auto output = std::make_shared<std::string>("table");
  auto with_perplexity = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand(
      "compare",
      "rows side by side: mean ± standard deviation over seeds; differences are paired by seed");
  command->add_option("files", *files, "written by gossip-lab run --json")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--against", *against,
                   "the row that accuracies are held against (default: the first)")
      ->type_name("ROW");
  command->add_option("-o,--output", *output, "table, markdown or json")
      ->check(CLI::IsMember({"table", "markdown", "json"}));
  command->add_flag("--perplexity", *with_perplexity, "show e to the test loss as well, of text");
  command->callback([files, against, output, with_perplexity, &exit_code] {
    const Result<std::vector<Row>> rows = gather_rows(*files);
    if (!rows || rows->empty()) {
      std::cerr << "gossip-lab: "
                << (rows ? files->front() +
                               ": holds no results; gossip-lab run SCENARIO --json writes them"
                         : rows.error().text)
                << "\n";
      exit_code = 1;
      return;
    }
    const auto base = std::find_if(rows->begin(), rows->end(), [&](const Row& row) {
      return against->empty() || row.name == *against;
    });
    if (base == rows->end()) {
      std::cerr << "gossip-lab: --against: there is no row '" << *against
                << "'; gossip-lab compare without it lists them\n";
      exit_code = 2;
      return;
    }
    if (*output == "json")
      std::cout << json_of(*rows, *base).dump(2) << "\n";
    else
      print(table_of(*rows, *base, *with_perplexity), *output == "markdown");
    exit_code = 0;
  });
}

}  // namespace gossipd::lab
