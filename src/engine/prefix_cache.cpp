#include "engine/prefix_cache.h"

#include <algorithm>

namespace levin::engine {
namespace {

constexpr uint64_t kHashStart = 0x9E3779B97F4A7C15ULL;

// Hashes only find candidates: their tokens are compared.
uint64_t hash_on(uint64_t hash, int32_t token) {
  hash = (hash ^ static_cast<uint32_t>(token)) * 0xD6E8FEB86659FD93ULL;
  return hash ^ hash >> 32;
}

uint64_t hash_of(std::span<const int32_t> tokens) {
  uint64_t hash = kHashStart;
  for (const int32_t token : tokens) hash = hash_on(hash, token);
  return hash;
}

int64_t total(const runtime::SnapshotBytes& bytes) {
  return bytes.caches + bytes.state;
}

}  // namespace

PrefixCache::PrefixCache(runtime::Runtime& runtime, int64_t budget_bytes)
    : runtime_(runtime), budget_(budget_bytes) {}

bool PrefixCache::holds(Place node, std::span<const int32_t> tokens) const {
  std::optional<Place> at = node;
  while (at) {
    const auto part =
        tokens.subspan(static_cast<std::size_t>((*at)->snapshot.parent), (*at)->tokens.size());
    if (!std::equal(part.begin(), part.end(), (*at)->tokens.begin())) return false;
    at = (*at)->parent;
  }
  return true;
}

std::optional<PrefixCache::Place> PrefixCache::find(std::span<const int32_t> tokens,
                                                    int64_t longest, bool with_state) {
  std::vector<Place> candidates;
  uint64_t hash = kHashStart;
  int64_t hashed = 0;
  for (const auto& [length, count] : lengths_) {
    if (length > longest) break;
    for (; hashed < length; ++hashed) {
      hash = hash_on(hash, tokens[static_cast<std::size_t>(hashed)]);
    }
    const auto found = by_hash_.find(hash);
    if (found != by_hash_.end()) candidates.push_back(found->second);
  }
  for (auto candidate = candidates.rbegin(); candidate != candidates.rend(); ++candidate) {
    const Place node = *candidate;
    if (with_state && !node->snapshot.state) continue;
    if (node->snapshot.length <= longest && holds(node, tokens)) return node;
  }
  return std::nullopt;
}

std::vector<PrefixCache::Place> PrefixCache::chain_of(std::optional<Place> node) const {
  std::vector<Place> chain;
  for (; node; node = (*node)->parent) chain.push_back(*node);
  std::reverse(chain.begin(), chain.end());
  return chain;
}

void PrefixCache::touch(std::optional<Place> node) {
  for (; node; node = (*node)->parent) nodes_.splice(nodes_.begin(), nodes_, *node);
}

int64_t PrefixCache::restore(int slot, std::span<const int32_t> tokens, int64_t longest) {
  ++stats_.queries;
  stats_.query_tokens += static_cast<int64_t>(tokens.size());
  const auto node = find(tokens, longest, true);
  if (!node) {
    runtime_.reset(slot);
    return 0;
  }
  touch(node);
  std::vector<runtime::Snapshot> chain;
  for (const Place place : chain_of(node)) chain.push_back(place->snapshot);
  runtime_.restore(slot, chain);
  ++stats_.hits;
  stats_.hit_tokens += (*node)->snapshot.length;
  return (*node)->snapshot.length;
}

bool PrefixCache::save(int slot, std::span<const int32_t> tokens) {
  const uint64_t hash = hash_of(tokens);
  const auto found = by_hash_.find(hash);
  bool saved = false;
  if (found == by_hash_.end()) {
    saved = add(slot, tokens, hash);
  } else if (found->second->snapshot.length == static_cast<int64_t>(tokens.size()) &&
             holds(found->second, tokens)) {
    saved = add_state(slot, found->second);
  }
  if (!saved) ++stats_.refused;
  return saved;
}

bool PrefixCache::add(int slot, std::span<const int32_t> tokens, uint64_t hash) {
  const auto length = static_cast<int64_t>(tokens.size());
  const auto parent = find(tokens, length - 1, false);
  const int64_t begin = parent ? (*parent)->snapshot.length : 0;
  Node node;
  node.bytes = runtime_.snapshot_bytes(begin, length);
  if (!make_room(total(node.bytes), parent, length)) return false;
  node.hash = hash;
  node.tokens.assign(tokens.begin() + begin, tokens.end());
  node.snapshot = runtime_.save(slot, begin);
  node.parent = parent;
  if (parent) ++(*parent)->children;
  stats_.bytes += total(node.bytes);
  ++stats_.snapshots;
  ++stats_.saved;
  nodes_.push_front(std::move(node));
  by_hash_[hash] = nodes_.begin();
  ++lengths_[length];
  touch(nodes_.begin());
  return true;
}

// A node that is there, perhaps without its state.
bool PrefixCache::add_state(int slot, Place node) {
  if (!node->snapshot.state) {
    const int64_t begin = node->snapshot.parent;
    const int64_t bytes = runtime_.snapshot_bytes(begin, node->snapshot.length).state;
    if (!make_room(bytes, node, node->snapshot.length)) return false;
    node->snapshot.state = runtime_.save(slot, begin).state;
    node->bytes.state = bytes;
    stats_.bytes += bytes;
    ++stats_.saved;
  }
  touch(node);
  return true;
}

// Room for `bytes` more, for a state at length `end` behind `parent`, whose chain stays.
bool PrefixCache::make_room(int64_t bytes, std::optional<Place> parent, int64_t end) {
  const std::vector<Place> chain = chain_of(parent);
  int64_t least = bytes;
  int64_t chain_bytes = bytes;
  for (const Place place : chain) {
    least += place->bytes.caches;
    chain_bytes += total(place->bytes);
  }
  if (least > budget_) return false;
  touch(parent);
  if (parent) ++(*parent)->children;  // so that it is not dropped with its last child
  while (stats_.bytes + bytes > budget_) {
    const bool alone = nodes_.size() == chain.size();
    const int64_t before = stats_.bytes;
    if ((alone || 2 * chain_bytes > budget_) && thin(chain, end)) {
      chain_bytes -= before - stats_.bytes;
    } else {
      drop(std::prev(nodes_.end()));
    }
  }
  if (parent) --(*parent)->children;
  return true;
}

// Gives up the state of the node in the chain that is closest to its neighbours that have one; of
// equal ones the first. The next state after them is going to be at `end`.
bool PrefixCache::thin(const std::vector<Place>& chain, int64_t end) {
  std::vector<Place> full;
  for (const Place place : chain) {
    if (place->snapshot.state) full.push_back(place);
  }
  if (full.empty()) return false;
  std::size_t closest = 0;
  int64_t least = 0;
  for (std::size_t i = 0; i < full.size(); ++i) {
    const int64_t before = i == 0 ? 0 : full[i - 1]->snapshot.length;
    const int64_t after = i + 1 == full.size() ? end : full[i + 1]->snapshot.length;
    if (i > 0 && after - before >= least) continue;
    closest = i;
    least = after - before;
  }
  Node& node = *full[closest];
  stats_.bytes -= node.bytes.state;
  node.bytes.state = 0;
  node.snapshot.state = nullptr;
  ++stats_.thinned;
  return true;
}

// A leaf, and parents that were kept for it alone.
void PrefixCache::drop(Place node) {
  const auto parent = node->parent;
  stats_.bytes -= total(node->bytes);
  --stats_.snapshots;
  ++stats_.evicted;
  const auto length = lengths_.find(node->snapshot.length);
  if (--length->second == 0) lengths_.erase(length);
  by_hash_.erase(node->hash);
  nodes_.erase(node);
  if (!parent) return;
  --(*parent)->children;
  if ((*parent)->children == 0 && !(*parent)->snapshot.state) drop(*parent);
}

std::vector<int64_t> snapshot_lengths(int64_t prompt_tokens, int64_t cached,
                                      std::span<const int64_t> turn_ends,
                                      const SnapshotSpacing& spacing) {
  const auto [stride, gap, alignment] = spacing;
  const int64_t end = (prompt_tokens - 1) / alignment * alignment;
  if (end <= cached) return {};
  std::vector<int64_t> wanted;
  for (const int64_t length : turn_ends) {
    if (end - length >= gap / 4) wanted.push_back(length / alignment * alignment);
  }
  for (int64_t length = stride; stride > 0 && length <= end - gap; length += stride) {
    wanted.push_back(length / alignment * alignment);
  }
  std::sort(wanted.begin(), wanted.end());
  std::vector<int64_t> lengths;
  int64_t last = cached;
  for (const int64_t length : wanted) {
    if (length - last < std::max<int64_t>(gap, 1) || length >= end) continue;
    lengths.push_back(length);
    last = length;
  }
  lengths.push_back(end);
  return lengths;
}

}  // namespace levin::engine
