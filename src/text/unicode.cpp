#include "text/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/ustring.h>

#include <array>
#include <limits>
#include <stdexcept>

#include "text/utf8.h"

namespace levin::text {
namespace {

constexpr char32_t kCapitalSigma = 0x3A3;
constexpr char32_t kFinalSigma = 0x3C2;

UChar32 code(char32_t code_point) {
  return static_cast<UChar32>(code_point);
}

bool is_case_ignorable(char32_t code_point) {
  return u_hasBinaryProperty(code(code_point), UCHAR_CASE_IGNORABLE) != 0;
}

// ICU fails when memory runs out or its data are damaged.
void check(UErrorCode status) {
  if (U_FAILURE(status) != 0) throw std::runtime_error(u_errorName(status));
}

// Appends the full mapping of one character, as if it stood alone. `map` is called with the
// character in UTF-16 and a buffer that holds any mapping (three characters at most).
template <typename Map>
void append_mapped(std::string& out, char32_t code_point, Map&& map) {
  std::array<UChar, 2> from;
  std::array<UChar, 8> to;
  int32_t length = 0;
  UErrorCode status = U_ZERO_ERROR;
  u_strFromUTF32(from.data(), from.size(), &length, reinterpret_cast<const UChar32*>(&code_point),
                 1, &status);
  length = map(to.data(), static_cast<int32_t>(to.size()), from.data(), length, &status);
  for (int32_t i = 0; i < length;) {
    UChar32 c = 0;
    U16_NEXT(to, i, length, c);
    append_utf8(out, static_cast<char32_t>(c));
  }
  // A string that fills its buffer is no error for a counted one.
  check(status == U_STRING_NOT_TERMINATED_WARNING ? U_ZERO_ERROR : status);
}

// The root locale: no language has its own rules.
void append_upper(std::string& out, char32_t c) {
  append_mapped(out, c, [](UChar* to, int32_t room, const UChar* from, int32_t n, UErrorCode* e) {
    return u_strToUpper(to, room, from, n, "", e);
  });
}
void append_lower(std::string& out, char32_t c) {
  append_mapped(out, c, [](UChar* to, int32_t room, const UChar* from, int32_t n, UErrorCode* e) {
    return u_strToLower(to, room, from, n, "", e);
  });
}

// Whether a cased character stands before `sigma`, a view into `text`, and none behind it, looking
// past case-ignorable ones (Unicode chapter 3.13, Final_Sigma).
bool is_final_sigma(std::string_view text, std::string_view sigma) {
  const auto begin = static_cast<std::size_t>(sigma.data() - text.data());
  bool cased_before = false;
  for (std::size_t at = begin; at > 0 && !cased_before;) {
    do --at;
    while ((static_cast<uint8_t>(text[at]) & 0xC0u) == 0x80u);
    const char32_t c = decode_utf8(text, at).value;
    if (is_case_ignorable(c)) continue;
    if (!is_cased(c)) break;
    cased_before = true;
  }
  if (!cased_before) return false;
  for (std::size_t at = begin + sigma.size(); at < text.size();) {
    const Utf8Step step = decode_utf8(text, at);
    if (!is_case_ignorable(step.value)) return !is_cased(step.value);
    at += step.length;
  }
  return true;
}

}  // namespace

bool is_cased(char32_t code_point) {
  return u_hasBinaryProperty(code(code_point), UCHAR_CASED) != 0;
}

bool is_white_space(char32_t code_point) {
  return u_isUWhiteSpace(code(code_point)) != 0;
}

bool is_python_space(char32_t c) {
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

bool is_printable(char32_t code_point) {
  constexpr uint32_t kNot = U_GC_C_MASK | U_GC_Z_MASK;  // other and separator
  return code_point == ' ' || (U_GET_GC_MASK(code(code_point)) & kNot) == 0;
}

std::string to_upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_character(text, [&](char32_t c, std::string_view) { append_upper(out, c); });
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  append_lower(out, text, text);
  return out;
}

void append_lower(std::string& out, std::string_view part, std::string_view text) {
  for_each_character(part, [&](char32_t c, std::string_view bytes) {
    if (c == kCapitalSigma && is_final_sigma(text, bytes)) {
      append_utf8(out, kFinalSigma);
    } else {
      append_lower(out, c);
    }
  });
}

void append_title(std::string& out, char32_t c) {
  append_mapped(out, c, [](UChar* to, int32_t room, const UChar* from, int32_t n, UErrorCode* e) {
    return u_strToTitle(to, room, from, n, nullptr, "", e);
  });
}

std::string to_nfc(std::string_view text) {
  if (text.size() > std::numeric_limits<int32_t>::max()) throw std::length_error("to_nfc");
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(status);
  check(status);
  std::string out;
  out.reserve(text.size());
  icu::StringByteSink<std::string> sink(&out);
  nfc->normalizeUTF8(0, {text.data(), static_cast<int32_t>(text.size())}, sink, nullptr, status);
  check(status);
  return out;
}

}  // namespace levin::text
