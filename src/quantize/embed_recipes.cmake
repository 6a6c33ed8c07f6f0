# Compiles recipes/**.yaml into levin_quantize (quantize/shipped.h). Editing, adding or removing a
# recipe re-runs cmake.
set(recipe_root ${PROJECT_SOURCE_DIR}/recipes)
file(GLOB_RECURSE recipe_files CONFIGURE_DEPENDS ${recipe_root}/*.yaml)
list(SORT recipe_files)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${recipe_files})

set(entries "")
foreach(recipe_file ${recipe_files})
  file(RELATIVE_PATH recipe_path ${recipe_root} ${recipe_file})
  string(REGEX REPLACE "\\.yaml$" "" recipe_path ${recipe_path})
  file(READ ${recipe_file} recipe_text)
  string(APPEND entries "    {\"${recipe_path}\", R\"recipe(${recipe_text})recipe\"},\n")
endforeach()
list(LENGTH recipe_files recipe_count)

set(generated ${CMAKE_CURRENT_BINARY_DIR}/shipped_recipes.cpp)
file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT [[
// Generated from recipes/ by src/quantize/embed_recipes.cmake.
#include <array>

#include "quantize/shipped.h"

namespace levin::quantize {
namespace {

constexpr std::array<ShippedFile, @recipe_count@> kFiles = {{
@entries@}};

}  // namespace

std::span<const ShippedFile> shipped_files() { return kFiles; }

}  // namespace levin::quantize
]])
target_sources(levin_quantize PRIVATE ${generated})
