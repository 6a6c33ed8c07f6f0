#include "quantize/calibration_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/files.h"
#include "core/plural.h"
#include "text/utf8.h"

namespace levin::quantize {
namespace {

// A tokenizer works on whole documents; more text than this is never needed to calibrate.
constexpr std::size_t kMaxDocumentBytes = std::size_t{1} << 20;

class TokenStream {
 public:
  TokenStream(const text::Tokenizer& tokenizer, int64_t max_tokens)
      : tokenizer_(tokenizer), max_tokens_(static_cast<std::size_t>(max_tokens)) {
    for (const char* content : {"</s>", "<|endoftext|>"}) {
      if (!end_) end_ = tokenizer.find(content);
    }
  }

  bool full() const { return tokens_.size() >= max_tokens_; }

  // Documents are cut at a megabyte, at a line end, so that a book does not take minutes to encode.
  void add(std::string_view document) {
    while (!document.empty() && !full()) {
      std::size_t cut = std::min(document.size(), kMaxDocumentBytes);
      if (cut < document.size()) {
        const std::size_t line = document.rfind('\n', cut);
        if (line != std::string_view::npos && line > 0) cut = line;
        while (cut > 0 && (static_cast<unsigned char>(document[cut]) & 0xc0) == 0x80) --cut;
        if (cut == 0) cut = document.size();
      }
      const std::vector<int32_t> ids = tokenizer_.encode(document.substr(0, cut));
      tokens_.insert(tokens_.end(), ids.begin(), ids.end());
      document.remove_prefix(cut);
    }
    if (end_) tokens_.push_back(*end_);
  }

  std::vector<int32_t> take() {
    if (full()) tokens_.resize(max_tokens_);
    return std::move(tokens_);
  }

 private:
  const text::Tokenizer& tokenizer_;
  std::size_t max_tokens_;
  std::optional<int32_t> end_;
  std::vector<int32_t> tokens_;
};

std::string text_of_line(std::string_view line, const std::string& where) {
  const nlohmann::json object = parse_json(line, where);
  if (!object.is_object() || !object.contains("text") || !object["text"].is_string()) {
    throw Error({.what = "line of calibration text has no text",
                 .where = where,
                 .expected = R"({"text": "..."})",
                 .found = {},
                 .hint = {}});
  }
  return object["text"].get<std::string>();
}

}  // namespace

std::vector<int32_t> calibration_tokens(const std::filesystem::path& file,
                                        const text::Tokenizer& tokenizer, int64_t max_tokens) {
  const MappedFile mapped(file);
  std::string_view content(reinterpret_cast<const char*>(mapped.bytes().data()),
                           mapped.bytes().size());
  TokenStream stream(tokenizer, max_tokens);
  if (file.extension() == ".jsonl") {
    for (int64_t number = 1; !content.empty() && !stream.full(); ++number) {
      const std::size_t end = content.find('\n');
      const std::string_view line = content.substr(0, end);
      content.remove_prefix(end == std::string_view::npos ? content.size() : end + 1);
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      stream.add(text_of_line(line, fmt::format("{}:{}", file.string(), number)));
    }
  } else if (!content.empty()) {
    text::require_utf8(content, file.string());
    stream.add(content);
  }
  std::vector<int32_t> tokens = stream.take();
  // One token has no successor to draft from; a handful of tokens calibrates nothing.
  if (tokens.size() < 2) {
    throw Error({.what = "calibration text is empty",
                 .where = file.string(),
                 .expected = "some thousand tokens of text like that of the real use",
                 .found = counted(tokens.size(), "token"),
                 .hint = {}});
  }
  return tokens;
}

}  // namespace levin::quantize
