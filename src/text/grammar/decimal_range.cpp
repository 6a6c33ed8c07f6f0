#include "text/grammar/decimal_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <tuple>

namespace levin::text::grammar {
namespace {

constexpr double kLargestBound = 1e15;

std::string to_decimal(double magnitude) {
  return fmt::format("{:.{}f}", magnitude, kMaxNumberDigits);
}

DecimalBound to_bound(double value, bool exclusive) {
  // The shortest fixed form that is the same number again.
  const double magnitude = std::abs(value);
  std::string text = to_decimal(magnitude);
  for (int digits = 0; digits <= kMaxNumberDigits; ++digits) {
    const std::string shorter = fmt::format("{:.{}f}", magnitude, digits);
    if (std::strtod(shorter.c_str(), nullptr) != magnitude) continue;
    text = shorter;
    break;
  }
  const std::size_t point = std::min(text.find('.'), text.size());
  DecimalBound bound = {text.substr(0, point), {}, exclusive};
  if (point < text.size()) bound.fraction = text.substr(point + 1);
  while (bound.fraction.ends_with('0')) bound.fraction.pop_back();
  return bound;
}

// Consumes numbers from `low` to `high` digit by digit. As long as the digits equal those of a
// bound, the number is tight to it.
class DigitWalk {
 public:
  DigitWalk(AutomatonBuilder& builder, State end, DecimalBound low,
            std::optional<DecimalBound> high, bool integer)
      : builder_(builder),
        end_(end),
        low_(std::move(low)),
        high_(std::move(high)),
        integer_(integer) {}

  void consume_all(State from) {
    const int most = integer_ ? kMaxIntegerDigits : kMaxNumberDigits;
    const int shortest = size_of(low_.whole);
    const int longest = high_ ? size_of(high_->whole) : std::max(most, shortest);
    for (length_ = shortest; length_ <= longest; ++length_) {
      states_.clear();
      const bool low = length_ == shortest;
      const bool high = high_ && length_ == longest;
      consume_digits(from, {.fraction = false, .position = 0, .low = low, .high = high});
    }
  }

 private:
  struct Place {
    bool fraction;  // behind the point
    int position;
    bool low;   // tight to the lower bound
    bool high;  // and to the upper
    auto key() const { return std::tuple(fraction, position, low, high); }
  };

  static int size_of(const std::string& text) { return static_cast<int>(text.size()); }
  static int digit_at(const std::string& digits, int position) {
    return position < size_of(digits) ? digits[static_cast<std::size_t>(position)] - '0' : 0;
  }

  void consume_digits(State from, const Place& place) {
    const bool first = !place.fraction && place.position == 0;
    const int low_digit = digit_at(place.fraction ? low_.fraction : low_.whole, place.position);
    const int high_digit =
        high_ ? digit_at(place.fraction ? high_->fraction : high_->whole, place.position) : 9;
    const int least = std::max(place.low ? low_digit : 0, first && length_ > 1 ? 1 : 0);
    const int most = place.high ? high_digit : 9;
    for (int digit = least; digit <= most; ++digit) {
      Place next = place;
      ++next.position;
      next.low = place.low && digit == low_digit;
      next.high = place.high && digit == high_digit;
      const auto symbol = static_cast<Symbol>('0' + digit);
      builder_.consume(from, symbol, symbol, state_at(next));
    }
  }

  // The state where `place` digits have been consumed, with all that leads on from there.
  State state_at(const Place& place) {
    const auto found = states_.find(place.key());
    if (found != states_.end()) return found->second;
    const State state = builder_.add_state();
    states_.emplace(place.key(), state);
    const bool whole_done = place.fraction || place.position == length_;
    if (!whole_done) {
      consume_digits(state, place);
      return state;
    }
    if (within_bounds(place)) builder_.jump(state, end_);
    if (integer_) return state;
    if (!place.fraction) {
      Place behind_point = place;
      behind_point.fraction = true;
      behind_point.position = 0;
      if (length_ < kMaxNumberDigits) {
        consume_digits(builder_.literal(state, "."), behind_point);
      }
    } else if (length_ + place.position < kMaxNumberDigits) {
      consume_digits(state, place);
    }
    return state;
  }

  // Whether the number consumed so far may end here.
  bool within_bounds(const Place& place) const {
    const int digits = place.fraction ? place.position : 0;
    if (place.low) {
      if (digits < size_of(low_.fraction)) return false;  // still below it
      if (low_.exclusive) return false;
    }
    const bool equals_high = place.high && digits >= size_of(high_->fraction);
    return !(equals_high && high_->exclusive);
  }

  AutomatonBuilder& builder_;
  State end_;
  DecimalBound low_;
  std::optional<DecimalBound> high_;
  bool integer_;
  int length_ = 0;  // digits before the point
  std::map<std::tuple<bool, int, bool, bool>, State> states_;
};

}  // namespace

bool is_usable_bound(double bound) {
  if (!std::isfinite(bound) || std::abs(bound) > kLargestBound) return false;
  const std::string decimal = to_decimal(std::abs(bound));
  if (std::strtod(decimal.c_str(), nullptr) != std::abs(bound)) return false;
  const DecimalBound parts = to_bound(bound, false);
  return parts.whole.size() + parts.fraction.size() <= std::size_t{kMaxNumberDigits} + 1;
}

State consume_bounded_number(AutomatonBuilder& builder, State from, const NumberBounds& bounds,
                             bool integer) {
  const State end = builder.add_state();
  const auto above_zero = [](const std::optional<double>& bound) { return bound && *bound > 0; };
  const auto below_zero = [](const std::optional<double>& bound) { return bound && *bound < 0; };
  const auto bound_of = [](const std::optional<double>& bound,
                           bool exclusive) -> std::optional<DecimalBound> {
    if (!bound) return std::nullopt;
    return to_bound(*bound, exclusive);
  };
  if (!below_zero(bounds.maximum)) {
    const bool starts_at_zero = !bounds.minimum || *bounds.minimum < 0;
    const DecimalBound low =
        starts_at_zero ? DecimalBound{} : to_bound(*bounds.minimum, bounds.minimum_exclusive);
    DigitWalk(builder, end, low, bound_of(bounds.maximum, bounds.maximum_exclusive), integer)
        .consume_all(from);
  }
  if (!above_zero(bounds.minimum) && bounds.minimum != 0.0) {
    const bool ends_at_zero = !bounds.maximum || *bounds.maximum >= 0;
    const DecimalBound low = ends_at_zero
                                 ? DecimalBound{.whole = "0", .fraction = {}, .exclusive = true}
                                 : to_bound(*bounds.maximum, bounds.maximum_exclusive);
    DigitWalk(builder, end, low, bound_of(bounds.minimum, bounds.minimum_exclusive), integer)
        .consume_all(builder.literal(from, "-"));
  }
  return end;
}

}  // namespace levin::text::grammar
