// pocket export: a model of any kind as a GGUF file, for llama.cpp.
#include <cstdio>
#include <filesystem>

#include "common.hpp"
#include "pocket/files/gguf_export.hpp"
#include "progress.hpp"

namespace tools {

inline GgufExportType export_type(const std::string& name) {
  if (name == "q4_1") return GgufExportType::q4_1;
  if (name == "f16") return GgufExportType::f16;
  if (name == "f32") return GgufExportType::f32;
  return GgufExportType::exact;  // "auto": the parser admits no other
}

int export_model(const ExportOptions& o) {
  std::error_code ignored;
  if (!o.force && std::filesystem::exists(o.gguf, ignored))
    die({Errc::io, o.gguf + " exists already; --force replaces it"});
  catch_interrupt();
  auto pool = value_or_die(ThreadPool::create(o.threads));
  auto done = [&] {
    const ProgressLine line("writing " + o.gguf);
    return export_gguf(o.model, o.gguf, *pool,
                       {.type = export_type(o.type), .overwrite = o.force, .progress = [&](auto part, auto all) {
                          line.show(part, all);
                          return !interrupted.load();
                        }});
  }();
  if (!done && done.error().code == Errc::cancelled) return 130;
  const GgufExported written = value_or_die(std::move(done));
  std::printf("%s: %s, %.1f MB in %s%s\n", o.gguf.c_str(), written.architecture.c_str(),
              static_cast<double>(written.bytes) * 1e-6, written.types.c_str(),
              written.text ? "" : ", without a tokenizer");
  return 0;
}

}  // namespace tools
