#include "bench/workload.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files.h"
#include "core/philox.h"
#include "core/plural.h"

namespace levin::bench {
namespace {

constexpr const char* kProse =
    "The harbour was quiet that morning. A single boat, painted green and white, lay against the "
    "stones, and an old woman sat in it mending a net. She did not look up when the boy came down "
    "the steps with his basket, nor when he set it beside her and waited. The tide had turned an "
    "hour before; the water carried straw, a broken oar and the peel of an orange slowly out past "
    "the lighthouse. \"You are late,\" she said at last, pulling the thread tight with her teeth. "
    "\"The road was wet,\" said the boy, \"and the bridge at the mill is down again.\" She "
    "laughed. "
    "In her youth the bridge had been down every spring, and nobody had thought of calling it an "
    "excuse. People walked through the river with their shoes around their necks, and arrived in "
    "town with cold feet and good tempers. Now there were carts, and letters, and a man who came "
    "from the capital twice a year to count the houses. She had never understood what he did with "
    "the number. Perhaps he kept it in a drawer with all the other numbers, and took it out in "
    "winter to see whether it had grown. The boy had heard this story before, but he liked the end "
    "of it, and so he sat down on the wet stones and waited for the part about the drawer.";

constexpr const char* kCode =
    "// A queue of fixed capacity for one writer and one reader, without locks.\n"
    "template <typename Item, std::size_t kCapacity>\n"
    "class RingQueue {\n"
    " public:\n"
    "  // False when the queue is full; the item is then left alone.\n"
    "  bool push(Item&& item) {\n"
    "    const std::size_t head = head_.load(std::memory_order_relaxed);\n"
    "    const std::size_t next = (head + 1) % kCapacity;\n"
    "    if (next == tail_.load(std::memory_order_acquire)) return false;\n"
    "    items_[head] = std::move(item);\n"
    "    head_.store(next, std::memory_order_release);\n"
    "    return true;\n"
    "  }\n\n"
    "  // Nothing when the queue is empty.\n"
    "  std::optional<Item> pop() {\n"
    "    const std::size_t tail = tail_.load(std::memory_order_relaxed);\n"
    "    if (tail == head_.load(std::memory_order_acquire)) return std::nullopt;\n"
    "    Item item = std::move(items_[tail]);\n"
    "    tail_.store((tail + 1) % kCapacity, std::memory_order_release);\n"
    "    return item;\n"
    "  }\n\n"
    " private:\n"
    "  std::array<Item, kCapacity> items_;\n"
    "  std::atomic<std::size_t> head_{0};\n"
    "  std::atomic<std::size_t> tail_{0};\n"
    "};\n\n"
    "int main() {\n"
    "  RingQueue<int, 64> queue;\n"
    "  std::thread writer([&] {\n"
    "    for (int i = 0; i < 1000; ++i) {\n";

constexpr const char* kQuestion =
    "Explain step by step how a letter travels from one town to another, and what can go wrong "
    "on the way.";

constexpr uint64_t kRandomSeed = 7;

// FNV-1a over the ids, little-endian.
std::string hash_of(const std::vector<Prompt>& prompts) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const Prompt& prompt : prompts) {
    for (const int32_t token : prompt.tokens) {
      for (int byte = 0; byte < 4; ++byte) {
        hash = (hash ^ ((static_cast<uint32_t>(token) >> (8 * byte)) & 0xff)) * 0x100000001b3;
      }
    }
    hash = (hash ^ 0xff) * 0x100000001b3;  // prompts cannot run into each other
  }
  return fmt::format("{:016x}", hash);
}

std::vector<int32_t> exactly(const std::vector<int32_t>& ids, int64_t count) {
  std::vector<int32_t> result;
  result.reserve(static_cast<std::size_t>(count));
  while (static_cast<int64_t>(result.size()) < count) {
    result.push_back(ids[result.size() % ids.size()]);
  }
  return result;
}

std::vector<int32_t> random_ids(int64_t vocabulary, int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    const auto words = philox(kRandomSeed, static_cast<uint64_t>(i));
    ids.push_back(static_cast<int32_t>(words[0] % static_cast<uint64_t>(vocabulary)));
  }
  return ids;
}

}  // namespace

int64_t Workload::prompt_tokens() const {
  int64_t count = 0;
  for (const Prompt& prompt : prompts) count += static_cast<int64_t>(prompt.tokens.size());
  return count;
}

Workload fixed_workload(const engine::Engine& engine, int64_t prompt_tokens) {
  const int64_t context = engine.runtime->options().max_model_len;
  if (prompt_tokens >= context) {
    throw Error({.what = "timed prompt is longer than the context",
                 .where = "--prompt-tokens",
                 .expected = fmt::format("fewer than {}", context),
                 .found = fmt::format("{}", prompt_tokens),
                 .hint = "raise --max-model-len or shorten the prompt"});
  }
  Workload workload;
  if (!engine.tokenizer) {
    workload.prompts = {{"random", random_ids(engine.model->config.vocab_size, prompt_tokens)}};
  } else {
    const text::Tokenizer& tokenizer = *engine.tokenizer;
    workload.prompts = {{"prose", exactly(tokenizer.encode(kProse), prompt_tokens)},
                        {"code", exactly(tokenizer.encode(kCode), prompt_tokens)}};
    if (engine.chat_template) {
      const nlohmann::ordered_json variables = {
          {"messages", {{{"role", "user"}, {"content", kQuestion}}}},
          {"tools", nullptr},
          {"add_generation_prompt", true},
          {"enable_thinking", true}};
      workload.prompts.push_back(
          {"chat", tokenizer.encode(engine.chat_template->render(variables))});
    }
  }
  workload.hash = hash_of(workload.prompts);
  return workload;
}

Workload file_workload(const engine::Engine& engine, const std::filesystem::path& file) {
  if (!engine.tokenizer) {
    throw Error({.what = "the model has no tokenizer to read the prompt with",
                 .where = file.string(),
                 .expected = {},
                 .found = {},
                 .hint = "leave --prompt-file out to time random tokens"});
  }
  Workload workload;
  workload.prompts = {{file.filename().string(), engine.tokenizer->encode(read_text(file))}};
  if (workload.prompts.front().tokens.empty()) {
    throw Error({.what = "prompt is empty",
                 .where = file.string(),
                 .expected = {},
                 .found = {},
                 .hint = {}});
  }
  workload.hash = hash_of(workload.prompts);
  return workload;
}

void require_fit(const Workload& workload, const engine::Engine& engine, int64_t output_tokens) {
  const int64_t set = engine.runtime->options().max_model_len;
  const int64_t length = set > 0 ? set : engine.model->config.max_position_embeddings;
  for (const Prompt& prompt : workload.prompts) {
    const int64_t needed = static_cast<int64_t>(prompt.tokens.size()) + output_tokens;
    if (needed <= length) continue;
    throw Error({.what = "prompt and output do not fit the model's context",
                 .where = "prompt " + prompt.name,
                 .expected = "at most " + counted(length, "token"),
                 .found = fmt::format("{} + {}", prompt.tokens.size(), output_tokens),
                 .hint = "lower --prompt-tokens or --output-tokens, or raise --max-model-len"});
  }
}

}  // namespace levin::bench
