# Compiles page.html into levin_serve (serve/web/page.h). Editing the page re-runs cmake.
set(page_file ${PROJECT_SOURCE_DIR}/src/serve/web/page.html)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page_file})
file(READ ${page_file} page_text)
set(generated ${CMAKE_CURRENT_BINARY_DIR}/web_page.cpp)
file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT [[
// Generated from src/serve/web/page.html by src/serve/web/embed_page.cmake.
#include "serve/web/page.h"

namespace levin::serve::web {

std::string_view page() { return R"page(@page_text@)page"; }

}  // namespace levin::serve::web
]])
target_sources(levin_serve PRIVATE ${generated})
