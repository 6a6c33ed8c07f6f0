// Walks the tree of a template and prints.
#pragma once

#include <string>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace levin::text::jinja {

// The text of the template with `variables` as its context. Throws Failure with the line; never
// takes more work, memory or stack than `budget` allows.
std::string render(const Block& body, const Dict& variables, Budget& budget);

}  // namespace levin::text::jinja
