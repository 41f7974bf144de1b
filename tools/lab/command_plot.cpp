// gossip-lab plot: rows as an SVG that a README can show.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "tools/lab/commands.h"
#include "tools/lab/rows.h"

namespace gossipd::lab {

namespace {

struct Point {
  double x = 0, y = 0, low = 0, high = 0;
};
struct Series {
  std::string name;
  std::vector<Point> points;
  bool line = false;
};

constexpr double width = 760, height = 430, left = 64, right = 210, top = 34, bottom = 48;
// Distinguishable for colour-blind readers (Okabe and Ito).
constexpr std::array colours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                "#e69f00", "#56b4e9", "#000000", "#8c564b"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += static_cast<unsigned char>(c) < ' ' ? " "  // XML has no other control characters
           : c == '<'                          ? "&lt;"
           : c == '>'                          ? "&gt;"
           : c == '&'                          ? "&amp;"
           : c == '"'                          ? "&quot;"
                                               : std::string(1, c);
  return out;
}

std::string number(double value) {
  char text[32];
  const double size = std::abs(value);
  std::snprintf(text, sizeof text,
                size >= 1e6   ? "%.3gM"
                : size >= 1e4 ? "%.3gk"
                              : "%.4g",
                size >= 1e6   ? value / 1e6
                : size >= 1e4 ? value / 1e3
                              : value);
  return text;
}

double nice_step(double range, int ticks) {
  const double raw = range / ticks, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double m : {1.0, 2.0, 5.0, 10.0})
    if (raw <= m * power) return m * power;
  return 10 * power;
}

// One picture under construction: the range of its axes, and the text so far.
class Picture {
 public:
  Picture(const std::vector<Series>& all, bool log_x) : log_x_(log_x) {
    double x0 = INFINITY, x1 = -INFINITY;
    for (const Series& s : all)
      for (const Point& p : s.points) {
        x0 = std::min(x0, p.x), x1 = std::max(x1, p.x);
        y0_ = std::min({y0_, p.y, p.low}), y1_ = std::max({y1_, p.y, p.high});
      }
    a_ = fx(x0), b_ = fx(x1);
    if (b_ - a_ < 1e-9) a_ -= 0.5, b_ += 0.5;
    const double margin = (b_ - a_) * 0.04;
    a_ -= margin, b_ += margin;
    const double y_margin = std::max((y1_ - y0_) * 0.06, 0.05);
    y0_ -= y_margin, y1_ += y_margin;
  }

  void begin(const std::string& title) {
    put("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n",
        width, height);
    out_ += "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
    put("<text x=\"%g\" y=\"20\" font-size=\"14\" font-weight=\"bold\">", left);
    out_ += escaped(title) + "</text>\n";
  }

  void grid() {
    const double step = nice_step(y1_ - y0_, 6);
    for (double y = std::ceil(y0_ / step) * step; y <= y1_; y += step) {
      put("<line x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#dddddd\"/>", left,
          width - right, py(y), py(y));
      put("<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", left - 6, py(y) + 4,
          number(y).c_str());
    }
    for (const double x : ticks()) {
      put("<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%g\" y2=\"%g\" stroke=\"#eeeeee\"/>", px(x), px(x),
          top, height - bottom);
      put("<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%s</text>\n", px(x),
          height - bottom + 16, number(x).c_str());
    }
  }

  void axes(const std::string& x_label) {
    put("<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" fill=\"none\" stroke=\"#888888\"/>\n",
        left, top, width - left - right, height - top - bottom);
    put("<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">", left + (width - left - right) / 2,
        height - 10);
    out_ += escaped(x_label) + "</text>\n";
    put("<text x=\"16\" y=\"%g\" text-anchor=\"middle\" transform=\"rotate(-90 16 %g)\">test "
        "accuracy %%</text>\n",
        height / 2, height / 2);
  }

  void series(const Series& s, std::size_t i) {
    const char* colour = colours[i % colours.size()];
    if (s.line) {
      put("<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\" points=\"", colour);
      for (const Point& p : s.points) put("%.1f,%.1f ", px(p.x), py(p.y));
      out_ += "\"/>\n";
    }
    for (const Point& p : s.points) {
      if (p.high > p.low)
        put("<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>", px(p.x),
            px(p.x), py(p.low), py(p.high), colour);
      put("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%g\" fill=\"%s\"/>\n", px(p.x), py(p.y),
          s.line ? 2.0 : 4.5, colour);
    }
    const double y = top + 12 + 18 * static_cast<double>(i);
    put("<circle cx=\"%g\" cy=\"%g\" r=\"4.5\" fill=\"%s\"/>", width - right + 16, y - 4, colour);
    put("<text x=\"%g\" y=\"%g\">", width - right + 26, y);
    out_ += escaped(s.name) + "</text>\n";
  }

  [[nodiscard]] std::string end() && { return std::move(out_) + "</svg>\n"; }

 private:
  [[nodiscard]] double fx(double x) const { return log_x_ ? std::log10(x) : x; }
  [[nodiscard]] double px(double x) const {
    return left + (fx(x) - a_) / (b_ - a_) * (width - left - right);
  }
  [[nodiscard]] double py(double y) const {
    return top + (y1_ - y) / (y1_ - y0_) * (height - top - bottom);
  }

  [[nodiscard]] std::vector<double> ticks() const {
    std::vector<double> found;
    if (!log_x_) {
      const double across = nice_step(b_ - a_, 6);
      for (double x = std::ceil(a_ / across) * across; x <= b_; x += across) found.push_back(x);
      return found;
    }
    for (double e = std::floor(a_); e <= std::ceil(b_); ++e)
      for (const double m : {1.0, 2.0, 5.0})
        if (const double x = m * std::pow(10, e);
            std::log10(x) >= a_ && std::log10(x) <= b_ && (m == 1.0 || b_ - a_ < 2.5))
          found.push_back(x);
    return found;
  }

  template <typename... Values>
  void put(const char* pattern, Values... values) {
    char text[512];
    std::snprintf(text, sizeof text, pattern, values...);
    out_ += text;
  }

  bool log_x_;
  double a_ = 0, b_ = 0;  // x, after the logarithm
  double y0_ = INFINITY, y1_ = -INFINITY;
  std::string out_;
};

std::string svg(const std::vector<Series>& all, const std::string& title,
                const std::string& x_label, bool log_x) {
  Picture picture(all, log_x);
  picture.begin(title);
  picture.grid();
  picture.axes(x_label);
  for (std::size_t i = 0; i < all.size(); ++i) picture.series(all[i], i);
  return std::move(picture).end();
}

std::vector<Series> series_of(const std::vector<Row>& rows, const std::string& against) {
  std::vector<Series> all;
  for (const Row& row : rows) {
    Series series{row.name, {}, false};
    if (against == "time") {
      // One curve a row: the mean of its seeds' curves, point by point.
      series.line = true;
      std::size_t points = SIZE_MAX;
      for (const RunResult& run : row.runs) points = std::min(points, run.curve.size());
      for (std::size_t k = 0; k < points; ++k) {
        Point mean;
        for (const RunResult& run : row.runs) {
          mean.x += run.curve[k].seconds / static_cast<double>(row.runs.size());
          mean.y += 100 * run.curve[k].accuracy / static_cast<double>(row.runs.size());
        }
        mean.low = mean.high = mean.y;
        series.points.push_back(mean);
      }
    } else {
      const Summary y = row.of([](const RunResult& r) { return 100 * r.accuracy_mean(); });
      const double x =
          against == "bytes"
              ? row.of([](const RunResult& r) { return static_cast<double>(r.bytes) / 1e6; }).mean
              : row.of([](const RunResult& r) { return r.age_mean; }).mean;
      series.points.push_back({x, y.mean, y.mean - y.deviation, y.mean + y.deviation});
    }
    const bool drawable =
        std::all_of(series.points.begin(), series.points.end(),
                    [&](const Point& p) { return against != "bytes" || p.x > 0; });
    if (!series.points.empty() && drawable) all.push_back(std::move(series));
  }
  return all;
}

}  // namespace

void add_plot(CLI::App& app, int& exit_code) {
  auto files = std::make_shared<std::vector<std::string>>();
  auto against = std::make_shared<std::string>("bytes"), out = std::make_shared<std::string>(),
       title = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("plot", "accuracy against bytes, time or delay, as SVG");
  command->add_option("files", *files, "written by gossip-lab run --json")
      ->required()
      ->type_name("FILE");
  command->add_option("--against", *against, "bytes (default), time or delay")
      ->check(CLI::IsMember({"bytes", "time", "delay"}));
  command->add_option("--title", *title, "over the picture")->type_name("TEXT");
  command->add_option("--out", *out, "file to write (default: standard output)")->type_name("FILE");
  command->callback([=, &exit_code] {
    exit_code = 1;
    std::error_code unknown;
    for (const std::string& file : *files)
      if (std::filesystem::equivalent(file, *out, unknown))
        return void(std::cerr << "gossip-lab: --out " << *out
                              << " is one of the files to read, and the picture would replace its "
                                 "results; name another file\n");
    const Result<std::vector<Row>> rows = gather_rows(*files);
    if (!rows) return void(std::cerr << "gossip-lab: " << rows.error().text << "\n");
    const std::vector<Series> series = series_of(*rows, *against);
    if (series.empty())
      return void(std::cerr << "gossip-lab: there is nothing to draw; rows without bytes have no "
                               "place on a scale of bytes\n");
    const std::string label = *against == "bytes"  ? "MB sent by all nodes, everything included"
                              : *against == "time" ? "virtual seconds"
                                                   : "mean age of what is mixed in, steps";
    const std::string picture = svg(series, *title, label, *against == "bytes");
    if (out->empty()) {
      std::cout << picture;
    } else {
      std::ofstream file(*out, std::ios::trunc);
      file << picture << std::flush;
      if (!file)
        return void(
            std::cerr << "gossip-lab: " << *out
                      << ": cannot be written; is the disk full, or the directory missing?\n");
    }
    exit_code = 0;
  });
}

}  // namespace gossipd::lab
