// pocket validate: one HTML page, plots as SVG, nothing loaded from elsewhere.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "validate.hpp"

namespace tools {

namespace {

using pocket::checked_operations;
using pocket::CheckedOperation;
using pocket::Projection;
using pocket::projections;

std::string format(const char* pattern, double v) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, v);
  return text;
}
std::string short_number(double v) { return format("%.3g", v); }

std::string escaped(const std::string& s) {
  std::string out;
  for (const char c : s) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

// A curve over its index; y on a logarithmic axis, zeros at its foot.
struct Curve {
  std::string name, color;
  std::vector<double> y;
};

std::string plot(const std::string& x_title, const std::string& y_title, const std::vector<Curve>& curves,
                 bool step_marks) {
  constexpr double width = 720, height = 260, left = 64, right = 12, top = 12, bottom = 40;
  double low = HUGE_VAL, high = 0;
  std::size_t n = 0;
  for (const Curve& c : curves) {
    n = (std::max)(n, c.y.size());
    for (const double v : c.y)
      if (v > 0 && std::isfinite(v)) {
        low = (std::min)(low, v);
        high = (std::max)(high, v);
      }
  }
  if (high == 0) return "<p>All values are exactly 0.</p>";
  const double from = std::floor(std::log10((std::max)(low, high * 1e-9))),
               to = (std::max)(std::ceil(std::log10(high)), from + 1);
  const auto x = [&](double i) {
    return left + (n < 2 ? 0.5 : i / static_cast<double>(n - 1)) * (width - left - right);
  };
  const auto y = [&](double v) {
    const double at = v > 0 ? (std::max)(std::log10(v), from) : from;
    return top + (to - at) / (to - from) * (height - top - bottom);
  };
  std::string s = "<svg viewBox=\"0 0 720 260\" role=\"img\">";
  for (double e = from; e <= to; ++e) {
    const std::string at = format("%.1f", y(std::pow(10, e)));
    s += "<line class=\"grid\" x1=\"64\" x2=\"708\" y1=\"" + at + "\" y2=\"" + at + "\"/><text x=\"58\" y=\"" + at +
         "\" class=\"tick end\">1e" + format("%.0f", e) + "</text>";
  }
  const std::size_t marks = (std::min)(n, std::size_t{9});
  for (std::size_t i = 0; i < marks; ++i) {
    const std::size_t at = marks < 2 ? 0 : i * (n - 1) / (marks - 1);
    s += "<text class=\"tick mid\" y=\"236\" x=\"" + format("%.1f", x(static_cast<double>(at))) + "\">" +
         std::to_string(at) + "</text>";
  }
  s += "<text class=\"tick mid\" x=\"386\" y=\"254\">" + x_title +
       "</text><text class=\"tick mid\" x=\"14\" y=\"116\" " + "transform=\"rotate(-90 14 116)\">" + y_title +
       "</text>";
  double legend = 80;
  for (const Curve& c : curves) {
    s += "<polyline fill=\"none\" stroke-width=\"1.5\" stroke=\"" + c.color + "\" points=\"";
    for (std::size_t i = 0; i < c.y.size(); ++i)
      if (!std::isnan(c.y[i])) s += format("%.1f", x(static_cast<double>(i))) + "," + format("%.1f ", y(c.y[i]));
    s += "\"/>";
    for (std::size_t i = 0; step_marks && i < c.y.size(); ++i)
      if (!std::isnan(c.y[i]))
        s += "<circle r=\"2.5\" fill=\"" + c.color + "\" cx=\"" + format("%.1f", x(static_cast<double>(i))) +
             "\" cy=\"" + format("%.1f", y(c.y[i])) + "\"><title>" + c.name + ", " + std::to_string(i) + ": " +
             short_number(c.y[i]) + "</title></circle>";
    if (curves.size() > 1)
      s += "<text class=\"tick\" x=\"" + format("%.0f", legend) + "\" y=\"24\" style=\"fill:" + c.color + "\">" +
           c.name + "</text>";
    legend += 20 + 7 * static_cast<double>(c.name.size());
  }
  return s + "</svg>";
}

// A table whose cells are shaded by the logarithm of their value. NaN: an empty cell.
std::string heat(const std::string& corner, const std::vector<std::string>& columns, std::size_t rows,
                 const std::function<double(std::size_t, std::size_t)>& value, double red_above) {
  double low = HUGE_VAL, high = 0;
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < columns.size(); ++c)
      if (const double v = value(r, c); v > 0 && std::isfinite(v)) {
        low = (std::min)(low, v);
        high = (std::max)(high, v);
      }
  std::string s = "<table class=\"heat\"><tr><th>" + corner + "</th>";
  for (const std::string& c : columns) s += "<th>" + c + "</th>";
  s += "</tr>";
  for (std::size_t r = 0; r < rows; ++r) {
    s += "<tr><th>" + std::to_string(r) + "</th>";
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const double v = value(r, c);
      if (std::isnan(v)) {
        s += "<td></td>";
        continue;
      }
      const double strength = v > 0 && high > low ? std::clamp(std::log(v / low) / std::log(high / low), 0.0, 1.0) : 0;
      s += v > red_above ? "<td class=\"fault\">"
                         : "<td style=\"background:rgba(40,110,180," + format("%.2f", 0.6 * strength) + ")\">";
      s += short_number(v) + "</td>";
    }
    s += "</tr>";
  }
  return s + "</table>";
}

std::string row(const std::string& name, const std::string& value) {
  return "<tr><th>" + name + "</th><td>" + value + "</td></tr>";
}

constexpr const char* head = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>pocket validate</title><style>
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}th{text-align:left;font-weight:500;padding:.15rem .8rem .15rem 0}
td{padding:.15rem .6rem;text-align:right}.facts td{text-align:left}.heat{font-size:13px}.heat td{border:1px solid #e3e6ea}
.fault{background:#d33;color:#fff}svg{width:100%;max-width:720px}.grid{stroke:#e3e6ea}.tick{font-size:11px;fill:#57606a}
.end{text-anchor:end;dominant-baseline:middle}.mid{text-anchor:middle}
.texts{display:grid;grid-template-columns:1fr 1fr;gap:1rem}.texts p{white-space:pre-wrap;background:#f6f8fa;padding:.6rem;margin:0}
.note{color:#57606a}@media(prefers-color-scheme:dark){body{color:#e6e9ed;background:#14171b}.heat td,.grid{border-color:#333a42;stroke:#333a42}
.tick,.note{fill:#9aa4af;color:#9aa4af}.texts p{background:#1f242a}}
</style></head><body>
)";

}  // namespace

std::string to_page(const ValidationReport& r) {
  const pocket::Divergence& d = r.total;
  std::string s = head;
  s += "<h1>" + escaped(r.model) + "</h1><table class=\"facts\">";
  s += row("model", escaped(r.formats) + ", " + r.activations + " activations on " + r.isa);
  s += row("reference", escaped(r.reference) + (r.arithmetic.empty() ? "" : ", " + r.arithmetic));
  s += row("text",
           escaped(r.text) + ": " + std::to_string(r.windows) + " windows of " + std::to_string(r.length) + " tokens");
  if (d.predicted != 0)
    s += row("perplexity", short_number(d.model_perplexity) + ", the reference's " +
                               short_number(d.reference_perplexity) + ": ratio " + format("%.5f", d.perplexity_ratio) +
                               " &plusmn; " + format("%.5f", d.perplexity_ratio * d.ratio_error));
  s += row("KL(reference &Vert; model)", "mean " + short_number(d.kl_mean) + " &plusmn; " + short_number(d.kl_error) +
                                             " nats, 99.9 % below " + short_number(d.kl_99_9) + ", at most " +
                                             short_number(d.kl_most));
  s += row("agreement",
           "top token " + format("%.2f", 100 * d.top1) + " %, top five " + format("%.2f", 100 * d.top5) + " %");
  s += row("logits", "differ by " + short_number(d.rms) + " (rms; " + short_number(d.relative) +
                         " of their own spread), at most " + short_number(d.largest));
  s += "</table>";
  for (const std::string& f : r.faults) s += "<p class=\"fault\">FAULT: " + escaped(f) + "</p>";
  for (const std::string& f : r.remarks) s += "<p class=\"note\">" + escaped(f) + "</p>";

  std::vector<double> sorted, by_position(r.length, 0);
  for (std::size_t i = 0; i < r.positions.size(); ++i) {
    sorted.push_back(std::isfinite(r.positions[i].kl) ? r.positions[i].kl : HUGE_VAL);
    by_position[i % r.length] += r.positions[i].kl / static_cast<double>(r.windows);
  }
  std::sort(sorted.begin(), sorted.end());
  if (sorted.size() > 400) {  // a curve needs no more points
    std::vector<double> fewer;
    for (std::size_t i = 0; i < 400; ++i) fewer.push_back(sorted[i * (sorted.size() - 1) / 399]);
    sorted.swap(fewer);
  }
  s += "<h2>KL of all positions, sorted" + std::string(r.positions.size() > 400 ? " (400 of them, evenly)" : "") +
       "</h2>" + plot("rank", "nats", {{"KL", "#1f6fb4", sorted}}, false);
  s += "<h2>KL by the position in its window</h2>" +
       plot("token", "nats, mean of the windows", {{"KL", "#1f6fb4", by_position}}, false);
  if (!r.layers.empty()) {
    std::vector<double> attention, ffn;
    for (const LayerReport& l : r.layers) {
      attention.push_back(l.after_attention);
      ffn.push_back(l.after_ffn);
    }
    s += "<h2>How far the residual has moved, by layer</h2>" +
         plot("layer", "relative error",
              {{"after attention", "#1f6fb4", attention}, {"after the feed-forward part", "#c2571a", ffn}}, true);
  }
  if (r.has_weights) {
    std::vector<std::string> names;
    for (std::size_t p = 0; p < projections; ++p) names.push_back(name_of(static_cast<Projection>(p)));
    s += "<h2>What the weights lose, by product</h2><p class=\"note\">Relative error of each product with the "
         "model's weights, its input being the reference's.</p>" +
         heat(
             "layer", names, r.layers.size(), [&](std::size_t l, std::size_t p) { return r.layers[l].products[p]; },
             HUGE_VAL);
  }
  std::vector<std::string> operations;
  for (std::size_t o = 0; o < checked_operations; ++o) operations.push_back(name_of(static_cast<CheckedOperation>(o)));
  s += "<h2>The kernels against float64</h2><p class=\"note\">The largest difference of each operation, from its own "
       "input, as a share of what its arithmetic allows, over " +
       std::to_string(r.detail_tokens) + " tokens. Above 1 is a fault.</p>" +
       heat(
           "layer", operations, r.findings.size(),
           [&](std::size_t l, std::size_t o) {
             const pocket::Finding& f = r.findings[l][o];
             return f.norm > 0 || f.share > 0 ? f.share : std::nan("");
           },
           1.0);
  if (!r.breakdown.empty()) {
    s += "<h2>Where the error comes from</h2><table><tr><th>step</th><th>KL, nats</th><th>logits, rms</th><th>KL from "
         "the reference</th><th>top token</th></tr>";
    for (const BreakdownStep& b : r.breakdown)
      s += "<tr><th>" + escaped(b.name) + "</th><td>" + short_number(b.from_previous.kl_mean) + "</td><td>" +
           short_number(b.from_previous.rms) + "</td><td>" + short_number(b.from_reference.kl_mean) + "</td><td>" +
           format("%.2f", 100 * b.from_reference.top1) + " %</td></tr>";
    s += "</table>";
  }
  for (const Continuation& c : r.continuations)
    s += "<h2>Greedy text</h2><p>" + escaped(c.prompt) + "</p><div class=\"texts\"><div>reference<p>" +
         escaped(c.reference) + "</p></div><div>model (" + std::to_string(c.equal) + " of " + std::to_string(c.tokens) +
         " tokens equal)<p>" + escaped(c.model) + "</p></div></div>";
  return s + "</body></html>\n";
}

}  // namespace tools
