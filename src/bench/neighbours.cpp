#include "bench/neighbours.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/thread_team.h"

namespace levin::bench {
namespace {

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

double own_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Neighbours neighbours_in(double core_seconds, const CoreSeconds& work, double own) {
  if (core_seconds <= 0) return {};
  return {.others = std::clamp((work.busy - own) / core_seconds, 0.0, 1.0),
          .host = std::clamp(work.stolen / core_seconds, 0.0, 1.0)};
}

std::string to_text(const Neighbours& neighbours) {
  return fmt::format("other processes took {:.0f} % of the cores, the host {:.0f} %",
                     neighbours.others * 100, neighbours.host * 100);
}

std::string to_warning(const Neighbours& neighbours) {
  if (!neighbours.noticeable()) return {};
  return fmt::format("THE MACHINE WAS BUSY: {}.\n{}\n", to_text(neighbours), kDoNotTrust);
}

nlohmann::ordered_json to_json(const Neighbours& neighbours) {
  return {{"noticeable", neighbours.noticeable()},
          {"other_processes_share", neighbours.others},
          {"host_share", neighbours.host}};
}

bool Disturbance::noticeable() const {
  return neighbours.noticeable() || noise > kTolerableNoise;
}

std::string to_text(const Disturbance& disturbance) {
  if (!disturbance.noticeable()) return {};
  std::string text = "THE MACHINE WAS BUSY: ";
  if (disturbance.neighbours.noticeable()) text += to_text(disturbance.neighbours) + "; ";
  return text + fmt::format("the same work took up to {:.1f} times as long in another round.",
                            disturbance.noise);
}

nlohmann::ordered_json to_json(const Disturbance& disturbance) {
  nlohmann::ordered_json json = to_json(disturbance.neighbours);
  json["noticeable"] = disturbance.noticeable();
  json["slowest_over_fastest"] = disturbance.noise;
  return json;
}

NeighbourWatch::NeighbourWatch()
    : cores_(usable_cores()), all_(seconds_of(cores_)), own_(own_cpu_seconds()) {}

Neighbours NeighbourWatch::so_far() const {
  const double elapsed = std::chrono::duration<double>(Clock::now() - begin_).count();
  const CoreSeconds now = seconds_of(cores_);
  return neighbours_in(elapsed * static_cast<double>(cores_.size()),
                       {.busy = now.busy - all_.busy, .stolen = now.stolen - all_.stolen},
                       own_cpu_seconds() - own_);
}

}  // namespace levin::bench
