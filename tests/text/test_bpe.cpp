#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "text/bpe.h"

namespace levin::text {
namespace {

using Ids = std::vector<int32_t>;

struct Merges {
  std::map<std::pair<int32_t, int32_t>, std::pair<int, int32_t>> table;  // pair -> rank, result
  Bpe bpe;
};

std::array<int32_t, 256> identity_bytes() {
  std::array<int32_t, 256> ids{};
  for (std::size_t i = 0; i < 256; ++i) ids[i] = static_cast<int32_t>(i);
  return ids;
}

// Random merges over an alphabet of three letters, so that they overlap in every way; `shuffled`:
// some of them come before those that make their parts.
Merges random_merges(std::mt19937_64& random, bool shuffled) {
  struct Join {
    int32_t left, right, result;
  };
  std::vector<Join> joins;
  std::vector<int32_t> tokens = {'a', 'b', 'c'};
  for (int32_t result = 256; result < 296; ++result) {
    joins.push_back({tokens[random() % tokens.size()], tokens[random() % tokens.size()], result});
    tokens.push_back(result);
  }
  if (shuffled) std::shuffle(joins.begin(), joins.end(), random);
  Merges merges{{}, Bpe(identity_bytes(), MergeTable(0))};
  MergeTable table(64);
  for (const Join& join : joins) {
    if (!table.add(join.left, join.right, join.result)) continue;
    const int rank = static_cast<int>(merges.table.size());
    merges.table[{join.left, join.right}] = {rank, join.result};
  }
  merges.bpe = Bpe(identity_bytes(), std::move(table));
  return merges;
}

// The definition: join the leftmost pair of lowest rank, again and again.
Ids encode_naively(const Merges& merges, const std::string& word) {
  Ids ids(word.begin(), word.end());
  for (;;) {
    int best_rank = -1;
    std::size_t best = 0;
    int32_t result = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto it = merges.table.find({ids[i], ids[i + 1]});
      if (it == merges.table.end()) continue;
      if (best_rank >= 0 && it->second.first >= best_rank) continue;
      best_rank = it->second.first;
      best = i;
      result = it->second.second;
    }
    if (best_rank < 0) return ids;
    ids[best] = result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// Short words and long ones, which take different ways.
TEST(Bpe, EqualsItsDefinition) {
  std::mt19937_64 random(5);
  Bpe::Workspace workspace;
  for (int round = 0; round < 200; ++round) {
    const Merges merges = random_merges(random, round % 2 == 1);
    for (int i = 0; i < 20; ++i) {
      std::string word;
      for (std::size_t n = random() % (i < 10 ? 40 : 200); n > 0; --n) word += "abc"[random() % 3];
      Ids ids;
      merges.bpe.encode(word, workspace, ids);
      ASSERT_EQ(ids, encode_naively(merges, word)) << word;
    }
  }
}

TEST(Bpe, IsEndedByItsInterrupt) {
  std::mt19937_64 random(6);
  const Merges merges = random_merges(random, false);
  Bpe::Workspace workspace;
  Ids ids;
  const std::string word(1000, 'a');
  EXPECT_THROW(merges.bpe.encode(word + "abc", workspace, ids, [] { throw 1; }), int);
  // What was left behind does not show.
  ids.clear();
  merges.bpe.encode(word, workspace, ids);
  EXPECT_EQ(ids, encode_naively(merges, word));
}

TEST(Bpe, AppendsToWhatIsThere) {
  MergeTable table(1);
  EXPECT_TRUE(table.add('a', 'b', 300));
  EXPECT_FALSE(table.add('a', 'b', 301));
  Bpe::Workspace workspace;
  Ids ids = {7};
  Bpe(identity_bytes(), std::move(table)).encode("xab", workspace, ids);
  EXPECT_EQ(ids, (Ids{7, 'x', 300}));
}

}  // namespace
}  // namespace levin::text
