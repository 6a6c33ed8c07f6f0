// What every runtime must do, whatever device it runs on. A runtime's test file makes a Subject and
// runs all of conformance_checks() on it; comparisons are bit for bit, against the runtime itself.
//
//   class MyConformance : public ::testing::TestWithParam<Check> {};
//   TEST_P(MyConformance, Holds) { GetParam().run(my_subject()); }
//   INSTANTIATE_TEST_SUITE_P(All, MyConformance, ::testing::ValuesIn(conformance_checks()),
//                            check_name);
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "runtime/runtime.h"

namespace levin::runtime::conformance {

struct Subject {
  std::shared_ptr<const model::Model> model;  // with an MTP head
  std::function<std::unique_ptr<Runtime>(std::shared_ptr<const model::Model>, const Options&)> make;
  std::vector<KvCacheDType> kv_cache_dtypes;  // that the runtime supports
  int threads = 0;                            // Options::threads
  // Extends of more tokens sum in another order, so that splitting them changes the last bits; 0:
  // none do.
  std::size_t longest_exact = 0;
};

struct Check {
  std::string name;
  std::function<void(const Subject&)> run;
};

inline std::string check_name(const ::testing::TestParamInfo<Check>& info) {
  return info.param.name;
}

using Tokens = std::vector<int32_t>;
using Bits = std::vector<uint32_t>;

inline constexpr int kMaxRewind = 8;

// --- helpers ---

inline Options small_options(const Subject& subject) {
  return {.max_model_len = 96,
          .max_num_seqs = 3,
          .max_extend_tokens = 64,
          .max_rewind = kMaxRewind,
          .kv_cache_dtype = subject.kv_cache_dtypes.front(),
          .seed = 7,
          .threads = subject.threads};
}

inline std::unique_ptr<Runtime> make(const Subject& subject, const Options& options) {
  return subject.make(subject.model, options);
}

// Every combination of cache types, named for failure messages.
inline std::vector<std::pair<std::string, Options>> cache_variants(const Subject& subject) {
  std::vector<std::pair<std::string, Options>> variants;
  for (const KvCacheDType kv : subject.kv_cache_dtypes) {
    Options options = small_options(subject);
    options.kv_cache_dtype = kv;
    const std::string name = fmt::format("kv {}", static_cast<int>(kv));
    variants.emplace_back(name + ", ssm f32", options);
    options.ssm_cache_dtype = SsmCacheDType::kF16;
    variants.emplace_back(name + ", ssm f16", options);
    options.stochastic_rounding = true;
    options.philox_rounds = 5;
    variants.emplace_back(name + ", ssm f16 stochastic", options);
  }
  return variants;
}

inline Tokens random_tokens(const Subject& subject, std::mt19937& random, std::size_t count) {
  const auto vocab = static_cast<int32_t>(subject.model->config.vocab_size);
  std::uniform_int_distribution<int32_t> token(0, vocab - 1);
  Tokens tokens(count);
  for (int32_t& t : tokens) t = token(random);
  return tokens;
}

inline void append_bits(Bits& bits, std::span<const float> values) {
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
}

// Extends one slot; bits of the logits of all new tokens.
inline Bits extend_all(Runtime& runtime, int slot, std::span<const int32_t> tokens) {
  const auto rows = static_cast<int>(tokens.size());
  const Extend entry = {.slot = slot, .tokens = tokens, .logits_rows = rows};
  runtime.extend({&entry, 1});
  Bits bits;
  for (int row = 0; row < rows; ++row) append_bits(bits, runtime.logits(0, row));
  return bits;
}

// Drafts on one slot; bits of all draft logits, then the proposals.
inline Bits draft_bits(Runtime& runtime, int slot, int32_t next, int k) {
  const Draft entry = {.slot = slot, .next_token = next, .k = k};
  runtime.draft({&entry, 1});
  Bits bits;
  for (int step = 0; step < k; ++step) append_bits(bits, runtime.draft_logits(0, step));
  for (const int32_t token : runtime.drafts(0)) bits.push_back(static_cast<uint32_t>(token));
  return bits;
}

inline void append(Bits& to, const Bits& from) {
  to.insert(to.end(), from.begin(), from.end());
}

inline void expect_same(const Bits& a, const Bits& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i], b[i]) << what << ": first difference at " << i << ", "
                          << std::bit_cast<float>(a[i]) << " and " << std::bit_cast<float>(b[i]);
  }
}

template <typename Function>
void expect_error(Function&& function, const std::string& what) {
  EXPECT_THROW(function(), Error) << what;
}

// --- checks ---

inline void split_invariance(const Subject& subject) {
  std::mt19937 random(1);
  for (const auto& [name, options] : cache_variants(subject)) {
    const auto runtime = make(subject, options);
    const Tokens tokens = random_tokens(subject, random, 40);
    const std::size_t most = subject.longest_exact > 0 ? subject.longest_exact : tokens.size();
    Bits whole;
    for (std::size_t done = 0; done < tokens.size(); done += most) {
      append(whole,
             extend_all(*runtime, 0,
                        std::span(tokens).subspan(done, std::min(most, tokens.size() - done))));
    }
    const Bits drafts = draft_bits(*runtime, 0, 5, 3);
    for (int trial = 0; trial < 4; ++trial) {
      runtime->reset(1);
      Bits split;
      std::span<const int32_t> rest = tokens;
      while (!rest.empty()) {
        // Single tokens, short pieces around max_rewind and long ones.
        const std::size_t longest = trial == 0 ? 1 : trial == 1 ? 10 : 30;
        std::uniform_int_distribution<std::size_t> size(1, std::min(longest, most));
        const std::size_t piece = std::min(size(random), rest.size());
        append(split, extend_all(*runtime, 1, rest.first(piece)));
        rest = rest.subspan(piece);
      }
      expect_same(whole, split, name + ", logits");
      expect_same(drafts, draft_bits(*runtime, 1, 5, 3), name + ", drafts");
    }
  }
}

inline void batch_invariance(const Subject& subject) {
  std::mt19937 random(2);
  for (const auto& [name, options] : cache_variants(subject)) {
    const auto together = make(subject, options);
    const auto alone = make(subject, options);
    // Ragged pieces of three sequences, given out in three rounds; in the last one slot 1 idles.
    const std::size_t sizes[3][3] = {{7, 1, 20}, {1, 30, 4}, {2, 0, 1}};
    for (const auto& round : sizes) {
      std::vector<Tokens> tokens;
      std::vector<Extend> batch;
      for (const std::size_t size : round) {
        tokens.push_back(random_tokens(subject, random, size));
      }
      for (int slot = 2; slot >= 0; --slot) {
        const Tokens& own = tokens[static_cast<std::size_t>(slot)];
        if (own.empty()) continue;
        batch.push_back({.slot = slot, .tokens = own, .logits_rows = static_cast<int>(own.size())});
      }
      together->extend(batch);
      for (std::size_t entry = 0; entry < batch.size(); ++entry) {
        Bits bits;
        for (int row = 0; row < batch[entry].logits_rows; ++row) {
          append_bits(bits, together->logits(static_cast<int>(entry), row));
        }
        expect_same(bits, extend_all(*alone, batch[entry].slot, batch[entry].tokens), name);
      }
    }
    const std::vector<Draft> drafts = {{.slot = 2, .next_token = 1, .k = 1},
                                       {.slot = 0, .next_token = 2, .k = 4},
                                       {.slot = 1, .next_token = 3, .k = 2}};
    together->draft(drafts);
    for (int entry = 0; entry < 3; ++entry) {
      const Draft& draft = drafts[static_cast<std::size_t>(entry)];
      Bits bits;
      for (int step = 0; step < draft.k; ++step) {
        append_bits(bits, together->draft_logits(entry, step));
      }
      for (const int32_t token : together->drafts(entry)) {
        bits.push_back(static_cast<uint32_t>(token));
      }
      expect_same(bits, draft_bits(*alone, draft.slot, draft.next_token, draft.k),
                  name + ", drafts");
    }
  }
}

inline void logits_of_last_rows(const Subject& subject) {
  std::mt19937 random(3);
  const auto runtime = make(subject, small_options(subject));
  const Tokens tokens = random_tokens(subject, random, 12);
  const Bits all = extend_all(*runtime, 0, tokens);
  const std::size_t vocab = all.size() / tokens.size();
  const std::vector<Extend> batch = {{.slot = 1, .tokens = tokens, .logits_rows = 3},
                                     {.slot = 2, .tokens = tokens, .logits_rows = 0}};
  runtime->extend(batch);
  EXPECT_EQ(runtime->length(2), 12);
  Bits last;
  for (int row = 0; row < 3; ++row) append_bits(last, runtime->logits(0, row));
  expect_same({all.end() - static_cast<std::ptrdiff_t>(3 * vocab), all.end()}, last, "last 3 rows");
}

inline void rewind_at_every_length(const Subject& subject) {
  std::mt19937 random(4);
  for (const auto& [name, options] : cache_variants(subject)) {
    const auto runtime = make(subject, options);
    const Tokens prompt = random_tokens(subject, random, 9);
    const Tokens block = random_tokens(subject, random, kMaxRewind);
    const Tokens after = random_tokens(subject, random, 3);
    for (int m = 0; m <= kMaxRewind; ++m) {
      const auto kept = std::span(block).first(static_cast<std::size_t>(m));
      // Slot 0 never sees the block's tail.
      runtime->reset(0);
      extend_all(*runtime, 0, prompt);
      if (m > 0) extend_all(*runtime, 0, kept);
      const Bits never_drafts = draft_bits(*runtime, 0, 11, 2);
      const Bits never = extend_all(*runtime, 0, after);
      const Bits never_drafts_after = draft_bits(*runtime, 0, 2, 2);
      // Slot 1 sees it, drafts on it and goes back.
      runtime->reset(1);
      extend_all(*runtime, 1, prompt);
      draft_bits(*runtime, 1, block.front(), 3);
      extend_all(*runtime, 1, block);
      draft_bits(*runtime, 1, 4, 3);
      runtime->rewind(1, 9 + m);
      EXPECT_EQ(runtime->length(1), 9 + m);
      const std::string what = fmt::format("{}, m = {}", name, m);
      expect_same(never_drafts, draft_bits(*runtime, 1, 11, 2), what + ", drafts");
      expect_same(never, extend_all(*runtime, 1, after), what + ", logits");
      expect_same(never_drafts_after, draft_bits(*runtime, 1, 2, 2), what + ", drafts after");
    }
  }
}

// Rewinding twice, and rewinding to where one is, which is always allowed.
inline void rewind_again(const Subject& subject) {
  std::mt19937 random(5);
  const auto runtime = make(subject, small_options(subject));
  const Tokens prompt = random_tokens(subject, random, 20);
  const Tokens block = random_tokens(subject, random, 6);
  const Tokens after = random_tokens(subject, random, 2);
  extend_all(*runtime, 0, prompt);
  runtime->rewind(0, 20);
  extend_all(*runtime, 0, block);
  runtime->rewind(0, 25);
  runtime->rewind(0, 25);
  runtime->rewind(0, 22);
  const Bits twice = extend_all(*runtime, 0, after);
  extend_all(*runtime, 1, prompt);
  extend_all(*runtime, 1, std::span(block).first(2));
  expect_same(extend_all(*runtime, 1, after), twice, "rewound twice");
  // A later extend can be rewound in its turn, to its own start.
  runtime->rewind(0, 22);
  expect_same(twice, extend_all(*runtime, 0, after), "the next extend");
}

inline void slots_are_reusable(const Subject& subject) {
  std::mt19937 random(6);
  for (const auto& [name, options] : cache_variants(subject)) {
    const auto runtime = make(subject, options);
    const Tokens tokens = random_tokens(subject, random, 15);
    const Bits fresh = extend_all(*runtime, 2, tokens);
    const Bits fresh_drafts = draft_bits(*runtime, 2, 8, kMaxRewind);
    // Fill slot 0 to the brim with something else, drafts included, then start over in it.
    extend_all(*runtime, 0, random_tokens(subject, random, 64));
    extend_all(*runtime, 0, random_tokens(subject, random, 32));
    draft_bits(*runtime, 0, 1, kMaxRewind);
    runtime->reset(0);
    EXPECT_EQ(runtime->length(0), 0);
    expect_same(fresh, extend_all(*runtime, 0, tokens), name + ", logits");
    expect_same(fresh_drafts, draft_bits(*runtime, 0, 8, kMaxRewind), name + ", drafts");
  }
}

inline void drafting_changes_nothing(const Subject& subject) {
  std::mt19937 random(7);
  const auto runtime = make(subject, small_options(subject));
  const Tokens tokens = random_tokens(subject, random, 24);
  Bits with;
  Bits without;
  for (std::size_t i = 0; i < tokens.size(); i += 4) {
    const auto piece = std::span(tokens).subspan(i, 4);
    append(without, extend_all(*runtime, 0, piece));
    append(with, extend_all(*runtime, 1, piece));
    const auto next = static_cast<int32_t>(i);  // not the token that follows
    const Bits once = draft_bits(*runtime, 1, next, 5);
    expect_same(once, draft_bits(*runtime, 1, next, 5), "the same draft twice");
    EXPECT_EQ(runtime->length(1), static_cast<int64_t>(i + 4));
  }
  expect_same(without, with, "logits with drafts in between");
  expect_same(draft_bits(*runtime, 0, 3, 5), draft_bits(*runtime, 1, 3, 5), "drafts at the end");
}

// The proposals are the argmax of their logits, and a draft of k begins with the draft of k - 1.
inline void drafts_are_greedy_and_nested(const Subject& subject) {
  std::mt19937 random(8);
  const auto runtime = make(subject, small_options(subject));
  extend_all(*runtime, 0, random_tokens(subject, random, 10));
  const Draft longest = {.slot = 0, .next_token = 9, .k = kMaxRewind};
  runtime->draft({&longest, 1});
  const Tokens all(runtime->drafts(0).begin(), runtime->drafts(0).end());
  ASSERT_EQ(all.size(), static_cast<std::size_t>(kMaxRewind));
  for (int step = 0; step < kMaxRewind; ++step) {
    const auto logits = runtime->draft_logits(0, step);
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    EXPECT_EQ(all[static_cast<std::size_t>(step)], best) << "step " << step;
  }
  for (int k = 1; k < kMaxRewind; ++k) {
    const Draft draft = {.slot = 0, .next_token = 9, .k = k};
    runtime->draft({&draft, 1});
    const Tokens some(runtime->drafts(0).begin(), runtime->drafts(0).end());
    EXPECT_EQ(some, Tokens(all.begin(), all.begin() + k));
  }
}

// A draft among the first tokens takes the best of them, each sequence of its own.
inline void drafts_keep_to_their_vocabulary(const Subject& subject) {
  std::mt19937 random(18);
  const auto runtime = make(subject, small_options(subject));
  const Tokens tokens = random_tokens(subject, random, 10);
  extend_all(*runtime, 0, tokens);
  extend_all(*runtime, 1, tokens);
  const int64_t vocab = runtime->model().config.vocab_size;
  const Draft outside = {.slot = 0, .next_token = 9, .k = 1, .vocab = vocab + 1};
  EXPECT_THROW(runtime->draft({&outside, 1}), Error);
  const Draft among = {.slot = 0, .next_token = 9, .k = 2, .vocab = vocab / 3};
  const Draft whole = {.slot = 0, .next_token = 9, .k = 2};
  runtime->draft({&whole, 1});
  const std::vector<float> all(runtime->draft_logits(0, 0).begin(),
                               runtime->draft_logits(0, 0).end());
  const std::vector<Draft> both = {among, {.slot = 1, .next_token = 9, .k = 2}};
  runtime->draft(both);
  for (int step = 0; step < 2; ++step) {
    const auto logits = runtime->draft_logits(0, step);
    ASSERT_EQ(logits.size(), static_cast<std::size_t>(vocab / 3));
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    EXPECT_EQ(runtime->drafts(0)[static_cast<std::size_t>(step)], best);
    EXPECT_EQ(runtime->draft_logits(1, step).size(), static_cast<std::size_t>(vocab));
  }
  EXPECT_TRUE(std::equal(runtime->draft_logits(0, 0).begin(), runtime->draft_logits(0, 0).end(),
                         all.begin()));
  EXPECT_TRUE(std::equal(all.begin(), all.end(), runtime->draft_logits(1, 0).begin()));
}

// Narrow caches change the result a little, the stochastic one depends on the seed and on nothing
// else.
inline void cache_types_take_effect(const Subject& subject) {
  std::mt19937 random(9);
  const Tokens tokens = random_tokens(subject, random, 40);
  auto logits = [&](const Options& options) {
    const auto runtime = make(subject, options);
    // In parts: a state may stay in float32 until an extend ends.
    Bits bits = extend_all(*runtime, 1, std::span(tokens).first(30));
    append(bits, extend_all(*runtime, 1, std::span(tokens).subspan(30, 5)));
    append(bits, extend_all(*runtime, 1, std::span(tokens).subspan(35)));
    std::vector<float> values;
    for (const uint32_t b : bits) values.push_back(std::bit_cast<float>(b));
    return values;
  };
  auto mean_difference = [](const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(double{a[i]} - double{b[i]});
    return sum / static_cast<double>(a.size());
  };
  // Random tokens give logits of a few units; a cache type must not move them by more than this.
  constexpr double kSmall = 0.5;
  Options options = small_options(subject);
  const std::vector<float> base = logits(options);
  for (const KvCacheDType kv : subject.kv_cache_dtypes) {
    options.kv_cache_dtype = kv;
    const double difference = mean_difference(base, logits(options));
    EXPECT_LT(difference, kSmall);
    if (kv != subject.kv_cache_dtypes.front()) {
      EXPECT_GT(difference, 0.0);
    }
  }
  options = small_options(subject);
  options.ssm_cache_dtype = SsmCacheDType::kF16;
  const std::vector<float> nearest = logits(options);
  options.stochastic_rounding = true;
  const std::vector<float> stochastic = logits(options);
  for (const auto& narrow : {nearest, stochastic}) {
    EXPECT_GT(mean_difference(base, narrow), 0.0);
    EXPECT_LT(mean_difference(base, narrow), kSmall);
  }
  EXPECT_GT(mean_difference(nearest, stochastic), 0.0);
  EXPECT_EQ(mean_difference(stochastic, logits(options)), 0.0);
  options.seed += 1;
  EXPECT_GT(mean_difference(stochastic, logits(options)), 0.0);
}

inline void whole_context_is_usable(const Subject& subject) {
  std::mt19937 random(10);
  const auto runtime = make(subject, small_options(subject));
  extend_all(*runtime, 0, random_tokens(subject, random, 64));
  extend_all(*runtime, 0, random_tokens(subject, random, 24));
  const Bits last = extend_all(*runtime, 0, random_tokens(subject, random, 8));
  EXPECT_EQ(runtime->length(0), 96);
  for (const uint32_t bits : last) ASSERT_TRUE(std::isfinite(std::bit_cast<float>(bits)));
  // Proposals beyond the limit are allowed; extending there is not.
  draft_bits(*runtime, 0, 1, kMaxRewind);
  const Tokens one = {1};
  expect_error([&] { extend_all(*runtime, 0, one); }, "beyond max_model_len");
  runtime->rewind(0, 95);
  extend_all(*runtime, 0, one);
  EXPECT_EQ(runtime->length(0), 96);
}

inline void misuse_is_refused(const Subject& subject) {
  std::mt19937 random(11);
  const auto runtime = make(subject, small_options(subject));
  const Tokens tokens = random_tokens(subject, random, 10);
  const Tokens many = random_tokens(subject, random, 65);
  const Tokens some = random_tokens(subject, random, 40);
  const auto vocab = static_cast<int32_t>(subject.model->config.vocab_size);
  const Tokens too_large = {vocab};
  const Tokens negative = {-1};
  auto extend = [&](std::vector<Extend> batch) {
    return [=, &runtime] { runtime->extend(batch); };
  };
  auto draft = [&](Draft entry) { return [=, &runtime] { runtime->draft({&entry, 1}); }; };

  expect_error(draft({.slot = 0, .next_token = 1, .k = 1}), "draft of an empty slot");
  extend_all(*runtime, 0, tokens);
  expect_error(extend({}), "empty batch");
  expect_error(extend({{.slot = 0, .tokens = {}, .logits_rows = 0}}), "no tokens");
  expect_error(extend({{.slot = 3, .tokens = tokens}}), "slot too large");
  expect_error(extend({{.slot = -1, .tokens = tokens}}), "slot negative");
  expect_error(extend({{.slot = 1, .tokens = tokens}, {.slot = 1, .tokens = tokens}}),
               "slot twice");
  expect_error(extend({{.slot = 1, .tokens = tokens, .logits_rows = 11}}), "logits rows");
  expect_error(extend({{.slot = 1, .tokens = tokens, .logits_rows = -1}}), "logits rows negative");
  expect_error(extend({{.slot = 1, .tokens = too_large}}), "token too large");
  expect_error(extend({{.slot = 1, .tokens = negative}}), "token negative");
  expect_error(extend({{.slot = 1, .tokens = many}}), "too many tokens");
  expect_error(extend({{.slot = 1, .tokens = some}, {.slot = 2, .tokens = some}}),
               "too many tokens over all slots");
  expect_error([&] { runtime->rewind(0, 11); }, "rewind forward");
  expect_error([&] { runtime->rewind(0, 9); }, "rewind of more than max_rewind tokens");
  expect_error([&] { runtime->rewind(0, -1); }, "rewind below zero");
  expect_error([&] { runtime->rewind(5, 0); }, "rewind of no slot");
  expect_error([&] { runtime->reset(3); }, "reset of no slot");
  expect_error(draft({.slot = 0, .next_token = 1, .k = 0}), "draft of no tokens");
  expect_error(draft({.slot = 0, .next_token = 1, .k = kMaxRewind + 1}), "draft of too many");
  expect_error(draft({.slot = 0, .next_token = vocab, .k = 1}), "draft after no token");

  // None of it left a trace.
  EXPECT_EQ(runtime->length(0), 10);
  EXPECT_EQ(runtime->length(1), 0);
  const Tokens after = random_tokens(subject, random, 3);
  const Bits continued = extend_all(*runtime, 0, after);
  runtime->rewind(0, 10);
  expect_error([&] { runtime->rewind(0, 9); }, "rewind beyond the last extend");
  extend_all(*runtime, 2, tokens);
  expect_same(extend_all(*runtime, 2, after), continued, "after the errors");

  Options options = small_options(subject);
  options.mtp = false;
  const auto no_mtp = make(subject, options);
  extend_all(*no_mtp, 0, tokens);
  expect_error([&] { draft_bits(*no_mtp, 0, 1, 1); }, "draft without a draft head");
  options = small_options(subject);
  options.max_num_seqs = 0;
  expect_error([&] { make(subject, options); }, "no slots");
  options = small_options(subject);
  options.stochastic_rounding = true;
  expect_error([&] { make(subject, options); }, "stochastic rounding of a float32 state");
}

inline void observer_sees_the_stream(const Subject& subject) {
  std::mt19937 random(12);
  const auto runtime = make(subject, small_options(subject));
  const Tokens tokens = random_tokens(subject, random, 6);
  const Bits plain = extend_all(*runtime, 0, tokens);
  std::vector<int> layers;
  std::map<std::string, int> rows_seen;
  bool sizes_fit = true;
  runtime->set_observer(
      {.hidden =
           [&](int layer, std::span<const float> hidden, int rows) {
             layers.push_back(layer);
             const auto width = static_cast<std::size_t>(subject.model->config.hidden_size);
             sizes_fit &= hidden.size() == width * static_cast<std::size_t>(rows);
           },
       .linear_input =
           [&](const model::Linear& linear, std::span<const float> input, int rows) {
             rows_seen[linear.name] += rows;
             sizes_fit &= input.size() == static_cast<std::size_t>(linear.in * rows);
           }});
  const Bits observed = extend_all(*runtime, 1, tokens);
  runtime->set_observer({});
  expect_same(plain, observed, "logits while observed");
  EXPECT_TRUE(sizes_fit);
  const int count = static_cast<int>(subject.model->layers.size());
  ASSERT_EQ(layers.size(), static_cast<std::size_t>(count + 1));
  for (int layer = 0; layer <= count; ++layer)
    EXPECT_EQ(layers[static_cast<std::size_t>(layer)], layer);
  EXPECT_EQ(rows_seen.at("lm_head"), 6);

  // Every row reaches each dense linear once, and num_experts_per_tok experts of a MoE layer.
  for (const model::Layer& layer : subject.model->layers) {
    if (const auto* mamba = std::get_if<model::MambaBlock>(&layer.mixer)) {
      EXPECT_EQ(rows_seen[mamba->in_proj.name], 6);
    } else if (const auto* moe = std::get_if<model::MoeBlock>(&layer.mixer)) {
      int routed = 0;
      for (const model::Expert& expert : moe->experts) routed += rows_seen[expert.up_proj.name];
      EXPECT_EQ(routed, 6 * subject.model->config.num_experts_per_tok);
    }
  }
  EXPECT_EQ(runtime->plan().size(), subject.model->linears().size());
}

// --- snapshots ---

// Extends by random pieces of up to `longest` tokens, so that the state is that of an arbitrary
// moment.
inline void extend_in_pieces(Runtime& runtime, int slot, std::span<const int32_t> tokens,
                             std::mt19937& random, std::size_t longest = 30) {
  while (!tokens.empty()) {
    std::uniform_int_distribution<std::size_t> size(1, random() % 2 == 0 ? 4U : longest);
    const std::size_t piece = std::min(size(random), tokens.size());
    const Extend entry = {.slot = slot, .tokens = tokens.first(piece), .logits_rows = 0};
    runtime.extend({&entry, 1});
    tokens = tokens.subspan(piece);
  }
}

// Everything that a sequence can be asked, from `tokens` on: drafts, logits of a block, drafts and
// logits after going back to each of its lengths. The slot ends with more tokens than it had.
inline Bits future_bits(Runtime& runtime, int slot, std::span<const int32_t> block) {
  const int64_t length = runtime.length(slot);
  Bits bits = draft_bits(runtime, slot, block.front(), 3);
  append(bits, extend_all(runtime, slot, block));
  append(bits, draft_bits(runtime, slot, 4, 2));
  for (auto m = static_cast<int64_t>(block.size()); m > 0; --m) {
    runtime.rewind(slot, length + m);
    append(bits, draft_bits(runtime, slot, static_cast<int32_t>(m), 1));
  }
  append(bits, extend_all(runtime, slot, block.subspan(1)));
  return bits;
}

inline void snapshots_continue_the_same(const Subject& subject) {
  std::mt19937 random(14);
  // Wherever it is cut, a sequence is the same.
  const std::size_t longest = subject.longest_exact > 0 ? subject.longest_exact : 30;
  for (auto& [name, options] : cache_variants(subject)) {
    options.max_model_len = 200;
    Options poisoned = options;
    poisoned.poison_free_slots = true;
    const auto plain = make(subject, options);
    const auto runtime = make(subject, poisoned);
    if (!runtime->has_snapshots()) GTEST_SKIP() << "this runtime has no snapshots";
    for (int trial = 0; trial < 2; ++trial) {
      const Tokens tokens = random_tokens(subject, random, 1 + random() % 150);
      const Tokens block = random_tokens(subject, random, kMaxRewind);
      const std::string what = fmt::format("{}, {} tokens", name, tokens.size());
      // Saved at random points on the way, each with the part since the one before.
      runtime->reset(0);
      std::vector<Snapshot> chain;
      std::span<const int32_t> rest = tokens;
      while (!rest.empty()) {
        const std::size_t piece = std::min<std::size_t>(1 + random() % 90, rest.size());
        extend_in_pieces(*runtime, 0, rest.first(piece), random, longest);
        if (random() % 2 == 0) draft_bits(*runtime, 0, 7, 3);
        rest = rest.subspan(piece);
        const int64_t parent = chain.empty() ? 0 : chain.back().length;
        chain.push_back(runtime->save(0, parent));
        EXPECT_EQ(chain.back().parent, parent);
        EXPECT_EQ(chain.back().length, runtime->length(0));
      }
      plain->reset(0);
      extend_in_pieces(*plain, 0, tokens, random, longest);
      const Bits expected = future_bits(*plain, 0, block);
      // The saved slot goes on undisturbed; others continue from the snapshots, used or not, also
      // while a neighbour has other tokens, and as often as one likes.
      expect_same(expected, future_bits(*runtime, 0, block), what + ", saved slot");
      extend_in_pieces(*runtime, 1, random_tokens(subject, random, 70), random, longest);
      for (const int slot : {2, 1}) {
        runtime->restore(slot, chain);
        EXPECT_EQ(runtime->length(slot), static_cast<int64_t>(tokens.size()));
        expect_same(expected, future_bits(*runtime, slot, block), what + ", restored");
      }
      // A part of the chain is the sequence up to there.
      const std::size_t links = 1 + random() % chain.size();
      runtime->restore(1, std::span(chain).first(links));
      extend_in_pieces(*runtime, 1,
                       std::span(tokens).subspan(static_cast<std::size_t>(chain[links - 1].length)),
                       random, longest);
      expect_same(expected, future_bits(*runtime, 1, block), what + ", continued");
      for (int slot = 0; slot < 3; ++slot) runtime->reset(slot);
    }
  }
}

inline void snapshots_after_a_rewind(const Subject& subject) {
  std::mt19937 random(15);
  for (const auto& [name, options] : cache_variants(subject)) {
    const auto runtime = make(subject, options);
    if (!runtime->has_snapshots()) GTEST_SKIP() << "this runtime has no snapshots";
    const Tokens prompt = random_tokens(subject, random, 13);
    const Tokens block = random_tokens(subject, random, kMaxRewind);
    const Tokens after = random_tokens(subject, random, 4);
    for (const int m : {0, 1, 4, kMaxRewind}) {
      runtime->reset(0);
      extend_all(*runtime, 0, prompt);
      extend_all(*runtime, 0, block);
      if (m < 4) draft_bits(*runtime, 0, 4, 3);
      runtime->rewind(0, 13 + m);
      const Snapshot snapshot = runtime->save(0, 0);
      const Bits expected = future_bits(*runtime, 0, after);
      runtime->restore(1, {&snapshot, 1});
      expect_error([&] { runtime->rewind(1, 12 + m); }, "rewind behind a snapshot");
      // Rewinds after it reach back to it and no further.
      extend_all(*runtime, 1, after);
      runtime->rewind(1, 13 + m);
      expect_same(expected, future_bits(*runtime, 1, after), fmt::format("{}, m = {}", name, m));
    }
  }
}

// Bytes follow from lengths alone; a chain shares its prefix; misuse changes nothing.
inline void snapshots_have_rules(const Subject& subject) {
  std::mt19937 random(16);
  Options options = small_options(subject);
  options.max_model_len = 200;
  const auto runtime = make(subject, options);
  const Tokens tokens = random_tokens(subject, random, 64);
  const Tokens after = random_tokens(subject, random, 3);
  extend_all(*runtime, 0, tokens);
  if (!runtime->has_snapshots()) {
    expect_error([&] { runtime->save(0, 0); }, "no snapshots");
    return;
  }
  const SnapshotBytes short_bytes = runtime->snapshot_bytes(0, 64);
  const Snapshot first = runtime->save(0, 0);
  extend_all(*runtime, 0, tokens);
  extend_all(*runtime, 0, tokens);
  EXPECT_EQ(runtime->snapshot_bytes(0, 64).caches, short_bytes.caches);
  EXPECT_EQ(runtime->snapshot_bytes(0, 192).state, short_bytes.state);
  EXPECT_GT(runtime->snapshot_bytes(0, 192).caches, runtime->snapshot_bytes(128, 192).caches);
  const Snapshot second = runtime->save(0, 64);

  expect_error([&] { runtime->save(0, 192); }, "save of no tokens");
  expect_error([&] { runtime->save(0, -1); }, "save with a negative parent");
  expect_error([&] { runtime->save(1, 0); }, "save of an empty slot");
  expect_error([&] { runtime->save(3, 0); }, "save of no slot");
  const auto refused = [&](std::vector<Snapshot> chain, const char* what) {
    expect_error([&] { runtime->restore(0, chain); }, what);
  };
  Snapshot no_state = first;
  no_state.state = nullptr;
  Snapshot no_caches = first;
  no_caches.caches = nullptr;
  refused({}, "empty chain");
  refused({second}, "chain without beginning");
  refused({first, first}, "chain that does not continue");
  refused({no_state}, "no state at the end");
  refused({no_caches, second}, "no caches");
  expect_error([&] { runtime->restore(3, {&first, 1}); }, "restore into no slot");
  Options small = small_options(subject);
  const auto shorter = make(subject, small);
  const std::vector<Snapshot> both = {no_state, second};
  expect_error([&] { shorter->restore(0, both); }, "longer than max_model_len");

  EXPECT_EQ(runtime->length(0), 192);
  runtime->restore(1, both);
  expect_same(extend_all(*runtime, 0, after), extend_all(*runtime, 1, after), "after the errors");
}

// Slots start out full of NaN, and again after each reset: nothing changes.
inline void nothing_stale_is_read(const Subject& subject) {
  std::mt19937 random(17);
  for (auto& [name, options] : cache_variants(subject)) {
    const auto clean = make(subject, options);
    options.poison_free_slots = true;
    const auto poisoned = make(subject, options);
    for (int trial = 0; trial < 2; ++trial) {
      const Tokens tokens = random_tokens(subject, random, 1 + random() % 80);
      const Tokens block = random_tokens(subject, random, kMaxRewind);
      Bits bits[2];
      for (const auto* runtime : {&clean, &poisoned}) {
        (*runtime)->reset(trial % 3);
        std::mt19937 pieces(static_cast<uint32_t>(trial));  // the same for both
        extend_in_pieces(**runtime, trial % 3, tokens, pieces);
        bits[runtime == &poisoned ? 1 : 0] = future_bits(**runtime, trial % 3, block);
      }
      expect_same(bits[0], bits[1], name);
    }
  }
}

inline std::vector<Check> conformance_checks() {
  return {{"SplitInvariance", split_invariance},
          {"BatchInvariance", batch_invariance},
          {"LogitsOfLastRows", logits_of_last_rows},
          {"RewindAtEveryLength", rewind_at_every_length},
          {"RewindAgain", rewind_again},
          {"SlotsAreReusable", slots_are_reusable},
          {"DraftingChangesNothing", drafting_changes_nothing},
          {"DraftsAreGreedyAndNested", drafts_are_greedy_and_nested},
          {"DraftsKeepToTheirVocabulary", drafts_keep_to_their_vocabulary},
          {"CacheTypesTakeEffect", cache_types_take_effect},
          {"WholeContextIsUsable", whole_context_is_usable},
          {"MisuseIsRefused", misuse_is_refused},
          {"ObserverSeesTheStream", observer_sees_the_stream},
          {"SnapshotsContinueTheSame", snapshots_continue_the_same},
          {"SnapshotsAfterARewind", snapshots_after_a_rewind},
          {"SnapshotsHaveRules", snapshots_have_rules},
          {"NothingStaleIsRead", nothing_stale_is_read}};
}

}  // namespace levin::runtime::conformance
