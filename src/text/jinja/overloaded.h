// std::visit with one lambda per alternative.
#pragma once

namespace levin::text::jinja {

template <typename... Lambdas>
struct overloaded : Lambdas... {
  using Lambdas::operator()...;
};
template <typename... Lambdas>
overloaded(Lambdas...) -> overloaded<Lambdas...>;

}  // namespace levin::text::jinja
