// The ladder: what is tried, in which order, and why a rung may not be climbable here.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace levin::bench {

struct Rung {
  std::string id;      // what --rungs takes: "0" .. "7", or the name of a rung beside the ladder
  std::string title;   // "w4a4 + MTP k=3"
  std::string recipe;  // shipped name or path of a recipe; empty: the model as it is
  int k = 0;           // draft tokens per round
  bool device_rounds = false;  // whole rounds by the device; else drafts by calls of the host
  std::string what;            // one sentence for the report
  std::string skipped;         // why it is not climbed here; empty when it is
};

// What to call a rung: number and title of one of the ladder, the title alone of one beside it.
std::string label(const Rung& rung);

// All rungs in order, the ones beside the ladder last. `has_mtp`: the model can draft; without it
// the rungs that speculate say so. `device_rounds`: the runtime has them (runtime/round.h), which
// the last rung needs.
std::vector<Rung> all_rungs(bool has_mtp, bool device_rounds);

// The rungs that a list like "0,2,fp8,my/recipe.yaml" names, in its order; empty: all. A word that
// is no rung is a recipe to put beside the ladder, a shipped one or a file (which has a dot or a
// slash in its name); "recipes" stands for all shipped ones. Rung 0 is always there and first,
// because every other is compared with it. Throws Error with all legal words for one that is none
// of these, for repetitions, and for recipe files named as another rung.
std::vector<Rung> choose_rungs(const std::vector<Rung>& all, const std::string& list);

}  // namespace levin::bench
