# Compiles the beginnings of the bundled texts into levin_bench (bench/client/bundled_text.h).
# Editing the texts re-runs cmake.
set(bundled_bytes 131072)
foreach(kind prose code)
  set(text_file ${PROJECT_SOURCE_DIR}/evals/tiny/text/${kind}.jsonl)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${text_file})
  file(READ ${text_file} ${kind}_text LIMIT ${bundled_bytes})
endforeach()
set(generated ${CMAKE_CURRENT_BINARY_DIR}/bundled_text.cpp)
file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT [[
// Generated from evals/tiny/text by src/bench/client/embed_text.cmake.
#include "bench/client/bundled_text.h"

namespace levin::bench::client {

std::string_view bundled_prose() { return R"levintext(@prose_text@)levintext"; }
std::string_view bundled_code() { return R"levintext(@code_text@)levintext"; }

}  // namespace levin::bench::client
]])
# Longer than the standard asks of every compiler; these take it.
set_source_files_properties(${generated} PROPERTIES COMPILE_OPTIONS -Wno-overlength-strings)
target_sources(levin_bench PRIVATE ${generated})
