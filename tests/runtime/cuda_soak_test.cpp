// Ten thousand passes of the CUDA runtime, twice: the same bits each time. What would break this is
// a race between blocks or between kernels that overlap.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <vector>

#include "core/philox.h"
#include "cuda_device.h"

namespace levin::runtime {
namespace {

uint64_t hash_of(std::span<const float> values) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    hash = (hash ^ bits) * 0x100000001b3u;
  }
  return hash;
}

// Passes of one to three tokens, of which some are taken back; a draft now and then.
std::vector<uint64_t> soak(Runtime& runtime, int passes) {
  constexpr int kLookEvery = 25;
  constexpr int64_t kLongest = 300;
  const auto vocab = static_cast<uint32_t>(runtime.model().config.vocab_size);
  std::vector<uint64_t> hashes;
  runtime.reset(0);
  for (int pass = 0; pass < passes; ++pass) {
    const auto random = philox(7, static_cast<uint64_t>(pass), 10, 0);
    if (runtime.length(0) > kLongest) runtime.reset(0);
    const std::vector<int32_t> tokens = {static_cast<int32_t>(random[0] % vocab),
                                         static_cast<int32_t>(random[1] % vocab),
                                         static_cast<int32_t>(random[2] % vocab)};
    const std::size_t count = 1 + random[3] % 3;
    const std::vector<Extend> batch = {{.slot = 0, .tokens = std::span(tokens).first(count)}};
    runtime.extend(batch);
    if (pass % kLookEvery == 0) hashes.push_back(hash_of(runtime.logits(0, 0)));
    if (pass % (2 * kLookEvery) == 0) {
      const std::vector<Draft> draft = {{.slot = 0, .next_token = tokens[0], .k = 3}};
      runtime.draft(draft);
      hashes.push_back(hash_of(runtime.draft_logits(0, 2)));
    }
    if (count > 1 && random[3] % 7 == 0) runtime.rewind(0, runtime.length(0) - 1);
  }
  return hashes;
}

TEST(CudaSoak, TenThousandPassesTwice) {
  LEVIN_NEEDS_CUDA();
  const auto model = model::load_model(std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny");
  const auto runtime = make_cuda_runtime(model, {.max_model_len = 512, .max_extend_tokens = 8});
  const std::vector<uint64_t> first = soak(*runtime, 10000);
  EXPECT_EQ(first, soak(*runtime, 10000));
}

}  // namespace
}  // namespace levin::runtime
