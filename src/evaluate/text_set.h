// Text to measure perplexity on: a file is one kind of text ("prose", "code"), a stream of tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace levin::evaluate {

// The documents of one file.
struct TextSet {
  std::string kind;  // the file's stem
  std::filesystem::path file;
  std::vector<std::string> documents;
};

// A file named *.jsonl holds one document per line, the string under "text"; other keys describe
// it and are left alone. Any other file is one document. Throws Error with file and line for bytes
// that are not UTF-8, lines without text, empty documents and empty files.
TextSet load_text(const std::filesystem::path& file);

// All documents, each followed by the end-of-document token, </s> or else <|endoftext|>.
struct TokenStream {
  std::string kind;
  int64_t documents = 0;
  std::vector<int32_t> tokens;
};
// Throws Error when the tokenizer has neither token.
TokenStream tokenize(const TextSet& text, const text::Tokenizer& tokenizer);

}  // namespace levin::evaluate
