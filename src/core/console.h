// Words for whoever watches, on standard error. What cannot be written there is lost and changes
// nothing: results go to standard output.
#pragma once

#include <string_view>

namespace levin {

void tell(std::string_view text);

}  // namespace levin
