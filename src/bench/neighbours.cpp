#include "bench/neighbours.h"

#include <fmt/format.h>
#include <sched.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace levin::bench {
namespace {

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

double own_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

CoreSeconds seconds_of(const std::vector<int>& cores) {
  std::ifstream stat("/proc/stat");
  return core_seconds(stat, cores, static_cast<double>(::sysconf(_SC_CLK_TCK)));
}

}  // namespace

CoreSeconds core_seconds(std::istream& stat, const std::vector<int>& cores,
                         double ticks_per_second) {
  CoreSeconds sum;
  for (std::string line; std::getline(stat, line);) {
    std::istringstream words(line);
    std::string name;
    double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0, steal = 0;
    if (!(words >> name >> user >> nice >> system >> idle >> wait >> irq >> soft >> steal))
      continue;
    const bool wanted = std::any_of(cores.begin(), cores.end(),
                                    [&](int core) { return name == fmt::format("cpu{}", core); });
    if (!wanted) continue;
    sum.busy += (user + nice + system + irq + soft) / ticks_per_second;
    sum.stolen += steal / ticks_per_second;
  }
  return sum;
}

std::string to_text(const Neighbours& neighbours) {
  return fmt::format("other processes took {:.0f} % of the cores, the host {:.0f} %",
                     neighbours.others * 100, neighbours.host * 100);
}

NeighbourWatch::NeighbourWatch()
    : cores_(usable_cores()), all_(seconds_of(cores_)), own_(own_seconds()) {}

Neighbours NeighbourWatch::so_far() const {
  const double elapsed = std::chrono::duration<double>(Clock::now() - begin_).count();
  const double time = elapsed * static_cast<double>(cores_.size());
  if (time <= 0) return {};
  const CoreSeconds now = seconds_of(cores_);
  const double others = now.busy - all_.busy - (own_seconds() - own_);
  return {.others = std::clamp(others / time, 0.0, 1.0),
          .host = std::clamp((now.stolen - all_.stolen) / time, 0.0, 1.0)};
}

void NeighbourWatch::warn(const char* what) const {
  const Neighbours neighbours = so_far();
  if (!neighbours.noticeable()) return;
  spdlog::warn("{} is of a busy machine: {}", what, to_text(neighbours));
}

}  // namespace levin::bench
