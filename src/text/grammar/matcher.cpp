#include "text/grammar/matcher.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace levin::text::grammar {
namespace {

constexpr int32_t kDead = Configurations::kDead;
// What one matcher may hold; with more, all but the last kMaxRollback tokens is forgotten.
constexpr std::size_t kMaxBytes = std::size_t{32} << 20;
constexpr std::size_t kMaxMasks = 64;

void set_bit(std::span<uint64_t> mask, int32_t token) {
  mask[static_cast<std::size_t>(token) / 64] |= uint64_t{1} << (token % 64);
}

}  // namespace

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar,
                               std::shared_ptr<const TokenVocabulary> vocabulary)
    : grammar_(std::move(grammar)),
      vocabulary_(std::move(vocabulary)),
      configurations_(grammar_->automaton()),
      history_{configurations_.start()} {
  const auto markers = grammar_->automaton().markers();
  for (std::size_t i = 0; i < markers.size(); ++i) {
    for (const int32_t token : vocabulary_->special_tokens(markers[i])) {
      marker_of_.emplace(token, kByteSymbols + static_cast<int>(i));
    }
  }
}

void GrammarMatcher::allowed(std::span<uint64_t> mask) {
  std::ranges::fill(mask, 0);
  if (!finished()) std::ranges::copy(mask_of(current()), mask.begin());
  if (!is_complete()) return;
  for (const int32_t token : vocabulary_->stop_tokens()) set_bit(mask, token);
}

bool GrammarMatcher::accept(int32_t token) {
  if (token < 0 || token >= vocabulary_->size()) return false;
  int32_t next = current();
  if (vocabulary_->is_stop(token)) {
    if (!is_complete()) return false;
    if (!finished()) finished_at_ = history_.size() + 1;
  } else {
    if (finished()) return false;
    next = follow(current(), token);
    if (next == kDead) return false;
  }
  history_.push_back(next);
  in_use_.clear();
  make_room();
  return true;
}

int32_t GrammarMatcher::follow(int32_t configuration, int32_t token) {
  const Automaton& automaton = grammar_->automaton();
  if (const auto marker = marker_of_.find(token); marker != marker_of_.end()) {
    return configurations_.step(configuration, automaton.class_of(marker->second));
  }
  if (!vocabulary_->special_content(token).empty()) return kDead;
  const std::string_view bytes = vocabulary_->bytes_of(token);
  if (bytes.empty()) return kDead;
  for (const char c : bytes) {
    configuration =
        configurations_.step(configuration, automaton.class_of(static_cast<uint8_t>(c)));
    if (configuration == kDead) break;
  }
  return configuration;
}

bool GrammarMatcher::rollback(std::size_t tokens) {
  if (tokens > size() || history_[history_.size() - 1 - tokens] == kDead) return false;
  history_.resize(history_.size() - tokens);
  if (finished_at_ > history_.size()) finished_at_ = 0;
  return true;
}

const TokenMask& GrammarMatcher::mask_of(int32_t configuration) {
  if (const auto found = masks_.find(configuration); found != masks_.end()) return found->second;
  if (masks_.size() >= kMaxMasks) masks_.clear();
  TokenMask mask(vocabulary_->mask_words(), 0);
  const Automaton& automaton = grammar_->automaton();
  for (const auto& [token, symbol] : marker_of_) {
    if (configurations_.step(configuration, automaton.class_of(symbol)) != kDead) {
      set_bit(mask, token);
    }
  }
  // Stacks in the middle of free text allow most tokens without a look at their bytes. A walk may
  // give configurations new numbers, but keeps those that are in use: the one in question, what is
  // not about free text in it, and what is.
  std::vector<int32_t> alone;
  std::vector<const FillerText*> fillers;
  for (std::size_t i = 0; i < configurations_.stack_count(configuration); ++i) {
    const FillerText* filler = automaton.filler(configurations_.state(configuration, i));
    if (filler == nullptr || filler->characters == 0) continue;
    fillers.push_back(filler);
    alone.push_back(configurations_.alone(configuration, i));
  }
  in_use_ = {configuration, configurations_.without(configuration, alone)};
  in_use_.insert(in_use_.end(), alone.begin(), alone.end());
  if (in_use_[1] != kDead) walk(1, vocabulary_->text(), 0, UINT32_MAX, mask);
  for (std::size_t i = 0; i < fillers.size(); ++i) add_filler(i + 2, *fillers[i], mask);
  return masks_.insert_or_assign(in_use_[0], std::move(mask)).first->second;
}

void GrammarMatcher::add_filler(std::size_t slot, const FillerText& filler, TokenMask& mask) {
  const TokenTrie& text = vocabulary_->text();
  TokenMask allowed = vocabulary_->filler(filler.kind, filler.characters);
  for (const char c : filler.except) {
    const uint32_t node = text.child_of_root(static_cast<uint8_t>(c));
    if (node + 1 == text.nodes().size()) continue;
    const uint32_t behind = text.nodes()[node].behind;
    for (uint32_t i = text.nodes()[node].token; i < text.nodes()[behind].token; ++i) {
      const auto token = static_cast<std::size_t>(text.tokens()[i]);
      allowed[token / 64] &= ~(uint64_t{1} << (token % 64));
    }
  }
  for (std::size_t word = 0; word < allowed.size(); ++word) mask[word] |= allowed[word];
  for (const char c : filler.except) {
    const uint32_t node = text.child_of_root(static_cast<uint8_t>(c));
    walk(slot, text, node, text.nodes()[node].behind, mask);
  }
  walk(slot, vocabulary_->all_but(filler.kind), 0, UINT32_MAX, mask);
}

void GrammarMatcher::walk(std::size_t slot, const TokenTrie& trie, uint32_t begin, uint32_t end,
                          TokenMask& mask) {
  const Automaton& automaton = grammar_->automaton();
  const auto nodes = trie.nodes();
  const auto tokens = trie.tokens();
  end = std::min(end, static_cast<uint32_t>(nodes.size() - 1));
  path_.assign(static_cast<std::size_t>(trie.max_depth()) + 1, kDead);
  path_[0] = in_use_[slot];
  for (uint32_t i = begin; i < end;) {
    const TokenTrie::Node& node = nodes[i];
    const int32_t next =
        configurations_.step(path_[node.depth - std::size_t{1}], automaton.class_of(node.byte));
    if (next == kDead) {
      i = node.behind;
      continue;
    }
    path_[node.depth] = next;
    ++i;
    for (uint32_t token = node.token; token < nodes[i].token; ++token) {
      set_bit(mask, tokens[token]);
    }
    // A walk through a hostile grammar can meet very many configurations.
    if (configurations_.bytes() > 2 * kMaxBytes) {
      std::fill(path_.begin() + node.depth + 1, path_.end(), kDead);
      make_room();
    }
  }
  path_.clear();
}

void GrammarMatcher::make_room() {
  if (configurations_.bytes() <= kMaxBytes) return;
  masks_.clear();
  std::vector<int32_t> kept = path_;
  kept.insert(kept.end(), in_use_.begin(), in_use_.end());
  const std::size_t recent = std::min(history_.size(), kMaxRollback + 1);
  std::fill(history_.begin(), history_.end() - static_cast<std::ptrdiff_t>(recent), kDead);
  kept.insert(kept.end(), history_.end() - static_cast<std::ptrdiff_t>(recent), history_.end());
  configurations_.keep(kept);
  auto moved = kept.begin();
  for (std::vector<int32_t>* all : {&path_, &in_use_}) {
    std::copy_n(moved, all->size(), all->begin());
    moved += static_cast<std::ptrdiff_t>(all->size());
  }
  std::copy(moved, kept.end(), history_.end() - static_cast<std::ptrdiff_t>(recent));
}

}  // namespace levin::text::grammar
