#include <algorithm>
#include <cstring>

#include "runtime/cuda/moe_items.h"
#include "runtime/cuda/stream.cuh"

namespace levin::runtime::cuda {
namespace {

struct Block {
  BlockItems head = {};
  std::vector<Item> items;

  // How much one copy brings depends on the rings: the kernel adds it.
  void add(const PackedMatrix& m, int tile, int part) {
    for (int segment = 0; segment < m.segments.value; ++segment) {
      items.push_back(item_of(m, tile, segment, part, 0));
    }
  }
  void add_shared(const PackedMatrix& m, int begin, int end) {
    for (int tile = begin; tile < end; ++tile) add(m, tile, 0);
    head.shared_items = static_cast<int>(items.size());
  }
};

std::vector<uint8_t> pack(std::vector<Block>& blocks, ItemLists& lists) {
  std::size_t most = 0;
  for (const Block& block : blocks) most = std::max(most, block.items.size());
  lists.bytes = static_cast<int>(sizeof(BlockItems) + most * sizeof(Item));
  std::vector<uint8_t> bytes(blocks.size() * static_cast<std::size_t>(lists.bytes));
  uint8_t* at = bytes.data();
  for (Block& block : blocks) {
    block.head.all_items = static_cast<int>(block.items.size());
    std::memcpy(at, &block.head, sizeof(BlockItems));
    std::memcpy(at + sizeof(BlockItems), block.items.data(), block.items.size() * sizeof(Item));
    at += lists.bytes;
  }
  return bytes;
}

}  // namespace

std::vector<uint8_t> up_items(const PackedMatrix& shared, const PackedMatrix& expert, int chosen,
                              int blocks, ItemLists& lists) {
  const Share share(shared.tiles, blocks);
  const int all = chosen * expert.tiles;
  std::vector<Block> of_blocks(static_cast<std::size_t>(blocks));
  for (int b = 0; b < blocks; ++b) {
    Block& block = of_blocks[static_cast<std::size_t>(b)];
    block.add_shared(shared, share.begin(b), share.begin(b + 1));
    block.head.first_tile = b * all / blocks;
    block.head.tiles = (b + 1) * all / blocks - block.head.first_tile;
    for (int i = 0; i < block.head.tiles; ++i) {
      const int tile = block.head.first_tile + i;
      block.add(expert, tile % expert.tiles, 1 + tile / expert.tiles);
    }
  }
  return pack(of_blocks, lists);
}

std::vector<uint8_t> down_items(const PackedMatrix& shared, const PackedMatrix& expert, int chosen,
                                int blocks, ItemLists& lists) {
  const int tiles = std::max(shared.tiles, expert.tiles);
  const int count = std::min(tiles, blocks);
  const Share share(tiles, count);
  std::vector<Block> of_blocks(static_cast<std::size_t>(count));
  for (int b = 0; b < count; ++b) {
    Block& block = of_blocks[static_cast<std::size_t>(b)];
    const int begin = share.begin(b);
    const int end = share.begin(b + 1);
    if (shared.tiles > 0) block.add_shared(shared, begin, end);
    block.head.first_tile = begin;
    block.head.tiles = end - begin;
    for (int d = 0; d < chosen; ++d) {
      for (int tile = begin; tile < end; ++tile) block.add(expert, tile, 1 + d);
    }
  }
  return pack(of_blocks, lists);
}

}  // namespace levin::runtime::cuda
