// Any JSON as the quantization metadata of a folder: {"config": config.json, "hf":
// hf_quant_config.json}. An Error, or metadata that can be asked about any module.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/quant_metadata.h"
#include "core/error.h"
#include "core/files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<std::string> modules = {"backbone.embeddings",
                                            "backbone.layers.0.mixer.in_proj",
                                            "backbone.layers.0.mixer.conv1d",
                                            "backbone.layers.1.mixer.gate",
                                            "backbone.layers.1.mixer.experts.0.up_proj",
                                            "mtp.layers.0.eh_proj",
                                            "lm_head"};
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const nlohmann::json json = levin::parse_json(text, "fuzz");
    if (!json.is_object()) return 0;
    const auto metadata =
        levin::checkpoint::merge_quant_metadata(json.value("config", nlohmann::json::object()),
                                                json.value("hf", nlohmann::json()), modules);
    for (const std::string& module : modules) (void)metadata.for_module(module);
  } catch (const levin::Error&) {
    return 0;
  }
  return 0;
}
