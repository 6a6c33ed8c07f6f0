// The input is JSON, a zero byte and a text. The JSON is read as a tokenizer.json, and once more as
// changes to a small good one, which gets further; what can be read encodes the text and decodes
// it.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using nlohmann::json;

json small_tokenizer() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    levin::text::append_utf8(spelling, levin::text::byte_to_character(static_cast<uint8_t>(byte)));
    vocab[spelling] = byte;
  }
  vocab["th"] = 256;
  vocab["the"] = 257;
  json file = json::parse(R"({
    "added_tokens": [{"id": 300, "content": "<s>", "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\s+|\\S+"}, "behavior": "Isolated"},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "merges": ["t h", "th e"]}})");
  file["model"]["vocab"] = std::move(vocab);
  return file;
}

void run(const std::string& tokenizer_json, std::string_view text) {
  try {
    const auto tokenizer = levin::text::Tokenizer::parse(tokenizer_json, "fuzz");
    for (const bool parse_special : {true, false}) {
      const std::vector<int32_t> ids = tokenizer.encode(text, parse_special);
      const std::string decoded = tokenizer.decode(ids);
      levin::text::StreamDecoder stream(tokenizer);
      std::string streamed;
      for (const int32_t id : ids) streamed += stream.push(id);
      streamed += stream.finish();
      if (streamed != levin::text::to_valid_utf8(decoded)) __builtin_trap();
    }
  } catch (const levin::Error&) {
    // Refusing is right; crashing, hanging and other exceptions are not.
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  static const json kSmall = small_tokenizer();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = input.find('\0');
  const std::string document(input.substr(0, zero));
  const std::string_view text = zero == std::string_view::npos
                                    ? std::string_view("the <s> the\xC3\xA9 12")
                                    : input.substr(zero + 1);
  run(document, text);
  const json changes = json::parse(document, nullptr, false);
  if (!changes.is_object()) return 0;
  json changed = kSmall;
  changed.merge_patch(changes);
  run(changed.dump(-1, ' ', false, json::error_handler_t::replace), text);
  return 0;
}
