// Decimal numbers between bounds.
#pragma once

#include <optional>
#include <string>

#include "text/grammar/automaton.h"

namespace levin::text::grammar {

// A bound that is not negative: digits without zeros in front, and digits behind the point without
// zeros at the end.
struct DecimalBound {
  std::string whole = "0";
  std::string fraction = {};
  bool exclusive = false;
};

struct NumberBounds {
  std::optional<double> minimum;
  std::optional<double> maximum;
  bool minimum_exclusive = false;
  bool maximum_exclusive = false;
};

// Integers have at most this many digits, numbers between bounds this many in all, so that
// different ones are different doubles.
inline constexpr int kMaxIntegerDigits = 18;
inline constexpr int kMaxNumberDigits = 15;

// Bounds are decimals of up to kMaxNumberDigits significant digits and 10^15 in size; whether this
// is one.
bool is_usable_bound(double bound);

// Consumes an integer, or a number without exponent, within the bounds. The state behind it.
State consume_bounded_number(AutomatonBuilder& builder, State from, const NumberBounds& bounds,
                             bool integer);

}  // namespace levin::text::grammar
