#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace levin::text {
namespace {

// Positions inside a word are 32-bit.
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

struct Token {
  std::string bytes;
  bool exists = false;
  bool added = false;
  bool special = false;
};

std::size_t index_of(int32_t id) {
  return static_cast<std::size_t>(id);
}

// Every id of the file with its bytes. An added token decodes to its content as it is written.
std::vector<Token> make_tokens(const TokenizerFile& file, const std::string& where) {
  int32_t largest = -1;
  for (const VocabularyEntry& entry : file.vocabulary) largest = std::max(largest, entry.id);
  for (const AddedToken& added : file.added_tokens) largest = std::max(largest, added.id);
  std::vector<Token> tokens(static_cast<std::size_t>(largest + 1));
  std::unordered_map<std::string_view, int32_t> id_of_spelling;
  for (const VocabularyEntry& entry : file.vocabulary) {
    Token& token = tokens[index_of(entry.id)];
    token.bytes = bytes_from_spelling(entry.spelling).value_or(entry.spelling);
    token.exists = true;
    id_of_spelling.emplace(entry.spelling, entry.id);
  }
  for (const AddedToken& added : file.added_tokens) {
    Token& token = tokens[index_of(added.id)];
    const auto known = id_of_spelling.find(added.content);
    const bool same = known != id_of_spelling.end() && known->second == added.id;
    if (!same && (token.exists || known != id_of_spelling.end())) {
      throw Error({.what = "added token contradicts the vocabulary",
                   .where = where + ".added_tokens",
                   .expected = token.exists
                                   ? fmt::format("id {} is \"{}\"", added.id, token.bytes)
                                   : fmt::format("\"{}\" is id {}", added.content, known->second),
                   .found = fmt::format("id {} is \"{}\"", added.id, added.content),
                   .hint = {}});
    }
    token = {added.content, true, true, added.special};
  }
  return tokens;
}

MergeTable make_merges(const TokenizerFile& file, const std::string& where) {
  MergeTable table(file.merges.size());
  for (std::size_t i = 0; i < file.merges.size(); ++i) {
    const Merge& merge = file.merges[i];
    if (!table.add(merge.left, merge.right, merge.result)) {
      throw Error({.what = "merge stands twice",
                   .where = fmt::format("{}.model.merges[{}]", where, i),
                   .expected = {},
                   .found = {},
                   .hint = {}});
    }
  }
  return table;
}

// All that encoding and decoding read; immutable, so any number of threads may use it at once.
struct Tables {
  Tables(TokenizerFile file, const std::string& where)
      : tokens(make_tokens(file, where)),
        words(make_words(file)),
        bpe(make_byte_tokens(where), make_merges(file, where)),
        stages(std::move(file.stages)),
        added(std::move(file.added_tokens)),
        ignore_merges(file.ignore_merges),
        nfc(file.nfc),
        adds_tokens(file.adds_tokens) {
    for (std::size_t i = 0; i < added.size(); ++i) {
      if (!added[i].normalized) {
        before_normalization.add(added[i].content, i);
      } else {
        after_normalization.add(nfc ? to_nfc(added[i].content) : added[i].content, i);
      }
    }
  }

  const Token& token(int32_t id) const {
    if (id < 0 || index_of(id) >= tokens.size() || !tokens[index_of(id)].exists) {
      throw Error({.what = "token id is not in the vocabulary",
                   .where = {},
                   .expected = fmt::format("an id from 0 to {}", tokens.size() - 1),
                   .found = fmt::format("{}", id),
                   .hint = {}});
    }
    return tokens[index_of(id)];
  }

  std::vector<Token> tokens;                            // by id
  std::unordered_map<std::string_view, int32_t> words;  // bytes of the vocabulary's tokens -> id
  Bpe bpe;
  std::vector<SplitStage> stages;
  std::vector<AddedToken> added;
  AddedTokenMatcher before_normalization;
  AddedTokenMatcher after_normalization;
  bool ignore_merges;
  bool nfc;
  bool adds_tokens;

 private:
  // A spelling outside the byte-level alphabet is a token that no bytes reach.
  std::unordered_map<std::string_view, int32_t> make_words(const TokenizerFile& file) const {
    std::unordered_map<std::string_view, int32_t> result;
    result.reserve(file.vocabulary.size());
    for (const VocabularyEntry& entry : file.vocabulary) {
      if (bytes_from_spelling(entry.spelling)) {
        result.emplace(tokens[index_of(entry.id)].bytes, entry.id);
      }
    }
    return result;
  }

  // Bytes that occur in no UTF-8 text may be missing: nothing will ask for them.
  std::array<int32_t, 256> make_byte_tokens(const std::string& where) const {
    std::array<int32_t, 256> result{};
    for (unsigned byte = 0; byte < 256; ++byte) {
      const char character = static_cast<char>(byte);
      const auto it = words.find(std::string_view(&character, 1));
      const bool in_utf8 = byte < 0xC0 || (byte > 0xC1 && byte < 0xF5);
      if (it == words.end() && in_utf8) {
        std::string spelling;
        append_utf8(spelling, byte_to_character(static_cast<uint8_t>(byte)));
        throw Error({.what = "the vocabulary has no token for a byte",
                     .where = where + ".model.vocab",
                     .expected = fmt::format("\"{}\", which spells byte {:#04x}", spelling, byte),
                     .found = {},
                     .hint = "levin reads byte-level BPE, whose vocabulary holds every byte"});
      }
      result[byte] = it == words.end() ? -1 : it->second;
    }
    return result;
  }
};

// One call of encode: text -> added tokens and the text between them -> words -> tokens.
class Encoder {
 public:
  Encoder(const Tables& tables, std::size_t text_size, bool parse_special,
          const Interrupt& interrupt)
      : tables_(tables),
        pre_tokenizer_(tables.stages, text_size),
        parse_special_(parse_special),
        interrupt_(interrupt) {
    out_.reserve(text_size / 4 + 1);
  }

  std::vector<int32_t> run(std::string_view text) {
    split_added(text, tables_.before_normalization, [&](std::string_view piece) {
      const std::string normal = tables_.nfc ? to_nfc(piece) : std::string();
      split_added(tables_.nfc ? normal : piece, tables_.after_normalization,
                  [&](std::string_view part) {
                    pre_tokenizer_.split(part, [&](std::string_view word) { encode_word(word); });
                  });
    });
    return std::move(out_);
  }

 private:
  // Emits the ids of the added tokens in `text` and calls on_text for what lies between.
  template <typename OnText>
  void split_added(std::string_view text, const AddedTokenMatcher& matcher, OnText&& on_text) {
    std::size_t at = 0;
    while (parse_special_) {
      const auto match = matcher.find(text, at);
      if (!match) break;
      const AddedToken& token = tables_.added[match->index];
      const std::size_t begin = token.lstrip ? skip_space_back(text, at, match->begin)  //
                                             : match->begin;
      if (begin > at) on_text(text.substr(at, begin - at));
      out_.push_back(token.id);
      at = token.rstrip ? skip_space(text, match->end) : match->end;
    }
    if (at < text.size()) on_text(text.substr(at));
  }

  static std::size_t skip_space(std::string_view text, std::size_t at) {
    while (at < text.size()) {
      const Utf8Step step = decode_utf8(text, at);
      if (!is_white_space(step.value)) break;
      at += step.length;
    }
    return at;
  }

  // Begin of the white space that ends at `end`, not before `from`.
  static std::size_t skip_space_back(std::string_view text, std::size_t from, std::size_t end) {
    while (end > from) {
      std::size_t begin = end - 1;
      while (begin > from && (static_cast<uint8_t>(text[begin]) & 0xC0u) == 0x80u) --begin;
      if (!is_white_space(decode_utf8(text, begin).value)) break;
      end = begin;
    }
    return end;
  }

  void encode_word(std::string_view word) {
    constexpr uint32_t kWordsPerCall = 1024;
    if (interrupt_ && ++words_ % kWordsPerCall == 0) interrupt_();
    if (tables_.ignore_merges) {
      const auto whole = tables_.words.find(word);
      // Text that must stay text never becomes an added token this way.
      if (whole != tables_.words.end() &&
          (parse_special_ || !tables_.tokens[index_of(whole->second)].added)) {
        out_.push_back(whole->second);
        return;
      }
    }
    tables_.bpe.encode(word, workspace_, out_, interrupt_);
  }

  const Tables& tables_;
  PreTokenizer pre_tokenizer_;
  bool parse_special_;
  const Interrupt& interrupt_;
  uint32_t words_ = 0;
  Bpe::Workspace workspace_;
  std::vector<int32_t> out_;
};

}  // namespace

struct Tokenizer::Impl : Tables {
  using Tables::Tables;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "tokenizer.json";
  return parse(read_text(path), path.string());
}

Tokenizer Tokenizer::parse(std::string_view tokenizer_json, const std::string& where) {
  return Tokenizer(std::make_unique<Impl>(parse_tokenizer_json(tokenizer_json, where), where));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special,
                                       const Interrupt& interrupt) const {
  if (text.size() > kMaxTextBytes) {
    throw Error({.what = "text is too long to tokenize at once",
                 .where = {},
                 .expected = fmt::format("at most {} bytes", kMaxTextBytes),
                 .found = fmt::format("{} bytes", text.size()),
                 .hint = {}});
  }
  if (const auto offset = find_invalid_utf8(text)) {
    throw Error({.what = "text is not UTF-8",
                 .where = fmt::format("byte {} of the text", *offset),
                 .expected = {},
                 .found = fmt::format("{:#04x}", static_cast<uint8_t>(text[*offset])),
                 .hint = {}});
  }
  return Encoder(*impl_, text.size(), parse_special, interrupt).run(text);
}

bool Tokenizer::surrounds_text() const {
  return impl_->adds_tokens;
}

std::optional<std::size_t> Tokenizer::longest_token_bytes() const {
  const auto drops = [](const SplitStage& stage) { return stage.drop_matches || stage.drop_gaps; };
  const auto strips = [](const AddedToken& token) { return token.lstrip || token.rstrip; };
  // Composing characters (NFC) makes text shorter.
  if (impl_->nfc || std::any_of(impl_->stages.begin(), impl_->stages.end(), drops) ||
      std::any_of(impl_->added.begin(), impl_->added.end(), strips)) {
    return std::nullopt;
  }
  std::size_t longest = 1;
  for (const Token& token : impl_->tokens) longest = std::max(longest, token.bytes.size());
  return longest;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  for (const int32_t id : ids) {
    const Token& token = impl_->token(id);
    if (!(skip_special && token.special)) out += token.bytes;
  }
  return out;
}

std::string_view Tokenizer::bytes_of(int32_t id) const {
  return impl_->token(id).bytes;
}

bool Tokenizer::is_special(int32_t id) const {
  return impl_->token(id).special;
}

std::optional<int32_t> Tokenizer::find(std::string_view content) const {
  for (const AddedToken& token : impl_->added) {
    if (token.content == content) return token.id;
  }
  const auto it = impl_->words.find(content);
  return it == impl_->words.end() ? std::nullopt : std::optional(it->second);
}

int32_t Tokenizer::vocab_size() const {
  return static_cast<int32_t>(impl_->tokens.size());
}

}  // namespace levin::text
