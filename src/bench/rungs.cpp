#include "bench/rungs.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "quantize/recipe.h"

namespace levin::bench {
namespace {

constexpr int kDrafts = 3;
// The word of --rungs for every shipped recipe.
constexpr const char* kRecipes = "recipes";

const Rung* find(const std::vector<Rung>& rungs, const std::string& id) {
  const auto found =
      std::find_if(rungs.begin(), rungs.end(), [&](const Rung& rung) { return rung.id == id; });
  return found == rungs.end() ? nullptr : &*found;
}

[[noreturn]] void fail(const std::string& what, const std::string& found,
                       const std::string& expected) {
  throw Error({.what = what, .where = "--rungs", .expected = expected, .found = found, .hint = {}});
}

Rung rung_of(const std::vector<Rung>& all, const std::string& word) {
  if (const Rung* rung = find(all, word)) return *rung;
  const std::vector<std::string> shipped = quantize::shipped_recipes();
  const bool is_file = std::find(shipped.begin(), shipped.end(), word) == shipped.end();
  if (is_file && word.find_first_of("./") == std::string::npos) {
    std::vector<std::string> numbers;
    for (const Rung& rung : all) {
      if (rung.id.size() == 1) numbers.push_back(rung.id);
    }
    fail("no such rung", word,
         fmt::format("{}; a recipe, of {} or a YAML file; or {}", fmt::join(numbers, ", "),
                     fmt::join(shipped, ", "), kRecipes));
  }
  const std::string title = std::filesystem::path(word).stem().string();
  const bool taken = find(all, title) != nullptr || title == all.front().title ||
                     std::find(shipped.begin(), shipped.end(), title) != shipped.end();
  // Names of rungs name their checkpoints and results.
  if (is_file && (taken || title.empty() || title.starts_with("."))) {
    fail("a recipe file cannot have the name of another rung", word,
         "a file name that no rung and no shipped recipe has");
  }
  return {.id = title,
          .title = title,
          .recipe = word,
          .k = 0,
          .device_rounds = false,
          .what = "A recipe put beside the ladder.",
          .skipped = {}};
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> words;
  std::size_t begin = 0;
  while (begin <= list.size()) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    words.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

}  // namespace

std::string label(const Rung& rung) {
  return rung.id == rung.title ? rung.title : rung.id + " " + rung.title;
}

std::vector<Rung> all_rungs(bool has_mtp, bool device_rounds) {
  const std::string no_mtp = has_mtp ? "" : "The checkpoint has no MTP head to draft with.";
  const auto rung = [](std::string id, std::string title, std::string recipe, int k,
                       std::string what, std::string skipped) {
    Rung made;
    made.id = std::move(id);
    made.title = std::move(title);
    made.recipe = std::move(recipe);
    made.k = k;
    made.what = std::move(what);
    made.skipped = std::move(skipped);
    return made;
  };
  const std::string no_device =
      "Nothing to gain on a CPU: the draft passes of rung 6 already run inside one call, with "
      "no host or kernel launch between them. This rung is for GPUs.";
  std::vector<Rung> rungs = {
      rung("0", "bf16", "", 0, "The baseline: the checkpoint as it is.", ""),
      rung("1", "w4a16", "w4a16", 0, "Every linear but lm_head in NVFP4, weights only.", ""),
      rung("2", "w4a4-naive", "w4a4-naive", 0,
           "Every linear in NVFP4, weights and activations: what not to do.", ""),
      rung("3", "w4a4", "w4a4", 0,
           "Routed experts in NVFP4 W4A4, Mamba and shared experts in FP8, the rest in BF16.", ""),
      rung("4", "w4a4-lmhead", "w4a4-lmhead", 0, "Rung 3 with lm_head in NVFP4, weights only.", ""),
      rung("5", fmt::format("+ MTP k={}", kDrafts), "w4a4-lmhead", kDrafts,
           "Rung 4 with speculation: the MTP head drafts in BF16.", no_mtp),
      rung("6", "+ NVFP4 drafter", "w4a4-full", kDrafts,
           "Rung 5 with the experts of the MTP head in NVFP4.", no_mtp),
      rung("7", "+ fused drafts", "w4a4-full", kDrafts,
           "Rung 6 with the whole round in one launch: drafts, verification, acceptance.",
           has_mtp && !device_rounds ? no_device : no_mtp),
      rung("int4-g64", "int4-g64", "int4-g64", 0,
           "Beside the ladder: INT4 with groups of 64, made without data.", ""),
      rung("nvfp4-aggressive-mse", "nvfp4-aggressive-mse", "nvfp4-aggressive-mse", 0,
           "Beside the ladder: NVFP4 as widely as the scales' mean squared error allows.", ""),
      rung("tiny-smallest-pass", "tiny-smallest-pass", "tiny-smallest-pass", 0,
           "Beside the ladder: the fewest bytes per token found that pass the gate on the bundled "
           "model.",
           ""),
  };
  for (Rung& one : rungs) one.device_rounds = one.id == "7";
  return rungs;
}

std::vector<Rung> choose_rungs(const std::vector<Rung>& all, const std::string& list) {
  if (list.empty()) return all;
  std::vector<Rung> chosen = {all.front()};
  bool named_first = false;
  for (const std::string& word : split(list)) {
    if (word.empty()) fail("empty name in the list of rungs", list, "names between commas");
    if (word == kRecipes) {
      for (const std::string& recipe : quantize::shipped_recipes()) {
        if (find(chosen, recipe) == nullptr) chosen.push_back(rung_of(all, recipe));
      }
      continue;
    }
    Rung rung = rung_of(all, word);
    if (rung.id == all.front().id && !named_first) {
      named_first = true;
      continue;
    }
    if (find(chosen, rung.id) != nullptr) fail("rung is named twice", word, {});
    chosen.push_back(std::move(rung));
  }
  return chosen;
}

}  // namespace levin::bench
