#include "checkpoint/quant_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint/names.h"
#include "checkpoint/quant_source.h"
#include "core/error.h"
#include "core/files.h"

namespace levin::checkpoint {
namespace {

using nlohmann::json;

constexpr std::size_t kListed = 20;
constexpr std::size_t kMaxFileBytes = std::size_t{64} << 20;

// "...experts.7.up_proj" -> "...experts.up_proj"; other names as they are.
std::string without_expert(std::string_view module) {
  constexpr std::string_view kInfix = ".experts.";
  const std::size_t at = module.find(kInfix);
  if (at == std::string_view::npos) return std::string(module);
  const std::size_t begin = at + kInfix.size();
  const std::size_t end = module.find_first_not_of("0123456789", begin);
  if (end == begin || end == std::string_view::npos || module[end] != '.') {
    return std::string(module);
  }
  return std::string(module.substr(0, begin)) + std::string(module.substr(end + 1));
}

const ModuleQuant* find_explicit(const QuantMetadata& metadata, std::string_view module) {
  auto entry = metadata.modules.find(module);
  if (entry == metadata.modules.end()) entry = metadata.modules.find(without_expert(module));
  return entry == metadata.modules.end() ? nullptr : &entry->second;
}

bool matches_any(const std::vector<NamePattern>& patterns, std::string_view module) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const NamePattern& pattern) { return pattern.matches(module); });
}

// At most kListed sentences, then how many more there are.
void append_limited(std::vector<std::string>& out, const std::vector<std::string>& lines,
                    std::string_view noun) {
  for (std::size_t i = 0; i < std::min(lines.size(), kListed); ++i) out.push_back(lines[i]);
  if (lines.size() > kListed) {
    out.push_back(fmt::format("... and {} more {}", lines.size() - kListed, noun));
  }
}

class Merger {
 public:
  Merger(std::vector<QuantSource> sources, const std::vector<std::string>& modules)
      : sources_(std::move(sources)), modules_(modules) {}
  QuantMetadata merge();

 private:
  void compare_modules(const QuantSource& a, const QuantSource& b);
  void compare_kv_cache(const QuantSource& a, const QuantSource& b);
  void compare_algorithms(const QuantSource& a, const QuantSource& b);
  void check_own_algorithm(const QuantSource& source);
  void check_own_ignores(const QuantSource& source);
  void warn_unmatched();

  std::vector<QuantSource> sources_;
  const std::vector<std::string>& modules_;
  QuantMetadata merged_;
};

// On every module that either place or the checkpoint names. Places that list modules promise BF16
// for what they leave out; config_groups do not know the ignore list.
void Merger::compare_modules(const QuantSource& a, const QuantSource& b) {
  std::set<std::string, std::less<>> names(modules_.begin(), modules_.end());
  for (const QuantSource* source : {&a, &b}) {
    for (const auto& entry : source->told.modules) names.insert(entry.first);
  }
  const bool groups = a.groups_only || b.groups_only;
  std::vector<std::string> lines;
  for (const std::string& name : names) {
    if (groups && (matches_any(a.told.ignore, name) || matches_any(b.told.ignore, name))) continue;
    const ModuleQuant in_a = a.told.for_module(name);
    const ModuleQuant in_b = b.told.for_module(name);
    if (same_promise(in_a, in_b, groups)) continue;
    lines.push_back(fmt::format("{}: {} says {}, {} says {}", printable(name), a.place,
                                told_as(in_a), b.place, told_as(in_b)));
  }
  append_limited(merged_.contradictions, lines, "modules on which the two disagree");
}

void Merger::compare_kv_cache(const QuantSource& a, const QuantSource& b) {
  if (a.told.kv_cache == b.told.kv_cache) return;
  const auto name = [](const QuantSource& source) {
    return source.told.kv_cache == KvCacheQuant::kFp8 ? "FP8" : "no quantization";
  };
  if (a.tells_kv_cache && b.tells_kv_cache) {
    merged_.contradictions.push_back(
        fmt::format("KV cache: {} says {}, {} says {}", a.place, name(a), b.place, name(b)));
    return;
  }
  merged_.kv_cache = KvCacheQuant::kFp8;
  merged_.warnings.push_back(fmt::format("FP8 KV cache is told in {} only; readers of {} miss it",
                                         a.tells_kv_cache ? a.place : b.place,
                                         a.tells_kv_cache ? b.place : a.place));
}

void Merger::compare_algorithms(const QuantSource& a, const QuantSource& b) {
  if (a.quant_algo.empty() || b.quant_algo.empty() || a.quant_algo == b.quant_algo) return;
  merged_.contradictions.push_back(fmt::format("quant_algo: {} says {}, {} says {}", a.place,
                                               printable(a.quant_algo), b.place,
                                               printable(b.quant_algo)));
}

// One algorithm for all, beside a list of modules with others: engines read the one or the other.
void Merger::check_own_algorithm(const QuantSource& source) {
  if (!source.uniform) return;
  for (const auto& [module, quant] : source.told.modules) {
    if (quant == *source.uniform || quant.algo == QuantAlgo::kNone) continue;
    merged_.contradictions.push_back(fmt::format("{} says quant_algo {}, and {} for {}",
                                                 source.place, printable(source.quant_algo),
                                                 told_as(quant), printable(module)));
    return;
  }
}

// Engines test exclusion first, so a module that a place both lists and ignores is ambiguous.
void Merger::check_own_ignores(const QuantSource& source) {
  for (const NamePattern& pattern : source.told.ignore) {
    std::size_t covered = 0;
    std::string example;
    for (const auto& [module, quant] : source.told.modules) {
      if (quant.algo == QuantAlgo::kNone || !pattern.matches(module)) continue;
      if (covered++ == 0) example = fmt::format("{} as {}", printable(module), told_as(quant));
    }
    if (covered == 0) continue;
    merged_.contradictions.push_back(
        fmt::format("{} ignores \"{}\" and quantizes {} of the modules it covers ({})",
                    source.place, printable(pattern.text()), covered, example));
  }
}

void Merger::warn_unmatched() {
  if (modules_.empty()) return;
  std::set<std::string, std::less<>> known;
  for (const std::string& module : modules_) {
    known.insert(module);
    known.insert(without_expert(module));
    // Parents too: an entry may name a whole block.
    for (std::size_t dot = module.rfind('.'); dot != std::string::npos;
         dot = dot == 0 ? std::string::npos : module.rfind('.', dot - 1)) {
      if (!known.insert(module.substr(0, dot)).second) break;
    }
  }
  for (const QuantSource& source : sources_) {
    std::vector<std::string> lines;
    for (const auto& entry : source.told.modules) {
      if (known.contains(entry.first)) continue;
      lines.push_back(fmt::format("{} quantizes {}, which is not in the checkpoint", source.place,
                                  printable(entry.first)));
    }
    for (const NamePattern& pattern : source.told.ignore) {
      const bool used = std::any_of(known.begin(), known.end(), [&](const std::string& module) {
        return pattern.matches(module);
      });
      if (used) continue;
      lines.push_back(fmt::format("{} ignores \"{}\", which matches no module", source.place,
                                  printable(pattern.text())));
    }
    append_limited(merged_.warnings, lines, "entries that match no module");
  }
}

QuantMetadata Merger::merge() {
  if (sources_.empty()) return {};
  merged_ = sources_.front().told;
  for (const QuantSource& source : sources_) {
    check_own_ignores(source);
    check_own_algorithm(source);
  }
  for (std::size_t i = 1; i < sources_.size(); ++i) {
    const QuantSource& first = sources_.front();
    const QuantSource& other = sources_[i];
    if (first.told.method != other.told.method) {
      merged_.contradictions.push_back(fmt::format("{} says {}, {} says {}", first.place,
                                                   first.told.method, other.place,
                                                   other.told.method));
      continue;
    }
    compare_algorithms(first, other);
    compare_modules(first, other);
    if (!other.groups_only) compare_kv_cache(first, other);
  }
  warn_unmatched();
  return std::move(merged_);
}

// config.json's quantization_config, also where a multimodal wrapper keeps it.
const json* find_quantization_config(const json& config) {
  const json* first = nullptr;
  for (const char* wrapper : {"", "text_config", "llm_config"}) {
    const json* object = *wrapper == 0 ? &config : quant_json::find(config, wrapper);
    if (object == nullptr || !object->is_object()) continue;
    const json* found = quant_json::find(*object, "quantization_config");
    if (found == nullptr) continue;
    if (first != nullptr && *found != *first) {
      quant_json::fail("two quantization_config disagree",
                       fmt::format("config.json, {}.quantization_config", wrapper),
                       "one of them, or the same twice", quant_json::shown(*found));
    }
    first = found;
  }
  return first;
}

}  // namespace

std::string_view name_of(QuantAlgo algo) {
  switch (algo) {
    case QuantAlgo::kNone:
      return "not quantized";
    case QuantAlgo::kFp8:
      return "FP8";
    case QuantAlgo::kFp8PerChannelPerToken:
      return "FP8_PER_CHANNEL_PER_TOKEN";
    case QuantAlgo::kNvfp4:
      return "NVFP4";
    case QuantAlgo::kW4A16Nvfp4:
      return "W4A16_NVFP4";
    case QuantAlgo::kInt4Packed:
      return "pack-quantized int4";
  }
  return "?";
}

std::string told_as(const ModuleQuant& quant) {
  std::string text(name_of(quant.algo));
  if (quant.group_size > 0) text += fmt::format(" (group {})", quant.group_size);
  return text;
}

ModuleQuant QuantMetadata::for_module(std::string_view module) const {
  if (const ModuleQuant* entry = find_explicit(*this, module)) return *entry;
  if (targets.empty() && !everywhere_else) return {};
  if (matches_any(ignore, module)) return {};
  for (const auto& [pattern, quant] : targets) {
    if (pattern.matches(module)) return quant;
  }
  return everywhere_else.value_or(ModuleQuant{});
}

QuantMetadata merge_quant_metadata(const json& config, const json& hf_quant_config,
                                   const std::vector<std::string>& modules) {
  std::vector<QuantSource> sources;
  if (const json* found = find_quantization_config(config)) {
    const std::string where = "config.json quantization_config";
    quant_json::require_object(*found, where);
    const std::string method = quant_json::get_string(*found, "quant_method", where);
    if (method == "modelopt") {
      sources = parse_modelopt_config(*found);
    } else if (method == "compressed-tensors") {
      sources.push_back(parse_compressed_tensors(*found));
    } else {
      quant_json::fail("unsupported quant_method", where, "\"modelopt\" or \"compressed-tensors\"",
                       method.empty() ? "nothing" : fmt::format("\"{}\"", printable(method)));
    }
  }
  const bool in_config = !sources.empty();
  const bool in_file = !hf_quant_config.is_null();
  if (in_file) sources.push_back(parse_hf_quant_config(hf_quant_config));
  QuantMetadata merged = Merger(std::move(sources), modules).merge();
  if (in_file && !in_config) {
    merged.warnings.emplace_back(
        "only hf_quant_config.json says that the checkpoint is quantized; engines that read "
        "config.json alone take its bytes for plain weights");
  }
  return merged;
}

QuantMetadata read_quant_metadata(const std::filesystem::path& folder, const json& config,
                                  const std::vector<std::string>& modules) {
  const std::filesystem::path path = folder / "hf_quant_config.json";
  json hf_quant_config;
  if (file_exists(path)) {
    hf_quant_config = read_json(path, kMaxFileBytes);
    quant_json::require_object(hf_quant_config, path.string());
  }
  try {
    return merge_quant_metadata(config, hf_quant_config, modules);
  } catch (const Error& error) {
    ErrorParts parts = error.parts();
    parts.where = (folder / parts.where).string();  // which begins with the file's name
    throw Error(parts);
  }
}

}  // namespace levin::checkpoint
