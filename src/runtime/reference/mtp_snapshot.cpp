#include <algorithm>
#include <bit>
#include <limits>

#include "runtime/reference/mtp.h"

namespace levin::runtime::reference {
namespace {

// The entry of a sequence's last token is made when the token after it is known, so the snapshot
// that follows has it.
int64_t first_entry(int64_t parent) {
  return std::max<int64_t>(0, parent - 1);
}

}  // namespace

int64_t MtpHead::cache_floats(int64_t parent, int64_t length) const {
  return 2 * (length - 1 - first_entry(parent)) * caches_.front().width();
}

float* MtpHead::save_cache(Context& context, Work& work, int slot, int64_t parent, float* out) {
  const int64_t length = sequences_[static_cast<std::size_t>(slot)].length;
  make_entries(context, work, slot, length - 1, 0);
  return caches_[static_cast<std::size_t>(slot)].copy_to(out, first_entry(parent), length - 1);
}

void MtpHead::save_state(int slot, float* out) const {
  const Sequence& sequence = sequences_[static_cast<std::size_t>(slot)];
  const int64_t last = sequence.length - 1 - sequence.first;
  *out = std::bit_cast<float>(sequence.tokens[static_cast<std::size_t>(last)]);
  std::copy_n(sequence.hidden.row(last, hidden_size_).data(), hidden_size_, out + 1);
}

const float* MtpHead::restore_cache(int slot, int64_t parent, int64_t length, const float* in) {
  return caches_[static_cast<std::size_t>(slot)].copy_from(in, first_entry(parent), length - 1);
}

void MtpHead::restore_state(int slot, int64_t length, const float* in) {
  Sequence& sequence = sequences_[static_cast<std::size_t>(slot)];
  sequence.length = length;
  sequence.entries = length - 1;
  sequence.first = length - 1;
  sequence.tokens[0] = std::bit_cast<int32_t>(*in);
  std::copy_n(in + 1, hidden_size_, sequence.hidden.data());
}

void MtpHead::poison(int slot) {
  Sequence& sequence = sequences_[static_cast<std::size_t>(slot)];
  std::fill(sequence.tokens.begin(), sequence.tokens.end(), -1);
  std::fill_n(sequence.hidden.data(), sequence.hidden.size(),
              std::numeric_limits<float>::quiet_NaN());
  caches_[static_cast<std::size_t>(slot)].poison();
}

}  // namespace levin::runtime::reference
