#include "bench/client/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "bench/client/bundled_text.h"
#include "bench/client/trace.h"
#include "core/error.h"
#include "core/philox.h"
#include "evaluate/text_set.h"

namespace levin::bench::client {
namespace {

// Streams of random numbers of one seed.
enum Purpose : uint64_t { kStart, kWord, kLine };

uint64_t random_word(uint64_t seed, uint64_t index, Purpose purpose) {
  const auto words = philox(seed, index, 10, purpose);
  return uint64_t{words[0]} << 32 | words[1];
}

bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\t';
}

// The text of a line of JSON; of one that was cut off, up to its last newline.
std::string text_of_line(std::string_view line) {
  auto json = nlohmann::json::parse(line, nullptr, false);
  if (json.is_discarded()) {
    const std::string mended = std::string(line.substr(0, line.rfind("\\n"))) + "\"}";
    json = nlohmann::json::parse(mended, nullptr, false);
  }
  return json.is_object() ? json.value("text", std::string()) : std::string();
}

void append_lines(std::string_view lines, std::string& text) {
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    text += text_of_line(lines.substr(0, end)) + "\n\n";
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
}

std::string load_texts(const std::vector<std::filesystem::path>& files) {
  std::string text;
  if (files.empty()) {
    append_lines(bundled_prose(), text);
    append_lines(bundled_code(), text);
  }
  for (const std::filesystem::path& file : files) {
    for (const std::string& document : evaluate::load_text(file).documents) {
      text += document + "\n\n";
    }
  }
  return text;
}

// A ring of text.
class Corpus {
 public:
  explicit Corpus(std::string text) : text_(std::move(text)) {
    if (std::none_of(text_.begin(), text_.end(), is_blank)) text_ += ' ';
  }

  // Whole words from behind a blank at or after `start` on, at least `bytes` long; where words are
  // very long (Chinese has no blanks), whole characters.
  std::string piece(uint64_t start, std::size_t bytes) const {
    std::size_t at = start % text_.size();
    for (std::size_t passed = 0; !ends_word(at, passed); ++passed) at = next(at);
    for (std::size_t i = 0; i < text_.size() && is_blank(text_[at]); ++i) at = next(at);
    std::string piece;
    while (piece.size() < bytes || !ends_word(at, piece.size() - bytes)) {
      piece += text_[at];
      at = next(at);
    }
    return piece;
  }
  const std::string& text() const { return text_; }

 private:
  // Whether a word may end before `at`, `passed` bytes too late already.
  bool ends_word(std::size_t at, std::size_t passed) const {
    constexpr std::size_t kLongestWord = 64;
    const bool inside_character = (static_cast<uint8_t>(text_[at]) & 0xc0) == 0x80;
    return is_blank(text_[at]) || (passed >= kLongestWord && !inside_character);
  }
  std::size_t next(std::size_t at) const { return at + 1 == text_.size() ? 0 : at + 1; }
  std::string text_;
};

class GeneratedPrompts : public Dataset {
 public:
  explicit GeneratedPrompts(const DatasetOptions& options)
      : options_(options), corpus_(load_texts(options.files)) {}

  PromptPlan prompt(int64_t index, const TokenScale& scale) const override {
    const double tokens = static_cast<double>(options_.input_tokens) - scale.other_tokens;
    const double bytes = std::max(1.0, std::round(tokens * scale.bytes_per_token));
    return {.text = text_of(static_cast<uint64_t>(index), static_cast<std::size_t>(bytes), scale),
            .output_tokens = options_.output_tokens};
  }
  PromptSize size_of(int64_t, const TokenScale& scale) const override {
    return {static_cast<double>(options_.input_tokens) * scale.bytes_per_token,
            options_.output_tokens};
  }

 protected:
  virtual std::string text_of(uint64_t index, std::size_t bytes, const TokenScale&) const {
    return piece(index, bytes);
  }
  const DatasetOptions& options() const { return options_; }
  const Corpus& corpus() const { return corpus_; }

 private:
  DatasetOptions options_;
  Corpus corpus_;
};

class TextPrompts : public GeneratedPrompts {
 public:
  using GeneratedPrompts::GeneratedPrompts;
  std::string piece(uint64_t index, std::size_t bytes) const override {
    return corpus().piece(random_word(options().seed, index, kStart), bytes);
  }
};

class RandomWords : public GeneratedPrompts {
 public:
  explicit RandomWords(const DatasetOptions& options) : GeneratedPrompts(options) {
    std::set<std::string> words;
    const std::string& text = corpus().text();
    for (std::size_t at = 0; at < text.size();) {
      const auto here = text.begin() + static_cast<std::ptrdiff_t>(at);
      const auto end = std::find_if(here, text.end(), is_blank);
      if (end != here) words.emplace(here, end);
      at = static_cast<std::size_t>(end - text.begin()) + 1;
    }
    words_.assign(words.begin(), words.end());
  }
  std::string piece(uint64_t index, std::size_t bytes) const override {
    std::string text;
    for (uint64_t i = 0; text.size() < bytes; ++i) {
      const uint64_t random = random_word(options().seed, index << 32 | i, kWord);
      text += (text.empty() ? "" : " ") + words_[random % words_.size()];
    }
    return text;
  }

 private:
  std::vector<std::string> words_;
};

class SonnetPrompts : public GeneratedPrompts {
 public:
  using GeneratedPrompts::GeneratedPrompts;
  std::string piece(uint64_t index, std::size_t bytes) const override {
    constexpr std::size_t kLineBytes = 45;  // as long as a line of a sonnet
    std::string text;
    for (uint64_t i = 0; text.size() < bytes; ++i) {
      const uint64_t random = random_word(options().seed, index << 32 | i, kLine);
      text += corpus().piece(random, std::min(kLineBytes, bytes - text.size())) + "\n";
    }
    return text;
  }

 protected:
  std::string text_of(uint64_t index, std::size_t bytes, const TokenScale& scale) const override {
    const double prefix = static_cast<double>(options().prefix_tokens) * scale.bytes_per_token;
    const std::size_t shared = std::min(bytes, static_cast<std::size_t>(prefix));
    return corpus().piece(0, shared) + "\n" + piece(index, bytes - shared);
  }
};

// A trace with prompts, or with text for the lengths and blocks it has.
class TracePrompts : public Dataset {
 public:
  explicit TracePrompts(const DatasetOptions& options)
      : requests_(read_trace(options.files.at(0), options.output_tokens)),
        seed_(options.seed),
        corpus_(load_texts({})) {}

  std::string piece(uint64_t index, std::size_t bytes) const override {
    const TraceRequest& request = requests_[index % requests_.size()];
    if (!request.prompt.empty()) return request.prompt;
    return corpus_.piece(random_word(seed_, index, kStart), bytes);
  }
  PromptPlan prompt(int64_t index, const TokenScale& scale) const override {
    const TraceRequest& request = requests_[static_cast<std::size_t>(index)];
    return {.text = request.prompt.empty() ? text_for(request, static_cast<uint64_t>(index), scale)
                                           : request.prompt,
            .output_tokens = request.output_tokens,
            .at = request.at.value_or(0)};
  }
  PromptSize size_of(int64_t index, const TokenScale& scale) const override {
    const TraceRequest& request = requests_[static_cast<std::size_t>(index)];
    const double bytes = static_cast<double>(request.input_tokens) * scale.bytes_per_token;
    return {std::max(bytes, static_cast<double>(request.prompt.size())), request.output_tokens};
  }
  int64_t size() const override { return static_cast<int64_t>(requests_.size()); }
  bool timed() const override { return requests_.front().at.has_value(); }

 private:
  std::string text_for(const TraceRequest& request, uint64_t index, const TokenScale& scale) const {
    const auto bytes = [&](double tokens) {
      return static_cast<std::size_t>(std::max(1.0, std::round(tokens * scale.bytes_per_token)));
    };
    double left = static_cast<double>(request.input_tokens) - scale.other_tokens;
    std::string text;
    for (const uint64_t block : request.blocks) {
      if (left <= 0) break;
      const double tokens = std::min(left, static_cast<double>(kTraceBlockTokens));
      text += corpus_.piece(random_word(seed_, block, kLine), bytes(tokens)) + " ";
      left -= tokens;
    }
    if (left > 0 || text.empty()) text += piece(index, bytes(std::max(left, 1.0)));
    return text;
  }

  std::vector<TraceRequest> requests_;
  uint64_t seed_;
  Corpus corpus_;
};

}  // namespace

std::unique_ptr<Dataset> make_dataset(const DatasetOptions& options) {
  if (options.name == "text") return std::make_unique<TextPrompts>(options);
  if (options.name == "random") return std::make_unique<RandomWords>(options);
  if (options.name == "sonnet") return std::make_unique<SonnetPrompts>(options);
  if (options.name != "trace") {
    throw Error({.what = "unknown kind of prompts",
                 .where = "--dataset-name",
                 .expected = "text, random, sonnet or trace",
                 .found = options.name,
                 .hint = {}});
  }
  if (options.files.size() != 1) {
    throw Error({.what = "a trace is one file",
                 .where = "--dataset-path",
                 .expected = "one JSONL file",
                 .found = fmt::format("{} files", options.files.size()),
                 .hint = {}});
  }
  return std::make_unique<TracePrompts>(options);
}

}  // namespace levin::bench::client
