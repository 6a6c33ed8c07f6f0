// Prompts by their number, for load that looks like work: text that a model would meet, so that
// drafts are as good as they are in use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace levin::bench::client {

struct DatasetOptions {
  std::string name = "text";                 // text, random, sonnet or trace, see make_dataset
  std::vector<std::filesystem::path> files;  // empty: the bundled texts; a trace has one
  int64_t input_tokens = 512;
  int64_t output_tokens = 128;
  int64_t prefix_tokens = 200;  // of sonnet
  uint64_t seed = 0;
};

struct PromptPlan {
  std::string text;
  int64_t output_tokens = 0;
  double at = 0;  // trace: seconds from its first request
};

// How many bytes make a token, and how many tokens a prompt has besides its text. A client has no
// tokenizer, so it asks the server.
struct TokenScale {
  double bytes_per_token = 4;
  double other_tokens = 0;
};

// More is a mistake or an attack.
constexpr int64_t kMostTokens = 10'000'000;  // of a prompt or an answer

// About what a request will take.
struct PromptSize {
  double bytes = 0;
  int64_t output_tokens = 0;
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  // Its own kind of text, about `bytes` long; each index another one.
  virtual std::string piece(uint64_t index, std::size_t bytes) const = 0;
  // The same for the same index and scale. `index` >= 0, and below size() if that is not 0.
  virtual PromptPlan prompt(int64_t index, const TokenScale& scale) const = 0;
  // Of that prompt, without making it.
  virtual PromptSize size_of(int64_t index, const TokenScale& scale) const = 0;
  // Prompts there are; 0: any number.
  virtual int64_t size() const { return 0; }
  // Whether requests have times of their own.
  virtual bool timed() const { return false; }
};

// text    pieces of the files (*.jsonl: "text" of each line; anything else: one document), or of
//         public-domain prose and C++ that are part of this program
// random  words of these in random order: what a model cannot foresee
// sonnet  the same first prefix_tokens for everyone, then random lines of these
// trace   a JSONL file, a request on each line: "prompt", or "input_length" with "hash_ids", one
//         for each 512 tokens, equal ids being equal text (Mooncake's); "output_length" or
//         "output_tokens"; and on all lines or none "timestamp" in milliseconds, ascending. Other
//         keys are left alone
// Throws Error for other names and for files that are not that.
std::unique_ptr<Dataset> make_dataset(const DatasetOptions& options);

}  // namespace levin::bench::client
