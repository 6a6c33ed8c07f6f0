// Regular expressions of tokenizer.json are written for Oniguruma (the `tokenizers` library); levin
// runs them with PCRE2. Most of the syntax is common; where the two would silently disagree, the
// pattern is rewritten, or refused by the name of the construct.
#pragma once

#include <string>
#include <string_view>

namespace levin::text {

// The same pattern for PCRE2 compiled with PCRE2_UTF, PCRE2_UCP and PCRE2_MULTILINE. Throws Error
// naming the construct, at `where`, for what has no equivalent. `pattern` is valid UTF-8.
std::string oniguruma_to_pcre2(std::string_view pattern, const std::string& where);

}  // namespace levin::text
