// Who else used the cores while something was measured. Figures of a busy machine say little, and
// nothing in them shows it.
#pragma once

#include <chrono>
#include <istream>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace levin::bench {

// Seconds since the start of the machine that some cores worked, whoever for, and that a hypervisor
// gave to others.
struct CoreSeconds {
  double busy = 0;
  double stolen = 0;
};

// The sum over `cores` in text like that of /proc/stat, whose unit is 1 / ticks_per_second.
CoreSeconds core_seconds(std::istream& stat, const std::vector<int>& cores,
                         double ticks_per_second);

// Seconds that this process has worked, on any core.
double own_cpu_seconds();

// What follows from a busy machine.
inline constexpr const char* kDoNotTrust = "Do not trust the speeds; run again when it is quiet.";

// Shares of the cores' time.
struct Neighbours {
  double others = 0;  // other processes
  double host = 0;    // taken by the hypervisor
  bool noticeable() const { return others > 0.05 || host > 0.05; }
};
// Of `core_seconds` in all, in which the cores did `work` and this process `own` of it.
Neighbours neighbours_in(double core_seconds, const CoreSeconds& work, double own);
// "other processes took 34 % of the cores, the host 0 %"
std::string to_text(const Neighbours& neighbours);
// "THE MACHINE WAS BUSY: " and that, as a sentence with what it means; empty when not noticeable.
std::string to_warning(const Neighbours& neighbours);
nlohmann::ordered_json to_json(const Neighbours& neighbours);

// When the time of the same work differs by more than this factor, the machine was busy with
// something else, and the figures of speed say little.
inline constexpr double kTolerableNoise = 1.3;

// What says that figures are of a busy machine: who else worked, and by how much the same work
// differed from round to round.
struct Disturbance {
  Neighbours neighbours;
  double noise = 1;  // the longest time of the same work over the shortest
  bool noticeable() const;
};
// One statement, whichever of the two shows it: "THE MACHINE WAS BUSY: other processes took 34 % of
// the cores, the host 0 %; the same work took up to 2.0 times as long in another round." Empty when
// nothing does.
std::string to_text(const Disturbance& disturbance);
nlohmann::ordered_json to_json(const Disturbance& disturbance);

// Watches the cores that this process may run on, from its construction on.
class NeighbourWatch {
 public:
  NeighbourWatch();
  Neighbours so_far() const;

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<int> cores_;
  Clock::time_point begin_ = Clock::now();
  CoreSeconds all_;
  double own_ = 0;  // seconds of this process
};

}  // namespace levin::bench
