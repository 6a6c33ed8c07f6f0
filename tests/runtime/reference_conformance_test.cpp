// The reference runtime keeps the contract of runtime.h.
#include <filesystem>

#include "conformance.h"

namespace levin::runtime {
namespace {

using conformance::Check;

conformance::Subject subject_of(std::shared_ptr<const model::Model> model,
                                std::vector<KvCacheDType> kv_cache_dtypes) {
  return {.model = std::move(model),
          .make = make_reference_runtime,
          .kv_cache_dtypes = std::move(kv_cache_dtypes),
          .threads = 1};
}

const std::filesystem::path kSource = LEVIN_SOURCE_DIR;

// The bundled model.
conformance::Subject subject() {
  static const auto model = model::load_model(kSource / "models/tiny");
  return subject_of(model, {KvCacheDType::kF32, KvCacheDType::kFp8});
}

// Random weights in the shape of Super: latent experts in groups, in the draft head too.
conformance::Subject super_like() {
  static const auto model =
      model::load_model(kSource / "tests/data/blocks/super_like", model::LoadFormat::kDummy);
  return subject_of(model, {KvCacheDType::kF32, KvCacheDType::kBf16, KvCacheDType::kFp8});
}

class ReferenceConformance : public ::testing::TestWithParam<Check> {};

TEST_P(ReferenceConformance, BundledModel) {
  GetParam().run(subject());
}

TEST_P(ReferenceConformance, SuperLikeModel) {
  GetParam().run(super_like());
}

INSTANTIATE_TEST_SUITE_P(All, ReferenceConformance,
                         ::testing::ValuesIn(conformance::conformance_checks()),
                         conformance::check_name);

// The bits do not depend on the number of threads.
TEST(ReferenceThreads, ChangeNothing) {
  std::mt19937 random(13);
  const conformance::Tokens tokens = conformance::random_tokens(subject(), random, 50);
  conformance::Bits expected;
  for (const int threads : {1, 2, 3, 7}) {
    Options options = conformance::small_options(subject());
    options.threads = threads;
    const auto runtime = conformance::make(subject(), options);
    conformance::Bits bits = conformance::extend_all(*runtime, 0, tokens);
    conformance::append(bits, conformance::draft_bits(*runtime, 0, 1, 3));
    if (threads == 1) expected = bits;
    conformance::expect_same(expected, bits, fmt::format("{} threads", threads));
  }
}

}  // namespace
}  // namespace levin::runtime
