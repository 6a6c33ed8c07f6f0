// Text for calibration as one stream of tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "text/tokenizer.h"

namespace levin::quantize {

// The documents of a plain text file (one) or a *.jsonl file (one per line, under "text"), each
// followed by the end-of-text token where the tokenizer has one, at most `max_tokens` ids. Throws
// Error naming file and line for what is not that, and when there is nothing.
std::vector<int32_t> calibration_tokens(const std::filesystem::path& file,
                                        const text::Tokenizer& tokenizer, int64_t max_tokens);

}  // namespace levin::quantize
