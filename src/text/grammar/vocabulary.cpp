#include "text/grammar/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "text/utf8.h"

namespace levin::text::grammar {
namespace {

constexpr std::size_t kMaxTokenBytes = 60000;  // depths are 16 bits

bool may_occur(Filler kind, unsigned char c) {
  switch (kind) {
    case Filler::kNone:
      return false;
    case Filler::kJsonString:
      return c >= 0x20 && c != '"' && c != '\\';
    case Filler::kJsonInTags:
      return c >= 0x20 && c != '"' && c != '\\' && c != '<';
    case Filler::kPlainText:
      return (c >= 0x20 || c == '\t' || c == '\n' || c == '\r') && c != '<';
    case Filler::kAnyBytes:
      return c != '<';
  }
  return false;
}

// How many characters of filler a token is; nothing when it is something else. The last one may be
// unfinished.
std::optional<std::size_t> filler_characters(Filler kind, std::string_view bytes) {
  for (const char c : bytes) {
    if (!may_occur(kind, static_cast<unsigned char>(c))) return std::nullopt;
  }
  if (kind == Filler::kAnyBytes) return 1;  // not counted
  const std::optional<std::size_t> invalid = find_invalid_utf8(bytes);
  if (!invalid) return count_characters(bytes);
  if (decode_utf8(bytes, *invalid).status != Utf8Status::kIncomplete) return std::nullopt;
  return count_characters(bytes.substr(0, *invalid)) + 1;
}

}  // namespace

TokenTrie::TokenTrie(std::span<const std::string> bytes, std::vector<int32_t> ids)
    : tokens_(std::move(ids)) {
  const auto text = [&](int32_t id) -> const std::string& {
    return bytes[static_cast<std::size_t>(id)];
  };
  std::ranges::sort(tokens_, [&](int32_t a, int32_t b) {
    const int order = text(a).compare(text(b));
    return order != 0 ? order < 0 : a < b;
  });
  std::vector<std::size_t> open;  // the nodes along the current token
  const auto close_to = [&](std::size_t depth) {
    for (; open.size() > depth; open.pop_back()) {
      nodes_[open.back()].behind = static_cast<uint32_t>(nodes_.size());
    }
  };
  std::string_view previous;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& token = text(tokens_[i]);
    std::size_t shared = 0;
    while (shared < token.size() && shared < previous.size() && token[shared] == previous[shared]) {
      ++shared;
    }
    close_to(shared);
    for (std::size_t at = shared; at < token.size(); ++at) {
      open.push_back(nodes_.size());
      nodes_.push_back({.behind = 0,
                        .token = static_cast<uint32_t>(i),
                        .depth = static_cast<uint16_t>(at + 1),
                        .byte = static_cast<uint8_t>(token[at])});
    }
    max_depth_ = std::max(max_depth_, static_cast<int>(token.size()));
    previous = token;
  }
  close_to(0);
  roots_.fill(static_cast<uint32_t>(nodes_.size()));
  for (uint32_t i = 0; i < nodes_.size(); i = nodes_[i].behind) roots_[nodes_[i].byte] = i;
  nodes_.push_back({.behind = static_cast<uint32_t>(nodes_.size() + 1),
                    .token = static_cast<uint32_t>(tokens_.size()),
                    .depth = 0,
                    .byte = 0});
}

TokenVocabulary::TokenVocabulary(const std::vector<Token>& tokens, std::vector<int32_t> stop_tokens)
    : stop_tokens_(std::move(stop_tokens)) {
  std::ranges::sort(stop_tokens_);
  for (const int32_t id : stop_tokens_) {
    if (id >= 0 && static_cast<std::size_t>(id) < tokens.size()) continue;
    throw Error({.what = "stop token is not in the vocabulary",
                 .where = {},
                 .expected = fmt::format("0 to {}", tokens.size() - 1),
                 .found = fmt::format("{}", id),
                 .hint = {}});
  }
  std::vector<int32_t> ids;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    bytes_.push_back(tokens[i].bytes);
    if (tokens[i].special) {
      special_.emplace(id, tokens[i].bytes);
    } else if (!is_stop(id) && !tokens[i].bytes.empty() &&
               tokens[i].bytes.size() <= kMaxTokenBytes) {
      ids.push_back(id);
    }
  }
  text_ = TokenTrie(bytes_, ids);
  for (std::size_t k = 1; k < kFillers; ++k) {
    std::vector<int32_t> others;
    filler_[k].assign(kMaxFillerCharacters + 1, TokenMask(mask_words(), 0));
    for (const int32_t id : ids) {
      const auto characters = filler_characters(static_cast<Filler>(k), bytes_of(id));
      if (!characters || *characters > kMaxFillerCharacters) {
        others.push_back(id);
        continue;
      }
      filler_[k][*characters][static_cast<std::size_t>(id) / 64] |= uint64_t{1} << (id % 64);
    }
    for (std::size_t n = 1; n < filler_[k].size(); ++n) {
      for (std::size_t word = 0; word < mask_words(); ++word) {
        filler_[k][n][word] |= filler_[k][n - 1][word];
      }
    }
    all_but_[k] = TokenTrie(bytes_, std::move(others));
  }
}

std::shared_ptr<const TokenVocabulary> TokenVocabulary::of(const Tokenizer& tokenizer,
                                                           std::vector<int32_t> stop_tokens) {
  std::vector<Token> tokens;
  tokens.reserve(static_cast<std::size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    tokens.push_back({std::string(tokenizer.bytes_of(id)), tokenizer.is_special(id)});
  }
  return std::make_shared<const TokenVocabulary>(tokens, std::move(stop_tokens));
}

bool TokenVocabulary::is_stop(int32_t id) const {
  return std::ranges::binary_search(stop_tokens_, id);
}

std::vector<int32_t> TokenVocabulary::special_tokens(std::string_view content) const {
  std::vector<int32_t> ids;
  for (const auto& [id, text] : special_) {
    if (text == content) ids.push_back(id);
  }
  return ids;
}

std::string_view TokenVocabulary::special_content(int32_t id) const {
  const auto found = special_.find(id);
  return found == special_.end() ? std::string_view() : found->second;
}

const TokenMask& TokenVocabulary::filler(Filler kind, int32_t characters) const {
  if (characters == kUnlimited || characters > kMaxFillerCharacters) {
    characters = kMaxFillerCharacters;
  }
  return filler_[static_cast<std::size_t>(kind)][static_cast<std::size_t>(characters)];
}

}  // namespace levin::text::grammar
