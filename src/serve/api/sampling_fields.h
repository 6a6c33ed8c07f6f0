// The fields that chat and text completions have in common.
#pragma once

#include <span>
#include <vector>

#include "serve/api/fields.h"
#include "serve/api/generation_request.h"

namespace levin::serve::api {

// `own` and the common fields.
std::vector<Field> with_common_fields(std::span<const Field> own);

// Fills what the common fields say.
void read_common_fields(const FieldReader& fields, const ModelFacts& facts,
                        GenerationRequest& request);

// What cannot be had beside a grammar, of a JSON format or a forced tool_choice.
void check_grammar(const FieldReader& fields, const GenerationRequest& request);

// temperature, top_p, top_k: in all four APIs.
void read_sampling(const FieldReader& fields, engine::SamplingParams& params);
// A string, or up to `most` of them.
std::vector<std::string> read_strings(const FieldReader& fields, std::string_view name,
                                      std::size_t most);
// The ranges of what has been read.
void check_sampling(const GenerationRequest& request);

}  // namespace levin::serve::api
