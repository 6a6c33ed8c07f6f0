// A way out of work that may take long.
#pragma once

#include <functional>

namespace levin::text {

// Called now and then while the work goes on; what it throws ends it. Null: nothing is called.
using Interrupt = std::function<void()>;

}  // namespace levin::text
