// tokenizer.json as data: read, checked and with nothing left to interpret.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/pre_tokenizer.h"

namespace levin::text {

// Largest token id + 1 that levin accepts: it sizes tables by the largest id of the file.
inline constexpr int32_t kMaxVocabulary = 1 << 22;

struct VocabularyEntry {
  std::string spelling;  // in the byte-level alphabet: "Ġthe"
  int32_t id;
};

// Token ids: `left` followed by `right` becomes `result`.
struct Merge {
  int32_t left;
  int32_t right;
  int32_t result;
};

struct TokenizerFile {
  std::vector<VocabularyEntry> vocabulary;  // spellings and ids are unique
  std::vector<AddedToken> added_tokens;     // contents and ids are unique
  std::vector<Merge> merges;                // lowest rank first
  bool ignore_merges = false;               // a word that is a token is taken as it is
  bool nfc = false;                         // text is normalized to NFC first
  bool adds_tokens = false;                 // post_processor would put tokens around a text
  std::vector<SplitStage> stages;
};

// Throws Error naming `where` and the field for a file that is malformed, that contradicts itself,
// or that uses a construct levin does not implement. post_processor, truncation and padding are not
// applied: they add, cut or fill around the text, which is the caller's business.
TokenizerFile parse_tokenizer_json(std::string_view text, const std::string& where);

}  // namespace levin::text
