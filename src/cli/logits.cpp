// levin logits: raw results of a model, for checking it against other engines.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "checkpoint/writer.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/generation.h"
#include "cli/output.h"
#include "core/files.h"
#include "core/plural.h"
#include "core/progress.h"
#include "engine/sampler.h"

namespace levin::cli {
namespace {

constexpr const char* kDescription =
    "Runs token ids through the model and writes what it computes, as float32 tensors of a\n"
    "safetensors file:\n"
    "  logits         [tokens, vocab]\n"
    "  hidden_states  [layers + 1, tokens, hidden]  with --hidden-states; 0 = embeddings,\n"
    "                                               last = after norm_f\n"
    "  draft_logits   [k, vocab]                    with --draft k: k steps of the MTP head after\n"
    "                                               the last token, whose successor is the argmax\n"
    "                                               of the last row\n"
    "Needs no tokenizer.\n\n"
    "  echo '[1, 2, 3]' > ids.json\n"
    "  levin logits models/tiny --tokens ids.json -o out.safetensors --draft 3\n";

constexpr int kMaxDrafts = 64;

struct LogitsFlags {
  EngineFlags engine;
  std::string tokens;
  std::string output;
  bool hidden_states = false;
  int draft = 0;
  bool overwrite = false;
  bool json = false;
};

std::vector<int32_t> read_ids(const std::string& path) {
  const nlohmann::json json = read_json(path);
  const auto fail = [&](std::string what, std::string found) {
    throw Error({.what = std::move(what),
                 .where = path,
                 .expected = "one array of token ids",
                 .found = found.substr(0, 200),
                 .hint = "for example [1, 2, 3]"});
  };
  if (!json.is_array()) fail("not an array", json.dump());
  if (json.empty()) fail("no token ids", "an empty array");
  std::vector<int32_t> ids;
  for (const auto& id : json) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) {
      fail(fmt::format("element {} is not a token id", ids.size()), id.dump());
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

// Before the weights are loaded.
void check_ids(std::span<const int32_t> ids, const std::string& path, const engine::Engine& engine,
               const engine::LoadOptions& options) {
  const int64_t vocab = engine.model->config.vocab_size;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < vocab) continue;
    throw Error({.what = fmt::format("element {} is not a token id", i),
                 .where = path,
                 .expected = fmt::format("0 to {}", vocab - 1),
                 .found = fmt::format("{}", ids[i]),
                 .hint = {}});
  }
  const int64_t context = context_of(engine, options);
  if (static_cast<int64_t>(ids.size()) <= context) return;
  throw Error({.what = "more tokens than the context holds",
               .where = path,
               .expected = fmt::format("at most {}", context),
               .found = fmt::format("{}", ids.size()),
               .hint = "raise --max-model-len"});
}

Existing existing(const LogitsFlags& flags) {
  return flags.overwrite ? Existing::kReplace : Existing::kRefuse;
}

// The output file, filled piece by piece as the model runs.
class Output {
 public:
  Output(const LogitsFlags& flags, const model::Config& config, int64_t tokens)
      : tokens_(tokens), vocab_(config.vocab_size), hidden_(config.hidden_size) {
    std::vector<checkpoint::OutputTensor> tensors = {
        {.name = "logits", .dtype = DType::kF32, .shape = {tokens, vocab_}}};
    if (flags.hidden_states) {
      hidden_index_ = tensors.size();
      tensors.push_back({.name = "hidden_states",
                         .dtype = DType::kF32,
                         .shape = {config.num_layers() + 1, tokens, hidden_}});
    }
    if (flags.draft > 0) {
      draft_index_ = tensors.size();
      tensors.push_back(
          {.name = "draft_logits", .dtype = DType::kF32, .shape = {flags.draft, vocab_}});
    }
    writer_ = std::make_unique<checkpoint::ShardWriter>(flags.output, std::move(tensors),
                                                        existing(flags));
  }

  void logits(int64_t token, std::span<const float> row) { write(0, token * vocab_, row); }
  void hidden(int64_t layer, int64_t token, std::span<const float> rows) {
    write(hidden_index_, (layer * tokens_ + token) * hidden_, rows);
  }
  void draft(int64_t step, std::span<const float> row) { write(draft_index_, step * vocab_, row); }
  void commit() { writer_->commit(); }

 private:
  void write(std::size_t tensor, int64_t first_element, std::span<const float> values) {
    writer_->write(tensor, static_cast<uint64_t>(first_element) * sizeof(float),
                   std::as_bytes(values));
  }

  int64_t tokens_;
  int64_t vocab_;
  int64_t hidden_;
  std::size_t hidden_index_ = 0;
  std::size_t draft_index_ = 0;
  std::unique_ptr<checkpoint::ShardWriter> writer_;
};

// Runs all tokens; returns the argmax of the last row.
int32_t run_tokens(runtime::Runtime& runtime, const LogitsFlags& flags,
                   std::span<const int32_t> ids, Output& output) {
  int64_t done = 0;
  if (flags.hidden_states) {
    runtime.set_observer({.hidden = [&](int layer, std::span<const float> rows,
                                        int) { output.hidden(layer, done, rows); },
                          .linear_input = {}});
  }
  Progress progress("logits", static_cast<int64_t>(ids.size()), "tokens");
  int32_t next = 0;
  while (done < static_cast<int64_t>(ids.size())) {
    const auto rest = ids.subspan(static_cast<std::size_t>(done));
    const auto chunk = rest.first(
        std::min(rest.size(), static_cast<std::size_t>(runtime.options().max_extend_tokens)));
    const auto rows = static_cast<int>(chunk.size());
    const runtime::Extend entry = {.slot = 0, .tokens = chunk, .logits_rows = rows};
    runtime.extend({&entry, 1});
    for (int row = 0; row < rows; ++row) output.logits(done + row, runtime.logits(0, row));
    done += rows;
    if (done == static_cast<int64_t>(ids.size())) {
      next = engine::greedy_token(runtime.logits(0, rows - 1));
    }
    progress.advance(rows);
  }
  runtime.set_observer({});
  return next;
}

ExitCode run_logits(const LogitsFlags& flags) {
  check_output_file(flags.output, existing(flags));
  check_not_an_input(flags.output,
                     std::vector<std::filesystem::path>{flags.tokens, flags.engine.model});
  const std::vector<int32_t> ids = read_ids(flags.tokens);
  engine::LoadOptions options = load_options(flags.engine);
  options.before_runtime = [&](const engine::Engine& loading) {
    check_ids(ids, flags.tokens, loading, options);
  };
  options.runtime.mtp = flags.draft > 0;
  options.runtime.max_num_seqs = 1;
  options.runtime.max_rewind = std::max(options.runtime.max_rewind, flags.draft);
  const auto engine = engine::load_engine(flags.engine.model, options);
  runtime::Runtime& runtime = *engine->runtime;
  spdlog::info("{}", runtime.description());

  const model::Config& config = engine->model->config;
  Output output(flags, config, static_cast<int64_t>(ids.size()));
  const int32_t next = run_tokens(runtime, flags, ids, output);
  std::vector<int32_t> drafts;
  if (flags.draft > 0) {
    const runtime::Draft entry = {.slot = 0, .next_token = next, .k = flags.draft};
    runtime.draft({&entry, 1});
    for (int step = 0; step < flags.draft; ++step) {
      output.draft(step, runtime.draft_logits(0, step));
    }
    drafts.assign(runtime.drafts(0).begin(), runtime.drafts(0).end());
  }
  output.commit();

  if (flags.json) {
    nlohmann::ordered_json json = {{"output", flags.output},
                                   {"runtime", runtime.description()},
                                   {"tokens", ids.size()},
                                   {"vocab_size", config.vocab_size},
                                   {"next_token", next}};
    if (flags.draft > 0) json["draft_tokens"] = drafts;
    print_json(json);
  } else {
    fmt::print("{} -> {}; most likely next token {}\n", counted(ids.size(), "token"), flags.output,
               next);
    if (flags.draft > 0) fmt::print("draft tokens {}\n", fmt::join(drafts, " "));
  }
  return ExitCode::kDone;
}

}  // namespace

void add_logits(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("logits", kDescription);
  auto flags = std::make_shared<LogitsFlags>();
  add_engine_flags(*command, flags->engine);
  command->remove_option(command->get_option("--speculative-config"));
  command->add_option("--tokens", flags->tokens, "JSON file: one array of token ids")->required();
  command->add_option("-o,--output", flags->output, "Safetensors file to write")->required();
  command->add_flag("--hidden-states", flags->hidden_states,
                    "Also write the residual stream entering every layer");
  command->add_option("--draft", flags->draft, "Also write the logits of this many draft steps")
      ->check(CLI::Range(1, kMaxDrafts));
  command->add_flag("--overwrite", flags->overwrite, "Replace the output file when it exists");
  command->add_flag("--json", flags->json, "Print one JSON object to stdout");
  command->callback([flags, &action] { action = [flags] { return run_logits(*flags); }; });
}

}  // namespace levin::cli
