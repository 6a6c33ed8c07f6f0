#include "evaluate/text_set.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files.h"
#include "evaluate/json_lines.h"
#include "text/utf8.h"

namespace levin::evaluate {
namespace {

void add_document(TextSet& text, std::string document, const std::string& where) {
  if (document.empty()) {
    throw Error(
        {.what = "document is empty", .where = where, .expected = {}, .found = {}, .hint = {}});
  }
  text.documents.push_back(std::move(document));
}

int32_t end_of_document(const text::Tokenizer& tokenizer) {
  for (const char* content : {"</s>", "<|endoftext|>"}) {
    if (const auto id = tokenizer.find(content)) return *id;
  }
  throw Error({.what = "tokenizer has no token that ends a document",
               .where = "tokenizer.json",
               .expected = "</s> or <|endoftext|>",
               .found = "neither",
               .hint = {}});
}

}  // namespace

TextSet load_text(const std::filesystem::path& file) {
  TextSet text{.kind = file.stem().string(), .file = file, .documents = {}};
  if (file.extension() != ".jsonl") {
    std::string content = read_text(file);
    text::require_utf8(content, file.string());
    add_document(text, std::move(content), file.string());
    return text;
  }
  for_each_json_line(file, [&](const nlohmann::ordered_json& object, const std::string& where) {
    const auto found = object.find("text");
    if (found == object.end() || !found->is_string()) {
      throw Error({.what = "line has no text",
                   .where = where,
                   .expected = R"({"text": "...", ...})",
                   .found = found == object.end() ? "no \"text\"" : found->type_name(),
                   .hint = {}});
    }
    add_document(text, found->get<std::string>(), where);
  });
  return text;
}

TokenStream tokenize(const TextSet& text, const text::Tokenizer& tokenizer) {
  const int32_t end = end_of_document(tokenizer);
  TokenStream stream{
      .kind = text.kind, .documents = static_cast<int64_t>(text.documents.size()), .tokens = {}};
  for (const std::string& document : text.documents) {
    const std::vector<int32_t> ids = tokenizer.encode(document);
    stream.tokens.insert(stream.tokens.end(), ids.begin(), ids.end());
    stream.tokens.push_back(end);
  }
  return stream;
}

}  // namespace levin::evaluate
