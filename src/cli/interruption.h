// What becomes of a command that is told to end: SIGINT, SIGTERM and SIGHUP.
#pragma once

#include <string>

namespace levin::cli {

// From now on each of these signals ends the process at once, with a line on standard error and
// exit code 128 + its number. One that is ignored, as nohup wants it, stays ignored. Everything
// that is worth keeping is on disk already.
void report_interruptions();

// What was kept and how to go on, for that line: "finished shards are kept in OUT".
void when_interrupted(std::string sentence);

}  // namespace levin::cli
