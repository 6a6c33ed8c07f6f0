#include "text/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <ctime>
#include <new>

#include "core/error.h"
#include "text/oniguruma.h"

namespace levin::text {
namespace {

constexpr std::size_t kMaxPatternBytes = 64 << 10;
// PCRE2 can bound one match by its backtracking steps, but a step can cost as much as the text is
// long, and a text has as many matches as characters. So the limit of a single call starts small,
// doubles while the call needs more (a megabyte of capitals does), and processor time, the same
// whatever else the machine does, bounds the sum. An honest pattern takes about 0.05 us a byte.
constexpr uint32_t kFirstMatchLimit = 4096;
constexpr uint32_t kSmallestFirstMatchLimit = 64;
constexpr std::size_t kFirstCallCost = 1 << 30;  // limit times bytes
constexpr double kSeconds = 0.2;
constexpr double kSecondsPerByte = 10e-6;
constexpr uint32_t kCallsPerClock = 1024;
// Kibibytes of backtracking memory where there is no JIT.
constexpr uint32_t kHeapLimit = 64 << 10;

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::string message_of(int code) {
  unsigned char buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

PCRE2_SPTR code_units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

void SplitPattern::Deleter::operator()(pcre2_code* code) const {
  pcre2_code_free(code);
}

void SplitPattern::Matcher::Deleter::operator()(pcre2_match_data* data) const {
  pcre2_match_data_free(data);
}

void SplitPattern::Matcher::Deleter::operator()(pcre2_match_context* context) const {
  pcre2_match_context_free(context);
}

SplitPattern SplitPattern::regex(std::string_view pattern, const std::string& where) {
  return compile(oniguruma_to_pcre2(pattern, where), PCRE2_UCP | PCRE2_MULTILINE, where);
}

SplitPattern SplitPattern::literal(std::string_view text, const std::string& where) {
  return compile(text, PCRE2_LITERAL, where);
}

SplitPattern SplitPattern::compile(std::string_view pattern, uint32_t options,
                                   const std::string& where) {
  if (pattern.empty() || pattern.size() > kMaxPatternBytes) {
    throw Error({.what = "split pattern has an unreasonable length",
                 .where = where,
                 .expected = fmt::format("1 to {} bytes", kMaxPatternBytes),
                 .found = fmt::format("{} bytes", pattern.size()),
                 .hint = {}});
  }
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int code = 0;
  std::size_t offset = 0;
  SplitPattern result;
  result.where_ = where;
  // Anchored: the split loop visits every position itself, which bounds each call.
  result.code_.reset(pcre2_compile(code_units(pattern), pattern.size(),
                                   options | PCRE2_UTF | PCRE2_ANCHORED, &code, &offset,
                                   context.get()));
  if (!result.code_) {
    throw Error({.what = "split pattern is not a valid regular expression",
                 .where = where,
                 .expected = {},
                 .found = fmt::format("{} at offset {} of {}", message_of(code), offset, pattern),
                 .hint = {}});
  }
  // Where the JIT cannot run, pcre2_match interprets: slower, the same result.
  (void)pcre2_jit_compile(result.code_.get(), PCRE2_JIT_COMPLETE);
  return result;
}

SplitPattern::Matcher::Matcher(const SplitPattern& pattern, std::size_t text_size)
    : pattern_(&pattern),
      data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      first_limit_(static_cast<uint32_t>(std::clamp<std::size_t>(
          kFirstCallCost / (text_size + 1), kSmallestFirstMatchLimit, kFirstMatchLimit))),
      deadline_seconds_(processor_seconds() + kSeconds +
                        kSecondsPerByte * static_cast<double>(text_size)) {
  if (!data_ || !context_) throw std::bad_alloc();
  pcre2_set_heap_limit(context_.get(), kHeapLimit);
}

std::optional<std::size_t> SplitPattern::Matcher::match_at(std::string_view text, std::size_t at) {
  if (++calls_ % kCallsPerClock == 0) check_time();
  uint32_t options = PCRE2_NO_UTF_CHECK;
  for (uint32_t limit = first_limit_;;) {
    if (limit_ != limit) {
      limit_ = limit;
      pcre2_set_match_limit(context_.get(), limit);
    }
    const int result = pcre2_match(pattern_->code_.get(), code_units(text), text.size(), at,
                                   options, data_.get(), context_.get());
    if (result >= 0) return pcre2_get_ovector_pointer(data_.get())[1];
    if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
      options |= PCRE2_NO_JIT;
    } else if (result == PCRE2_ERROR_MATCHLIMIT && limit < 1u << 31) {
      check_time();
      limit *= 2;
    } else {
      give_up(message_of(result));
    }
  }
}

void SplitPattern::Matcher::check_time() const {
  if (processor_seconds() > deadline_seconds_) give_up("it takes too long");
}

void SplitPattern::Matcher::give_up(const std::string& why) const {
  throw Error({.what = "the split pattern backtracks without bound on this text",
               .where = pattern_->where_,
               .expected = {},
               .found = why,
               .hint = {}});
}

}  // namespace levin::text
