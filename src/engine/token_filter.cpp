#include "engine/token_filter.h"

#include <algorithm>
#include <utility>

namespace levin::engine {
namespace {

class AllowedTokens : public TokenFilter {
 public:
  explicit AllowedTokens(std::vector<int32_t> tokens) : tokens_(std::move(tokens)) {}

  void allowed(std::span<uint64_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0);
    for (const int32_t token : tokens_) {
      mask[static_cast<std::size_t>(token) / 64] |= uint64_t{1} << (token % 64);
    }
  }
  void accept(int32_t /*token*/) override {}

 private:
  std::vector<int32_t> tokens_;
};

}  // namespace

std::shared_ptr<TokenFilter> make_allowed_tokens(std::vector<int32_t> tokens) {
  return std::make_shared<AllowedTokens>(std::move(tokens));
}

}  // namespace levin::engine
