// Stands in for libFuzzer where only GCC is at hand: replays every file of a corpus folder, then a
// fixed number of deterministic mutations of them. A crash or sanitizer report fails the test.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

std::vector<Bytes> read_corpus(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

// Flips, overwrites, inserts, deletes, duplicates or splices a few times.
Bytes mutate(const std::vector<Bytes>& corpus, std::mt19937_64& random) {
  auto below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
  Bytes bytes = corpus[below(corpus.size())];
  const std::size_t edits = 1 + below(4);
  for (std::size_t edit = 0; edit < edits; ++edit) {
    const std::size_t at = below(bytes.size() + 1);
    const auto here = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(6)) {
      case 0:
        if (at < bytes.size()) bytes[at] ^= static_cast<uint8_t>(1u << below(8));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<uint8_t>(random());
        break;
      case 2:
        bytes.insert(here, static_cast<uint8_t>("\0\"{}[],:-0919eE\\"[below(16)]));
        break;
      case 3: {
        const std::size_t count = std::min(bytes.size() - at, 1 + below(16));
        bytes.erase(here, here + static_cast<std::ptrdiff_t>(count));
        break;
      }
      case 4: {
        const std::size_t from = below(bytes.size());
        const std::size_t count = std::min(bytes.size() - from, 1 + below(64));
        const Bytes piece(bytes.begin() + static_cast<std::ptrdiff_t>(from),
                          bytes.begin() + static_cast<std::ptrdiff_t>(from + count));
        bytes.insert(here, piece.begin(), piece.end());
        break;
      }
      default: {
        const Bytes& other = corpus[below(corpus.size())];
        const std::size_t from = below(other.size());
        bytes.resize(at);
        bytes.insert(bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
      }
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER MUTATIONS\n", argv[0]);
    return 2;
  }
  const std::vector<Bytes> corpus = read_corpus(argv[1]);
  if (corpus.empty()) {
    std::fprintf(stderr, "no corpus in %s\n", argv[1]);
    return 2;
  }
  for (const Bytes& bytes : corpus) LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  std::mt19937_64 random(20240607);
  const long mutations = std::strtol(argv[2], nullptr, 10);
  for (long i = 0; i < mutations; ++i) {
    const Bytes bytes = mutate(corpus, random);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("%zu inputs and %ld mutations, no failure\n", corpus.size(), mutations);
  return 0;
}
