// pocket validate: a quantised model against a reference, and the kernels against float64.
#include "validate.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "common.hpp"
#include "pocket/files/open.hpp"
#include "pocket/files/output_file.hpp"
#include "pocket/validate/checked_backend.hpp"
#include "pocket/validate/logits_file.hpp"
#include "pocket/validate/reference_graph.hpp"
#include "progress.hpp"
#include "sample_text.hpp"

namespace tools {

namespace {

using Session = Transformer<RuntimeSpec>;
using CheckedSession = Transformer<RuntimeSpec, CheckedBackend<CpuBackend>>;

[[noreturn]] void stop_interrupted() { std::exit(130); }

// ---- the reference ----

// Its weights read from the files as they are needed: the object stays where it is.
struct Reference {
  std::string name;
  std::optional<HfDirectory> directory;
  std::optional<GgufFile> gguf;
  std::optional<LoadedModel> package;
  std::optional<ModelSource> source;
  ReferenceWeights weights;
  bool floats = true;  // its weights are no codes
};

Expected<std::unique_ptr<Reference>> open_reference(const std::string& path) {
  auto r = std::make_unique<Reference>();
  r->name = path;
  POCKET_TRY(kind, model_kind(path));
  if (kind == ModelKind::package) {
    POCKET_TRY(package, open_package(path));
    r->package = std::move(package);
    r->floats = false;
    r->weights = reference_weights(r->package->spec, r->package->weights);
    return r;
  }
  // Values are read, nothing is packed: any format will do, and no mixture of element types is in the way.
  constexpr auto any = WeightFormat::w8_g32;
  if (kind == ModelKind::hugging_face) {
    POCKET_TRY(directory, HfDirectory::open(path));
    r->directory = std::move(directory);
    POCKET_TRY(source, hf_source(*r->directory, any));
    r->source = std::move(source);
  } else {
    POCKET_TRY(file, GgufFile::open(path));
    r->gguf = std::move(file);
    POCKET_TRY(source, gguf_source(*r->gguf, any));
    r->source = std::move(source);
  }
  for (const SourceMatrix& m : r->source->matrices)
    for (const SourceTensor& t : m.parts) r->floats = r->floats && is_float(t.type);
  r->weights = reference_weights(*r->source);
  return r;
}

void check_shapes(const RuntimeSpec& model, const RuntimeSpec& reference, const std::string& name) {
  const struct {
    const char* what;
    std::size_t model, reference;
  } all[] = {{"layers", model.layers, reference.layers},        {"hidden size", model.hidden, reference.hidden},
             {"query heads", model.heads, reference.heads},     {"KV heads", model.kv_heads, reference.kv_heads},
             {"head size", model.head_dim, reference.head_dim}, {"feed-forward size", model.ffn, reference.ffn},
             {"vocabulary", model.vocab, reference.vocab},      {"norms of q and k", model.qk_norm, reference.qk_norm}};
  for (const auto& d : all)
    if (d.model != d.reference)
      die({Errc::unsupported, name + ": " + d.what + " " + std::to_string(d.reference) + ", the model has " +
                                  std::to_string(d.model) + ": these are not the same model"});
}

// ---- the text ----

struct Text {
  std::string from;
  std::vector<std::int32_t> tokens;  // [windows * length]
  std::size_t windows = 0, length = 0;
  std::optional<Tokenizer> tokenizer;
};

// Integers apart by anything that is neither a digit nor a sign: lines, a JSON list.
std::vector<std::int32_t> parse_tokens(const std::string& path, std::size_t vocab) {
  const std::string text = value_or_die(read_file(path));
  std::vector<std::int32_t> ids;
  for (const char *p = text.data(), *end = p + text.size(); p != end;) {
    if (std::isspace(static_cast<unsigned char>(*p)) != 0 || *p == ',' || *p == '[' || *p == ']') {
      ++p;
      continue;
    }
    std::int32_t id = 0;
    const auto [next, error] = std::from_chars(p, end, id);
    if (error != std::errc{} || id < 0 || static_cast<std::size_t>(id) >= vocab)
      die({Errc::malformed, path + ": token " + std::to_string(ids.size()) + ": expected a number from 0 to " +
                                std::to_string(vocab - 1) + ", apart by spaces or commas"});
    ids.push_back(id);
    p = next;
  }
  return ids;
}

// Cuts tokens into windows of one length, each with the model's start token where it has one; what is left over at the
// end is not used.
void cut(Text& t, const std::vector<std::int32_t>& ids, std::optional<std::int32_t> start, std::size_t length,
         std::size_t most) {
  const std::size_t extra = start ? 1 : 0;
  t.length = (std::min)(length, ids.size() + extra);
  if (t.length < 2 || ids.empty()) die({Errc::invalid_argument, t.from + ": is too short: two tokens are needed"});
  const std::size_t step = t.length - extra;
  t.windows = ids.size() / step;
  if (most != 0) t.windows = (std::min)(t.windows, (std::max)(std::size_t{1}, most / t.length));
  for (std::size_t w = 0; w < t.windows; ++w) {
    if (start) t.tokens.push_back(*start);
    const auto from = ids.begin() + static_cast<std::ptrdiff_t>(w * step);
    t.tokens.insert(t.tokens.end(), from, from + static_cast<std::ptrdiff_t>(step));
  }
}

Text choose_text(const ValidateOptions& o, const RunOptions& run, const LoadedModel& model, const LogitsFile* logits) {
  Text t;
  auto tokenizer = open_text(find_model(run.model));
  if (!tokenizer && !o.reference.empty()) tokenizer = open_text(o.reference);
  const std::string no_text = tokenizer ? std::string() : tokenizer.error().message;
  if (tokenizer) t.tokenizer = *std::move(tokenizer);
  if (logits != nullptr) {
    t.from = logits->name();
    t.length = logits->length();
    t.windows = logits->windows();
    if (o.most_tokens != 0) t.windows = (std::min)(t.windows, (std::max)(std::size_t{1}, o.most_tokens / t.length));
    const auto used = logits->tokens().first(t.windows * t.length);
    t.tokens.assign(used.begin(), used.end());
    return t;
  }
  const std::size_t length = run.context != 0 ? run.context : (std::min<std::size_t>)(512, model.spec.positions);
  if (!o.tokens.empty()) {
    t.from = o.tokens;
    cut(t, parse_tokens(o.tokens, model.spec.vocab), std::nullopt, length, o.most_tokens);
    return t;
  }
  if (!t.tokenizer) die({Errc::unsupported, no_text + "; --tokens takes a file of token ids"});
  t.from = o.text.empty() ? "built-in sample, English and Chinese" : o.text;
  std::vector<std::int32_t> ids;
  check_or_die(
      t.tokenizer->encode(o.text.empty() ? std::string(sample_text) : value_or_die(read_file(o.text)), false, ids));
  for (const std::int32_t id : ids)
    if (static_cast<std::size_t>(id) >= model.spec.vocab)
      die({Errc::malformed, "the tokenizer gives token " + std::to_string(id) + ", the model's vocabulary has " +
                                std::to_string(model.spec.vocab)});
  const bool start = t.tokenizer->add_bos() && t.tokenizer->bos();
  cut(t, ids, start ? t.tokenizer->bos() : std::nullopt, length, o.most_tokens);
  return t;
}

// ---- logits, from whoever has them ----

// Rows [first, first + count) of all positions, asked for in order, never across a window's end.
using Rows = std::function<DenseMatrix64(std::size_t first, std::size_t count)>;

template <class P>
Rows graph_rows(const ReferenceWeights& weights, ThreadPool& pool, const Text& text, const std::string& name,
                ReferenceOptions options = {}) {
  ReferenceGraph<P> graph(weights, pool, options);
  const ProgressLine line(name);
  graph.progress = [&line](std::size_t done, std::size_t layers) {
    line.show(done, layers);
    return !interrupted.load();
  };
  auto hidden = std::make_shared<DenseMatrix<typename P::Scalar>>(graph.hidden(text.tokens, text.length));
  if (hidden->size() == 0) stop_interrupted();
  graph.progress = nullptr;
  return [graph, hidden](std::size_t first, std::size_t count) -> DenseMatrix64 {
    const DenseMatrix<typename P::Scalar> rows =
        hidden->middleRows(static_cast<Eigen::Index>(first), static_cast<Eigen::Index>(count));
    return graph.logits(rows).template cast<double>();
  };
}

Rows reference_rows(const std::string& arithmetic, const ReferenceWeights& weights, ThreadPool& pool,
                    const Text& text) {
  const std::string name = "reference, " + arithmetic;
  if (arithmetic == "bf16") return graph_rows<Stored<bf16>>(weights, pool, text, name);
  if (arithmetic == "f16") return graph_rows<Stored<f16>>(weights, pool, text, name);
  return graph_rows<Exact>(weights, pool, text, name);
}

Rows file_rows(const LogitsFile& file) {
  return [&file](std::size_t first, std::size_t count) {
    DenseMatrix<float> rows(static_cast<Eigen::Index>(count), static_cast<Eigen::Index>(file.vocab()));
    for (std::size_t i = 0; i < count; ++i) file.read(first + i, rows.data() + i * file.vocab());
    return DenseMatrix64(rows.cast<double>());
  };
}

Rows session_rows(Session& session, const Text& text) {
  return [&session, &text](std::size_t first, std::size_t count) {
    if (first % text.length == 0) check_or_die(session.rewind(0));
    check_or_die(session.forward(std::span(text.tokens).subspan(first, count), count));
    const auto all = session.logits(0);  // rows follow each other
    return DenseMatrix64(Eigen::Map<const DenseMatrix<float>>(all.data(), static_cast<Eigen::Index>(count),
                                                              static_cast<Eigen::Index>(all.size()))
                             .cast<double>());
  };
}

// Rows of logits that exist at once: some 32 MB of each kind.
std::size_t piece_of(std::size_t vocab) {
  return (std::clamp)((std::size_t{4} << 20) / vocab, std::size_t{8}, std::size_t{128});
}

struct Pair {
  std::size_t reference, model;  // indices of sources
};

// Every pair over every position.
std::vector<std::vector<PositionDivergence>> compare(const std::vector<Rows>& sources, const std::vector<Pair>& pairs,
                                                     const Text& text, std::size_t vocab, ThreadPool& pool) {
  const ProgressLine line("comparing");
  std::vector<std::vector<PositionDivergence>> all(pairs.size());
  for (auto& a : all) a.resize(text.tokens.size());
  const std::size_t piece = piece_of(vocab);
  for (std::size_t first = 0, count; first < text.tokens.size(); first += count) {
    if (interrupted) stop_interrupted();
    line.show(first, text.tokens.size());
    count = (std::min)(piece, text.length - first % text.length);
    std::vector<DenseMatrix64> logits;
    for (const Rows& rows : sources) logits.push_back(rows(first, count));
    pool.parallel_for(pairs.size() * count, [&](std::size_t task, unsigned) {
      const std::size_t p = task / count, i = task % count, at = first + i;
      const auto row = [&](std::size_t source) {
        return std::span<const double>(logits[source].data() + i * vocab, vocab);
      };
      const std::int32_t next = (at + 1) % text.length == 0 ? -1 : text.tokens[at + 1];
      all[p][at] = compare_logits(row(pairs[p].reference), row(pairs[p].model), next);
    });
  }
  return all;
}

// ---- layer by layer ----

// Root mean square over the tokens of each token's relative error: no token's size counts more than another's.
double relative_error(const DenseMatrix64& got, const DenseMatrix64& want) {
  double sum = 0;
  for (Eigen::Index i = 0; i < want.rows(); ++i) {
    const double norm = want.row(i).squaredNorm();
    if (norm > 0) sum += (got.row(i) - want.row(i)).squaredNorm() / norm;
  }
  return std::sqrt(sum / static_cast<double>(want.rows()));
}

double product_loss(const DenseMatrix64& got, const DenseMatrix64& want) {
  const double error = (got - want).norm();
  return error == 0 ? 0 : error / want.norm();
}

std::string place(std::size_t layer, const char* part) { return "layer " + std::to_string(layer) + ", " + part; }

// The kernels' operations against float64, over the first tokens: as a prompt, and the last of them decoded.
std::vector<DenseMatrix64> check_kernels(const LoadedModel& m, const CpuBackend::Options& backend, SessionShape shape,
                                         std::span<const std::int32_t> tokens, ValidationReport& r) {
  const ProgressLine line("checking the kernels");
  shape.batch = shape.logit_rows = shape.context = tokens.size();
  auto session = value_or_die(CheckedSession::create(m.spec, m.weights, shape, backend));
  check_or_die(session.forward(tokens, tokens.size()));
  auto residuals = session.backend().residuals();
  check_or_die(session.rewind(tokens.size() - 1));
  check_or_die(session.forward(tokens.last(1)));
  r.detail_tokens = tokens.size();
  r.findings = session.backend().findings();
  for (std::size_t l = 0; l < r.findings.size(); ++l)
    for (std::size_t o = 0; o < checked_operations; ++o) {
      const Finding& f = r.findings[l][o];
      if (f.share <= 1) continue;
      char text[128];
      std::snprintf(text, sizeof text, ": off by %.3g times what its arithmetic allows (relative error %.2g)", f.share,
                    f.relative());
      r.faults.push_back(place(l, name_of(static_cast<CheckedOperation>(o))) + text);
    }
  return residuals;
}

// Codes that another code would beat, in a few words: each matrix where they are few, else the furthest of all.
void remark_on_weights(const std::vector<std::pair<std::string, const WeightLoss*>>& all, ValidationReport& r) {
  std::vector<std::pair<std::string, const WeightLoss*>> some;
  std::size_t not_nearest = 0, weights = 0;
  for (const auto& one : all) {
    not_nearest += one.second->not_nearest;
    weights += one.second->weights;
    if (one.second->not_nearest != 0) some.push_back(one);
  }
  if (some.empty()) return;
  const auto furthest = [](const auto& a, const auto& b) { return a.second->steps > b.second->steps; };
  std::sort(some.begin(), some.end(), furthest);
  char text[200];
  if (some.size() > 4) {
    std::snprintf(text, sizeof text,
                  "%zu of %zu codes, in %zu matrices, are not the nearest to their weights: not made from this very "
                  "reference, or by a quantiser that trades one weight's error for another's; the furthest: ",
                  not_nearest, weights, some.size());
    r.remarks.push_back(text);
    some.resize(1);
  }
  for (const auto& [where, loss] : some) {
    std::snprintf(text, sizeof text,
                  ": %zu of %zu codes are not the nearest to their weights; row %zu, column %zu is off by %.1f steps",
                  loss->not_nearest, loss->weights, loss->row, loss->column, loss->steps);
    r.remarks.push_back(where + text);
  }
}

void compare_layers(const LoadedModel& m, const ReferenceWeights& own, const ReferenceWeights& reference,
                    ThreadPool& pool, std::span<const std::int32_t> tokens, const std::vector<DenseMatrix64>& residuals,
                    ValidationReport& r) {
  r.layers.resize(m.spec.layers);
  ReferenceGraph<Exact> graph(reference, pool);
  const ProgressLine line("layer by layer");
  graph.progress = [&](std::size_t done, std::size_t layers) {
    line.show(done, layers);
    return !interrupted.load();
  };
  graph.on_residual = [&](std::size_t l, bool after_ffn, const DenseMatrix64& x) {
    const double error = relative_error(residuals[2 * l + after_ffn], x);
    (after_ffn ? r.layers[l].after_ffn : r.layers[l].after_attention) = error;
  };
  graph.on_project = [&](std::size_t l, Projection p, const DenseMatrix64& h, const DenseMatrix64& y) {
    r.layers[l].products[static_cast<std::size_t>(p)] = product_loss(graph.product(h, matrix_of(own.layers[l], p)), y);
  };
  const DenseMatrix64 hidden = graph.hidden(tokens, tokens.size());
  if (hidden.size() == 0) stop_interrupted();
  r.head_product = product_loss(graph.product(hidden, own.head), graph.logits(hidden));
  const auto same = [](std::size_t row) { return row; };
  std::vector<std::pair<std::string, const WeightLoss*>> losses{{"embedding", &r.embedding}};
  r.embedding = weight_loss(reference.embedding, m.weights.embedding, same, pool);
  if (!m.tied) {
    r.head = weight_loss(reference.head, m.weights.head, same, pool);
    losses.emplace_back("head", &r.head);
  }
  for (std::size_t l = 0; l < m.spec.layers; ++l)
    for (std::size_t i = 0; i < projections; ++i) {
      const auto p = static_cast<Projection>(i);
      WeightLoss& loss = r.layers[l].weights[i];
      loss = weight_loss(
          matrix_of(reference.layers[l], p), packed_matrix(m.weights.layers[l], p),
          [&](std::size_t row) { return packed_row(m.spec, p, row); }, pool);
      losses.emplace_back(place(l, name_of(p)), &loss);
    }
  remark_on_weights(losses, r);
  if (own.rms_epsilon != reference.rms_epsilon || own.rope_base != reference.rope_base)
    r.remarks.push_back("the norms' epsilon or the rotary base is not the reference's");
}

// ---- greedy text ----

std::int32_t arg_max(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// `count` greedy tokens after `ids`.
std::vector<std::int32_t> model_continues(Session& session, const std::vector<std::int32_t>& ids, std::size_t count) {
  std::vector<std::int32_t> out;
  check_or_die(session.rewind(0));
  check_or_die(session.forward(ids));
  while (out.size() < count) {
    out.push_back(arg_max(session.logits()));
    if (out.size() < count) check_or_die(session.forward(std::span(out).last(1)));
  }
  return out;
}

// The same of the reference graph, with the model as its draft: one pass over all positions tells how many of the
// model's tokens are the reference's own.
template <class P>
std::vector<std::int32_t> reference_continues(const ReferenceWeights& weights, ThreadPool& pool, Session& session,
                                              std::vector<std::int32_t> ids, std::size_t count) {
  const ReferenceGraph<P> graph(weights, pool);
  const std::size_t prompt = ids.size();
  while (ids.size() < prompt + count) {
    if (interrupted) stop_interrupted();
    const std::size_t sure = ids.size();
    const auto draft = model_continues(session, ids, prompt + count - sure);
    auto all = ids;
    all.insert(all.end(), draft.begin(), draft.end());
    const auto hidden = graph.hidden(all, all.size());
    const DenseMatrix<typename P::Scalar> rows =
        hidden.middleRows(static_cast<Eigen::Index>(sure - 1), static_cast<Eigen::Index>(draft.size()));
    const auto logits = graph.logits(rows);
    for (std::size_t i = 0; i < draft.size() && ids.size() == sure + i; ++i) {
      Eigen::Index best = 0;
      logits.row(static_cast<Eigen::Index>(i)).maxCoeff(&best);
      ids.push_back(static_cast<std::int32_t>(best));
      if (ids.back() != draft[i]) break;
    }
  }
  return {ids.begin() + static_cast<std::ptrdiff_t>(prompt), ids.end()};
}

std::string as_text(const Text& t, std::span<const std::int32_t> ids) {
  if (t.tokenizer) return t.tokenizer->decode(ids, true);
  std::string all;
  for (const std::int32_t id : ids) all.append(all.empty() ? "" : " ").append(std::to_string(id));
  return all;
}

void continue_both(const std::string& arithmetic, const ReferenceWeights& weights, ThreadPool& pool, Session& session,
                   const Text& text, std::size_t count, ValidationReport& r) {
  const ProgressLine line("greedy text");
  const std::size_t prompt = (std::min)(std::size_t{32}, text.length / 2);
  for (std::size_t w = 0; w < text.windows; w += (std::max)(std::size_t{1}, text.windows - 1)) {
    const auto from = text.tokens.begin() + static_cast<std::ptrdiff_t>(w * text.length);
    const std::vector<std::int32_t> ids(from, from + static_cast<std::ptrdiff_t>(prompt));
    const auto model = model_continues(session, ids, count);
    const auto reference = arithmetic == "bf16"  ? reference_continues<Stored<bf16>>(weights, pool, session, ids, count)
                           : arithmetic == "f16" ? reference_continues<Stored<f16>>(weights, pool, session, ids, count)
                                                 : reference_continues<Exact>(weights, pool, session, ids, count);
    const auto differ = std::mismatch(model.begin(), model.end(), reference.begin()).first;
    r.continuations.push_back({as_text(text, ids), as_text(text, reference), as_text(text, model), count,
                               static_cast<std::size_t>(differ - model.begin())});
  }
}

// ---- where the error comes from ----

void break_down(const ReferenceWeights& own, const ReferenceWeights& reference, ThreadPool& pool, const Text& text,
                Session& a16, Session& a8, ValidationReport& r) {
  std::vector<Rows> sources;
  sources.push_back(graph_rows<Stored<bf16>>(reference, pool, text, "BF16 graph"));
  sources.push_back(graph_rows<Exact>(reference, pool, text, "float64 graph"));
  sources.push_back(graph_rows<Exact>(own, pool, text, "the model's weights in the float64 graph"));
  sources.push_back(graph_rows<Exact>(own, pool, text, "with float16 keys and values", {true, {}}));
  sources.push_back(graph_rows<Exact>(own, pool, text, "with A16", {true, ActivationForm::a16}));
  sources.push_back(session_rows(a16, text));
  sources.push_back(graph_rows<Exact>(own, pool, text, "with A8", {true, ActivationForm::a8}));
  sources.push_back(session_rows(a8, text));
  const struct {
    const char* name;
    Pair step;
  } steps[] = {{"BF16 arithmetic", {0, 1}},
               {"quantised weights", {1, 2}},
               {"float16 keys and values", {2, 3}},
               {"A16 activations", {3, 4}},
               {"kernels, A16", {4, 5}},
               {"A8 activations", {3, 6}},
               {"kernels, A8", {6, 7}},
               {"all but the weights, A16", {2, 5}},
               {"all but the weights, A8", {2, 7}}};
  std::vector<Pair> pairs;
  for (const auto& s : steps) {
    pairs.push_back(s.step);
    pairs.push_back({0, s.step.model});
  }
  const auto all = compare(sources, pairs, text, own.spec.vocab, pool);
  for (std::size_t i = 0; i < std::size(steps); ++i)
    r.breakdown.push_back(
        {steps[i].name, summarize(all[2 * i], own.spec.vocab), summarize(all[2 * i + 1], own.spec.vocab)});
}

std::string formats_of(const LoadedModel& m) {
  std::string text;
  for (const WeightFormat f : {WeightFormat::w4_g64, WeightFormat::w4_g32, WeightFormat::w8_g32}) {
    bool used = m.weights.embedding.format == f || m.weights.head.format == f;
    for (const auto& l : m.weights.layers)
      for (const PackedMatrix* w : {&l.qkv, &l.output, &l.gate_up, &l.down}) used = used || w->format == f;
    if (used) text.append(text.empty() ? "" : " and ").append(name_of(f));
  }
  return text;
}

void write_page(const std::string& path, bool force, const ValidationReport& r) {
  auto file = value_or_die(OutputFile::create(path, force));
  const std::string page = to_page(r);
  check_or_die(file.write(std::as_bytes(std::span(page))));
  check_or_die(file.commit());
}

}  // namespace

int validate(const RunOptions& run, const ValidateOptions& o, bool as_json) {
  catch_interrupt();
  const auto begin = std::chrono::steady_clock::now();
  if (!o.reference.empty() && !o.logits.empty())
    die({Errc::invalid_argument, "--reference and --logits: one of them is the reference, not both"});
  if (o.breakdown && o.reference.empty())
    die({Errc::invalid_argument, "--breakdown: needs the weights of a reference (--reference)"});
  std::error_code ignored;
  if (!o.page.empty() && !o.force && std::filesystem::exists(o.page, ignored))
    die({Errc::io, o.page + " exists already; --force replaces it"});
  auto pool = value_or_die(ThreadPool::create(run.threads));
  const LoadedModel m = value_or_die(open_weights(find_model(run.model), *pool));

  std::unique_ptr<Reference> reference;
  std::optional<LogitsFile> logits;
  if (!o.logits.empty()) logits = value_or_die(LogitsFile::open(o.logits));
  if (!o.reference.empty()) {
    reference = value_or_die(open_reference(o.reference));
    check_shapes(m.spec, reference->weights.spec, o.reference);
  }
  if (logits && logits->vocab() != m.spec.vocab)
    die({Errc::unsupported, o.logits + ": tensor 'logits': a vocabulary of " + std::to_string(logits->vocab()) +
                                ", the model has " + std::to_string(m.spec.vocab)});
  const Text text = choose_text(o, run, m, logits ? &*logits : nullptr);
  if (text.length > m.spec.positions)
    die({Errc::invalid_argument, "windows of " + std::to_string(text.length) + " tokens: the model takes at most " +
                                     std::to_string(m.spec.positions)});

  CpuBackend::Options backend;
  backend.executor = pool.get();
  backend.kernels = choose_kernels(run.isa);
  SessionShape shape;
  shape.context = text.length + o.greedy;
  shape.logit_rows = shape.batch = (std::min)(piece_of(m.spec.vocab), text.length);
  shape.activations = activation_form(run.activations);
  shape.context = (std::min)(shape.context, m.spec.positions);
  auto session = value_or_die(Session::create(m.spec, m.weights, shape, backend));

  ValidationReport r;
  r.model = m.name;
  r.formats = formats_of(m);
  r.activations = name_of(shape.activations);
  r.isa = backend.kernels->name;
  r.text = text.from;
  r.windows = text.windows;
  r.length = text.length;
  r.vocab = m.spec.vocab;
  r.tied = m.tied;
  r.has_weights = reference != nullptr;

  // Without a reference the model is its own: what its weights say, without the kernels' arithmetic.
  const ReferenceWeights own = reference_weights(m.spec, m.weights);
  const ReferenceWeights& weights = reference ? reference->weights : own;
  const std::size_t detail = (std::min)(text.length, std::size_t{128});
  const auto first = std::span(text.tokens).first(detail);
  const auto residuals = check_kernels(m, backend, shape, first, r);
  if (logits) {
    r.reference = logits->engine().empty() ? o.logits : logits->engine() + ", " + o.logits;
  } else {
    r.reference = reference ? reference->name : "the model's own weights";
    r.arithmetic = !o.arithmetic.empty() ? o.arithmetic : reference && reference->floats ? "bf16" : "f64";
    compare_layers(m, own, weights, *pool, first, residuals, r);
  }
  const auto positions = compare(
      {logits ? file_rows(*logits) : reference_rows(r.arithmetic, weights, *pool, text), session_rows(session, text)},
      {{0, 1}}, text, m.spec.vocab, *pool);
  r.positions = positions[0];
  r.total = summarize(r.positions, m.spec.vocab);
  if (!std::isfinite(r.total.kl_mean)) r.faults.push_back("logits that are not finite");
  if (o.breakdown) {
    SessionShape other = shape;
    other.activations = ActivationForm::a16;
    auto a16 = value_or_die(Session::create(m.spec, m.weights, other, backend));
    other.activations = ActivationForm::a8;
    auto a8 = value_or_die(Session::create(m.spec, m.weights, other, backend));
    break_down(own, weights, *pool, text, a16, a8, r);
  }
  if (!logits && o.greedy > 0 && text.length >= 2)
    continue_both(r.arithmetic, weights, *pool, session, text,
                  (std::min)(o.greedy, shape.context - (std::min)(std::size_t{32}, text.length / 2)), r);
  r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

  if (!o.page.empty()) write_page(o.page, o.force, r);
  if (as_json)
    std::printf("%s\n", to_json(r).c_str());
  else
    print(r);
  return r.faults.empty() ? 0 : 1;
}

}  // namespace tools
