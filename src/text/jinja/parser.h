// Template source -> tree.
#pragma once

#include <string_view>

#include "text/jinja/ast.h"

namespace levin::text::jinja {

// Throws Failure with the line for what is not Jinja, and for what levin does not implement, by its
// name: tags, filters, tests, functions, *arguments.
Block parse(std::string_view source);

}  // namespace levin::text::jinja
