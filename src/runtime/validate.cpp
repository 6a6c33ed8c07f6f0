#include "runtime/validate.h"

#include <fmt/format.h>

#include <string>

#include "core/error.h"
#include "core/plural.h"
#include "core/thread_team.h"

namespace levin::runtime {
namespace {

[[noreturn]] void fail(std::string what, std::string where, std::string expected, std::string found,
                       std::string hint = {}) {
  throw Error({.what = std::move(what),
               .where = std::move(where),
               .expected = std::move(expected),
               .found = std::move(found),
               .hint = std::move(hint)});
}

void check_range(std::string_view name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    fail("runtime option is out of range", std::string(name), fmt::format("{} to {}", low, high),
         fmt::format("{}", value));
  }
}

void check_token(const model::Config& config, int32_t token, std::string_view where) {
  if (token < 0 || token >= config.vocab_size) {
    fail("token id is not in the vocabulary", std::string(where),
         fmt::format("0 to {}", config.vocab_size - 1), fmt::format("{}", token));
  }
}

template <typename Entry>
void check_distinct(const Options& options, std::span<const Entry> batch) {
  if (batch.empty()) fail("batch is empty", "runtime", "at least one sequence", "none");
  for (std::size_t i = 0; i < batch.size(); ++i) {
    check_slot(options, batch[i].slot);
    for (std::size_t j = 0; j < i; ++j) {
      if (batch[i].slot == batch[j].slot) {
        fail("a slot is in the batch twice", fmt::format("slot {}", batch[i].slot),
             "each slot at most once", fmt::format("entries {} and {}", j, i));
      }
    }
  }
}

}  // namespace

Options resolve_options(const model::Model& model, const Options& options) {
  const int64_t trained = model.config.max_position_embeddings;
  Options resolved = options;
  if (resolved.max_model_len == 0) resolved.max_model_len = trained;
  if (resolved.threads == 0) resolved.threads = available_cores();
  resolved.mtp = resolved.mtp && model.mtp.has_value();
  check_range("max_model_len", resolved.max_model_len, 1, int64_t{1} << 31);
  check_range("max_num_seqs", resolved.max_num_seqs, 1, 1 << 16);
  check_range("max_extend_tokens", resolved.max_extend_tokens, 1, 1 << 20);
  if (resolved.max_logits_rows == 0) resolved.max_logits_rows = resolved.max_extend_tokens;
  check_range("max_logits_rows", resolved.max_logits_rows, 1, resolved.max_extend_tokens);
  check_range("max_rewind", resolved.max_rewind, 1, 1 << 16);
  check_range("threads", resolved.threads, 1, 4096);
  if (resolved.philox_rounds != 5 && resolved.philox_rounds != 10) {
    fail("runtime option is out of range", "philox_rounds", "5 or 10",
         fmt::format("{}", resolved.philox_rounds));
  }
  if (resolved.stochastic_rounding && resolved.ssm_cache_dtype != SsmCacheDType::kF16) {
    fail("stochastic rounding needs a float16 SSM cache", "stochastic_rounding",
         "ssm_cache_dtype float16", "float32", "add --mamba-ssm-cache-dtype float16");
  }
  return resolved;
}

void check_mtp_schedule(const model::Mtp& mtp) {
  bool ok = !mtp.layers.empty() && mtp.layers.front().kind == model::BlockKind::kAttention;
  std::string schedule;
  for (std::size_t i = 0; i < mtp.layers.size(); ++i) {
    const model::BlockKind kind = mtp.layers[i].kind;
    schedule += static_cast<char>(kind);
    if (i > 0) ok = ok && (kind == model::BlockKind::kMoe || kind == model::BlockKind::kMlp);
  }
  if (!ok) {
    fail("this layer schedule of the MTP head is not supported", "mtp_hybrid_override_pattern",
         "an attention layer, then MoE or dense layers, such as \"*E\"", schedule,
         "run without speculation");
  }
}

void check_slot(const Options& options, int slot) {
  if (slot < 0 || slot >= options.max_num_seqs) {
    fail("no such slot", "slot", fmt::format("0 to {}", options.max_num_seqs - 1),
         fmt::format("{}", slot));
  }
}

void check_extend(const Runtime& runtime, std::span<const Extend> batch) {
  const Options& options = runtime.options();
  check_distinct(options, batch);
  int64_t total = 0;
  int64_t with_logits = 0;
  for (const Extend& entry : batch) {
    const auto tokens = static_cast<int64_t>(entry.tokens.size());
    const std::string where = fmt::format("slot {}", entry.slot);
    if (tokens == 0) fail("extend without tokens", where, "at least one token", "none");
    if (entry.logits_rows < 0 || entry.logits_rows > tokens) {
      fail("more logits than tokens asked for", where, fmt::format("0 to {}", tokens),
           fmt::format("{}", entry.logits_rows));
    }
    for (const int32_t token : entry.tokens) check_token(runtime.model().config, token, where);
    const int64_t length = runtime.length(entry.slot) + tokens;
    if (length > options.max_model_len) {
      fail("sequence becomes longer than max_model_len", where,
           "at most " + counted(options.max_model_len, "token"), counted(length, "token"),
           "raise --max-model-len or shorten the prompt");
    }
    total += tokens;
    with_logits += entry.logits_rows;
  }
  if (with_logits > options.max_logits_rows) {
    fail("too many rows of logits in one extend", "batch",
         fmt::format("at most {}", options.max_logits_rows), fmt::format("{}", with_logits));
  }
  if (total > options.max_extend_tokens) {
    fail("too many tokens in one extend", "batch",
         fmt::format("at most {}", options.max_extend_tokens), fmt::format("{}", total));
  }
}

void check_rewind(int slot, int64_t length, int64_t rewindable_to, int64_t current) {
  if (length < rewindable_to || length > current) {
    fail("cannot rewind to this length", fmt::format("slot {}", slot),
         fmt::format("{} to {}", rewindable_to, current), fmt::format("{}", length),
         "only the last extend can be rewound, if it had at most max_rewind tokens");
  }
}

void check_draft(const Runtime& runtime, std::span<const Draft> batch) {
  const Options& options = runtime.options();
  if (!options.mtp) {
    fail("there is no draft head", "draft",
         "a checkpoint with mtp.* tensors and speculation enabled", "none");
  }
  check_distinct(options, batch);
  for (const Draft& entry : batch) {
    const std::string where = fmt::format("slot {}", entry.slot);
    if (entry.k < 1 || entry.k > options.max_rewind) {
      fail("number of draft tokens is out of range", where,
           fmt::format("1 to {}", options.max_rewind), fmt::format("{}", entry.k));
    }
    if (runtime.length(entry.slot) == 0) {
      fail("nothing to draft from", where, "a sequence of at least one token", "an empty slot");
    }
    check_token(runtime.model().config, entry.next_token, where);
    const int64_t vocab = runtime.model().config.vocab_size;
    if (entry.vocab < 0 || entry.vocab > vocab) {
      fail("the draft vocabulary is out of range", where, fmt::format("0 to {}", vocab),
           fmt::format("{}", entry.vocab));
    }
  }
}

void check_save(const Runtime& runtime, int slot, int64_t parent) {
  check_slot(runtime.options(), slot);
  const int64_t length = runtime.length(slot);
  if (parent < 0 || parent >= length) {
    fail("nothing to save", fmt::format("slot {}", slot), "a parent shorter than the sequence",
         fmt::format("parent {}, {}", parent, counted(length, "token")));
  }
}

void check_restore(const Runtime& runtime, int slot, std::span<const Snapshot> chain) {
  check_slot(runtime.options(), slot);
  const std::string where = fmt::format("slot {}", slot);
  if (chain.empty()) fail("nothing to restore", where, "at least one snapshot", "none");
  int64_t length = 0;
  for (const Snapshot& snapshot : chain) {
    if (snapshot.parent != length || snapshot.length <= length) {
      fail("snapshots do not follow each other", where,
           fmt::format("one that begins at {}", length),
           fmt::format("{} to {}", snapshot.parent, snapshot.length));
    }
    if (!snapshot.caches) fail("snapshot without caches", where, "keys and values", "none");
    length = snapshot.length;
  }
  if (!chain.back().state) {
    fail("the last snapshot has no state", where, "a recurrent state", "none");
  }
  if (length > runtime.options().max_model_len) {
    fail("sequence is longer than max_model_len", where,
         "at most " + counted(runtime.options().max_model_len, "token"), counted(length, "token"));
  }
}

}  // namespace levin::runtime
