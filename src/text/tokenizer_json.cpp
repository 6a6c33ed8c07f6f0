#include "text/tokenizer_json.h"

#include <fmt/format.h>

#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "core/files.h"

namespace levin::text {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxAddedTokenBytes = 4096;

// GPT-2's pattern, which ByteLevel with use_regex splits with.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string shortened(std::string text) {
  constexpr std::size_t kMax = 200;
  if (text.size() > kMax) text = text.substr(0, kMax) + "...";
  return text;
}

std::string show(const json& value) {
  return shortened(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

[[noreturn]] void refuse(const std::string& what, const std::string& where,
                         const std::string& found, const std::string& expected = {}) {
  throw Error(
      {.what = what, .where = where, .expected = expected, .found = shortened(found), .hint = {}});
}

// A JSON object whose every key must be known, so that no option of the file is passed over.
class Fields {
 public:
  Fields(const json& object, std::string where, std::initializer_list<std::string_view> known)
      : where_(std::move(where)), object_(object) {
    if (!object.is_object())
      refuse("tokenizer field has the wrong type", where_, show(object), "an object");
    for (const auto& [key, value] : object.items()) {
      bool is_known = false;
      for (const std::string_view name : known) is_known |= name == key;
      if (!is_known) refuse("tokenizer option is not known", where_, key);
    }
  }

  std::string where(std::string_view key) const { return fmt::format("{}.{}", where_, key); }

  // Null when the key is absent or JSON null.
  const json* find(std::string_view key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  const json& require(std::string_view key) const {
    const json* value = find(key);
    if (value == nullptr) refuse("tokenizer field is missing", where(key), "nothing");
    return *value;
  }

  std::string text(std::string_view key) const {
    const json& value = require(key);
    if (!value.is_string()) wrong_type(key, value, "a string");
    return value.get<std::string>();
  }

  const json& array(std::string_view key) const {
    const json& value = require(key);
    if (!value.is_array()) wrong_type(key, value, "an array");
    return value;
  }

  bool flag(std::string_view key, bool fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) wrong_type(key, *value, "true or false");
    return value->get<bool>();
  }

  // Refuses any value but null and false, zero or the empty string.
  void must_be_off(std::string_view key) const {
    const json* value = find(key);
    if (value == nullptr || *value == json(false) || *value == json("")) return;
    if (value->is_number() && value->get<double>() == 0) return;
    refuse("tokenizer option is not implemented", where(key), show(*value), "null or false");
  }

 private:
  [[noreturn]] void wrong_type(std::string_view key, const json& value,
                               const std::string& expected) const {
    refuse("tokenizer field has the wrong type", where(key), show(value), expected);
  }

  std::string where_;
  const json& object_;
};

// The "type" of a component, without looking at its other fields.
std::string type_of(const json& component, const std::string& where) {
  if (!component.is_object()) {
    refuse("tokenizer field has the wrong type", where, show(component), "an object");
  }
  const auto it = component.find("type");
  if (it == component.end() || !it->is_string()) {
    refuse("tokenizer field is missing", where + ".type", "nothing");
  }
  return it->get<std::string>();
}

int32_t token_id(const json& value, const std::string& where) {
  const bool in_range = value.is_number_integer() && value >= 0 && value < kMaxVocabulary;
  if (!in_range) {
    refuse("token id is out of range", where, show(value),
           fmt::format("an integer from 0 to {}", kMaxVocabulary - 1));
  }
  return value.get<int32_t>();
}

bool read_normalizer(const json* normalizer, const std::string& where) {
  if (normalizer == nullptr) return false;
  const std::string type = type_of(*normalizer, where);
  if (type == "NFC") return true;
  if (type != "Sequence") refuse("normalizer is not implemented", where, type, "NFC or null");
  const Fields fields(*normalizer, where, {"type", "normalizers"});
  bool nfc = false;
  for (const json& part : fields.array("normalizers")) {
    nfc |= read_normalizer(&part, fields.where("normalizers"));
  }
  return nfc;
}

SplitStage read_split(const json& stage, const std::string& where) {
  const Fields fields(stage, where, {"type", "pattern", "behavior", "invert"});
  const Fields pattern(fields.require("pattern"), fields.where("pattern"), {"Regex", "String"});
  SplitStage result;
  if (pattern.find("Regex") != nullptr) {
    result.pattern = SplitPattern::regex(pattern.text("Regex"), pattern.where("Regex"));
  } else {
    result.pattern = SplitPattern::literal(pattern.text("String"), pattern.where("String"));
  }
  const std::string behavior = fields.text("behavior");
  const bool removed = behavior == "Removed";
  if (!removed && behavior != "Isolated") {
    refuse("split behavior is not implemented", fields.where("behavior"), behavior,
           "Isolated or Removed");
  }
  const bool invert = fields.flag("invert", false);
  result.drop_matches = removed && !invert;
  result.drop_gaps = removed && invert;
  return result;
}

SplitStage read_byte_level(const json& stage, const std::string& where) {
  const Fields fields(stage, where, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  SplitStage result;
  result.add_prefix_space = fields.flag("add_prefix_space", true);
  if (fields.flag("use_regex", true)) result.pattern = SplitPattern::regex(kGpt2Pattern, where);
  return result;
}

std::vector<SplitStage> read_pre_tokenizer(const json& pre_tokenizer, const std::string& where) {
  std::vector<SplitStage> stages;
  bool byte_level = false;
  auto add = [&](const json& stage, const std::string& at) {
    if (byte_level) refuse("pre-tokenizer stage after ByteLevel", at, show(stage));
    const std::string type = type_of(stage, at);
    if (type == "ByteLevel") {
      byte_level = true;
      stages.push_back(read_byte_level(stage, at));
    } else if (type == "Split") {
      stages.push_back(read_split(stage, at));
    } else {
      refuse("pre-tokenizer is not implemented", at, type, "Split or ByteLevel");
    }
  };
  if (type_of(pre_tokenizer, where) == "Sequence") {
    const Fields fields(pre_tokenizer, where, {"type", "pretokenizers"});
    int index = 0;
    for (const json& stage : fields.array("pretokenizers")) {
      add(stage, fmt::format("{}[{}]", fields.where("pretokenizers"), index++));
    }
  } else {
    add(pre_tokenizer, where);
  }
  if (!byte_level) {
    refuse("the pre-tokenizer has no ByteLevel stage", where, show(pre_tokenizer),
           "byte-level BPE");
  }
  return stages;
}

void check_decoder(const json& decoder, const std::string& where) {
  const std::string type = type_of(decoder, where);
  if (type != "ByteLevel") refuse("decoder is not implemented", where, type, "ByteLevel");
}

std::vector<AddedToken> read_added_tokens(const json* tokens, const std::string& where) {
  std::vector<AddedToken> result;
  if (tokens == nullptr) return result;
  if (!tokens->is_array()) {
    refuse("tokenizer field has the wrong type", where, show(*tokens), "an array");
  }
  std::unordered_set<std::string> contents;
  std::unordered_set<int32_t> ids;
  for (const json& token : *tokens) {
    const std::string at = fmt::format("{}[{}]", where, result.size());
    const Fields fields(
        token, at, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    fields.must_be_off("single_word");
    AddedToken added;
    added.id = token_id(fields.require("id"), fields.where("id"));
    added.content = fields.text("content");
    added.special = fields.flag("special", false);
    added.normalized = fields.flag("normalized", !added.special);
    added.lstrip = fields.flag("lstrip", false);
    added.rstrip = fields.flag("rstrip", false);
    if (added.content.empty() || added.content.size() > kMaxAddedTokenBytes) {
      refuse("added token has an unreasonable length", fields.where("content"),
             fmt::format("{} bytes", added.content.size()),
             fmt::format("1 to {} bytes", kMaxAddedTokenBytes));
    }
    if (!contents.insert(added.content).second || !ids.insert(added.id).second) {
      refuse("added token stands twice", at, show(token));
    }
    result.push_back(std::move(added));
  }
  return result;
}

using IdOfSpelling = std::unordered_map<std::string_view, int32_t>;

std::vector<VocabularyEntry> read_vocabulary(const json& vocab, const std::string& where) {
  if (!vocab.is_object()) {
    refuse("tokenizer field has the wrong type", where, show(vocab), "an object");
  }
  std::vector<VocabularyEntry> result;
  result.reserve(vocab.size());
  std::unordered_map<int32_t, std::string_view> spelling_of_id;
  for (const auto& [spelling, value] : vocab.items()) {
    const int32_t id = token_id(value, fmt::format("{}[\"{}\"]", where, shortened(spelling)));
    result.push_back({spelling, id});
    const auto [other, fresh] = spelling_of_id.emplace(id, spelling);
    if (!fresh) {
      refuse("two tokens of the vocabulary have the same id", where,
             fmt::format("\"{}\" and \"{}\" are both {}", other->second, spelling, id));
    }
  }
  return result;
}

// The two halves of a merge: "a b", or ["a", "b"] as newer files write it.
std::pair<std::string, std::string> read_merge(const json& merge, const std::string& where) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  refuse("merge is malformed", where, show(merge), R"("a b" or ["a", "b"])");
}

std::vector<Merge> read_merges(const json& merges, const IdOfSpelling& ids,
                               const std::string& where) {
  std::vector<Merge> result;
  result.reserve(merges.size());
  for (const json& merge : merges) {
    const std::string at = fmt::format("{}[{}]", where, result.size());
    const auto [left, right] = read_merge(merge, at);
    auto id_of = [&](const std::string& spelling) {
      const auto it = ids.find(spelling);
      if (it == ids.end()) {
        refuse("merge refers to a token that is not in the vocabulary", at, show(merge),
               fmt::format("\"{}\" in model.vocab", shortened(spelling)));
      }
      return it->second;
    };
    result.push_back({id_of(left), id_of(right), id_of(left + right)});
  }
  return result;
}

void read_model(const json& model, const std::string& where, TokenizerFile& file) {
  const Fields fields(
      model, where,
      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
       "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  const std::string type = fields.find("type") == nullptr ? "BPE" : fields.text("type");
  if (type != "BPE")
    refuse("tokenizer model is not implemented", fields.where("type"), type, "BPE");
  // unk_token and fuse_unk say what to do with a byte that is not in the vocabulary; a file that
  // lacks one is refused when it is put to use, so they have no effect.
  fields.must_be_off("dropout");
  fields.must_be_off("continuing_subword_prefix");
  fields.must_be_off("end_of_word_suffix");
  fields.must_be_off("byte_fallback");
  file.ignore_merges = fields.flag("ignore_merges", false);
  file.vocabulary = read_vocabulary(fields.require("vocab"), fields.where("vocab"));
  IdOfSpelling ids;
  ids.reserve(file.vocabulary.size());
  for (const VocabularyEntry& entry : file.vocabulary) ids.emplace(entry.spelling, entry.id);
  file.merges = read_merges(fields.array("merges"), ids, fields.where("merges"));
}

// Whether a post_processor puts tokens before or behind a text, as far as it can be told: those
// that levin does not know may.
bool adds_tokens(const json& processor) {
  if (!processor.is_object()) return false;
  const json type = processor.value("type", json());
  if (type == "ByteLevel") return false;  // trims offsets
  if (type == "Sequence") {
    const json parts = processor.value("processors", json::array());
    return std::any_of(parts.begin(), parts.end(), adds_tokens);
  }
  if (type == "TemplateProcessing") {
    const json pieces = processor.value("single", json::array());
    return std::any_of(pieces.begin(), pieces.end(), [](const json& piece) {
      return piece.is_object() && piece.contains("SpecialToken");
    });
  }
  return true;
}

}  // namespace

TokenizerFile parse_tokenizer_json(std::string_view text, const std::string& where) {
  const json document = parse_json(text, where);
  const Fields fields(document, where,
                      {"version", "truncation", "padding", "added_tokens", "normalizer",
                       "pre_tokenizer", "post_processor", "decoder", "model"});
  TokenizerFile file;
  file.nfc = read_normalizer(fields.find("normalizer"), fields.where("normalizer"));
  file.stages = read_pre_tokenizer(fields.require("pre_tokenizer"), fields.where("pre_tokenizer"));
  check_decoder(fields.require("decoder"), fields.where("decoder"));
  file.added_tokens = read_added_tokens(fields.find("added_tokens"), fields.where("added_tokens"));
  read_model(fields.require("model"), fields.where("model"), file);
  if (const json* processor = fields.find("post_processor")) {
    file.adds_tokens = adds_tokens(*processor);
  }
  return file;
}

}  // namespace levin::text
