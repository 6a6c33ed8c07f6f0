#include "text/assistant_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/tag_scanner.h"
#include "text/utf8.h"

namespace levin::text {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kCall = "<tool_call>";
constexpr std::string_view kCallClose = "</tool_call>";
constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionClose = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterClose = "</parameter>";
// Longer names are not names; they would hold back the text for ever.
constexpr std::size_t kMaxName = 256;

std::string_view take(std::string_view& text, std::size_t size) {
  const std::string_view head = text.substr(0, size);
  text.remove_prefix(head.size());
  return head;
}

std::string_view take_space(std::string_view& text) {
  const std::size_t end = text.find_first_not_of(kSpace);
  return take(text, end == text.npos ? text.size() : end);
}

// Up to what ends a name, but at most `limit` bytes.
std::string_view take_name(std::string_view& text, std::size_t limit) {
  return take(text, std::min({text.find_first_of("><\n"), text.size(), limit}));
}

std::string trimmed_name(std::string_view name) {
  constexpr std::string_view kAround = " \t\r\n\"'";
  const std::size_t begin = name.find_first_not_of(kAround);
  if (begin == name.npos) return {};
  return std::string(name.substr(begin, name.find_last_not_of(kAround) - begin + 1));
}

// 24 hexadecimal digits that differ from call to call and from seed to seed (SplitMix64's mixing).
std::string call_id(uint64_t seed, std::size_t index) {
  const auto mix = [](uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  };
  return fmt::format("call_{:016x}{:08x}", mix(seed + index),
                     static_cast<uint32_t>(mix(mix(seed) + index)));
}

}  // namespace

AssistantParser::AssistantParser(AssistantFormat format)
    : format_(std::move(format)), state_(State::kContent) {
  if (!parses_reasoning()) return;
  const bool unknown = format_.prompt == PromptReasoning::kUnknown;
  if (format_.prompt == PromptReasoning::kOpen ||
      (unknown && format_.enable_thinking.value_or(true))) {
    state_ = State::kReasoning;
  }
}

AssistantDelta AssistantParser::push(std::string_view bytes) {
  bytes_ += bytes;
  std::size_t whole = bytes_.size();
  for (std::size_t back = 1; back <= 3 && back <= bytes_.size(); ++back) {
    const std::size_t at = bytes_.size() - back;
    if (decode_utf8(bytes_, at).status == Utf8Status::kIncomplete) whole = at;
  }
  buffer_ += to_valid_utf8(std::string_view(bytes_).substr(0, whole));
  bytes_.erase(0, whole);
  run(false);
  return take_delta();
}

AssistantDelta AssistantParser::finish() {
  buffer_ += to_valid_utf8(std::exchange(bytes_, {}));
  run(true);
  if (state_ == State::kCallStart || state_ == State::kFunctionName) give_up_call();
  if (state_ == State::kParameterName) ++message_.malformed;
  if (state_ == State::kValue) end_value();
  if (state_ == State::kValue || state_ == State::kFunctionBody ||
      state_ == State::kParameterName) {
    end_call(false);
  }
  if (forces_content()) {
    force_content();
  } else if (state_ == State::kContent && message_.tool_calls.empty()) {
    message_.content += held_;
  }
  held_.clear();
  return take_delta();
}

bool AssistantParser::forces_content() const {
  return parses_reasoning() &&
         (format_.force_nonempty_content || !format_.enable_thinking.value_or(true));
}

void AssistantParser::force_content() {
  if (!message_.content.empty() || !message_.tool_calls.empty()) return;
  if (message_.reasoning.empty()) return;
  message_.content = message_.reasoning;
  message_.content_from_reasoning = true;
}

void AssistantParser::run(bool final) {
  std::string_view rest = buffer_;
  while (!rest.empty() && step(rest, final)) {
  }
  buffer_.erase(0, buffer_.size() - rest.size());
}

bool AssistantParser::step(std::string_view& rest, bool final) {
  switch (state_) {
    case State::kReasoning:
      return step_reasoning(rest, final);
    case State::kContent:
      return step_content(rest, final);
    case State::kCallStart:
      return step_call_start(rest, final);
    case State::kFunctionName:
      return step_function_name(rest);
    case State::kFunctionBody:
      return step_function_body(rest, final);
    case State::kParameterName:
      return step_parameter_name(rest);
    case State::kValue:
      return step_value(rest, final);
    case State::kCallEnd:
      return step_call_end(rest, final);
  }
  return false;
}

bool AssistantParser::step_reasoning(std::string_view& rest, bool final) {
  if (std::exchange(think_opened_, false) && rest.front() == '\n') {
    take(rest, 1);
    return true;
  }
  const TagMatch match = find_tag(rest, {kThink, kThinkEnd, kCall}, final);
  add_reasoning(take(rest, match.begin));
  if (match.tag.empty()) return false;
  if (match.tag == kThink) {
    take(rest, match.tag.size());
    if (message_.reasoning.empty()) {
      held_.clear();
      think_opened_ = true;
    }
    return true;
  }
  end_reasoning();
  if (match.tag == kThinkEnd) {
    take(rest, match.tag.size());
  } else if (!parses_calls()) {
    add_content(take(rest, match.tag.size()));
  }
  return true;
}

void AssistantParser::add_reasoning(std::string_view text) {
  const std::size_t last = text.find_last_not_of(kSpace);
  const std::size_t settled = last == text.npos ? 0 : last + 1;
  if (settled > 0) {
    at_start_ = false;
    message_.reasoning += held_;
    message_.reasoning += text.substr(0, settled);
    held_.clear();
  }
  held_ += text.substr(settled);
}

void AssistantParser::end_reasoning() {
  held_.clear();
  at_start_ = false;
  state_ = State::kContent;
}

bool AssistantParser::step_content(std::string_view& rest, bool final) {
  if (format_.verbatim_content) {
    add_content(take(rest, rest.size()));
    return true;
  }
  const bool calls = parses_calls();
  const TagMatch match =
      find_tag(rest,
               {parses_reasoning() && at_start_ ? kThink : "", parses_reasoning() ? kThinkEnd : "",
                calls ? kCall : "", calls ? kFunction : ""},
               final);
  if (match.begin > 0) {
    // <think> stops being a tag with the first text.
    add_content(take(rest, match.begin));
    return true;
  }
  if (match.tag.empty()) return false;
  markup_ = take(rest, match.tag.size());
  if (match.tag == kThink) {
    held_.clear();
    at_start_ = false;
    think_opened_ = true;
    state_ = State::kReasoning;
  } else if (match.tag == kCall) {
    state_ = State::kCallStart;
  } else if (match.tag == kFunction) {
    wrapped_ = false;
    state_ = State::kFunctionName;
  }
  return true;
}

void AssistantParser::add_content(std::string_view text) {
  if (message_.content.empty()) held_ += take_space(text);
  if (text.empty()) return;
  at_start_ = false;
  message_.content += std::exchange(held_, {});
  message_.content += text;
}

void AssistantParser::give_up_call() {
  add_content(std::exchange(markup_, {}) + std::exchange(name_, {}));
  ++message_.malformed;
  state_ = State::kContent;
}

bool AssistantParser::step_call_start(std::string_view& rest, bool final) {
  markup_ += take_space(rest);
  if (rest.empty()) return true;
  if (rest.starts_with(kFunction)) {
    markup_ += take(rest, kFunction.size());
    wrapped_ = true;
    state_ = State::kFunctionName;
    return true;
  }
  if (rest.starts_with(kCall)) {  // opened twice
    ++message_.malformed;
    markup_ = take(rest, kCall.size());
    return true;
  }
  if (rest.starts_with(kCallClose)) {  // an empty call
    ++message_.malformed;
    markup_.clear();
    state_ = State::kCallEnd;
    return true;
  }
  if (!final && partial_tag_size(rest, {kFunction, kCall, kCallClose}) == rest.size()) return false;
  give_up_call();
  return true;
}

bool AssistantParser::step_function_name(std::string_view& rest) {
  name_ += take_name(rest, kMaxName + 1 - name_.size());
  if (name_.size() > kMaxName) {
    give_up_call();
    return true;
  }
  if (rest.empty()) return true;
  std::string name = trimmed_name(name_);
  if (name.empty() || (!wrapped_ && !format_.tools.empty() && !format_.tools.contains(name))) {
    give_up_call();
    return true;
  }
  if (rest.front() == '>') {
    take(rest, 1);
  } else {
    ++message_.malformed;
  }
  begin_call(std::move(name));
  return true;
}

void AssistantParser::begin_call(std::string name) {
  held_.clear();
  markup_.clear();
  name_.clear();
  stray_.clear();
  names_.clear();
  at_start_ = false;
  message_.tool_calls.push_back({.id = call_id(format_.id_seed, message_.tool_calls.size()),
                                 .name = std::move(name),
                                 .arguments = {},
                                 .closed = false});
  state_ = State::kFunctionBody;
}

bool AssistantParser::step_function_body(std::string_view& rest, bool final) {
  const TagMatch match =
      find_tag(rest, {kParameter, kFunctionClose, kCallClose, kCall, kFunction}, final);
  stray_ += take(rest, match.begin);
  if (match.tag.empty()) return false;
  if (match.tag == kParameter) {
    take(rest, match.tag.size());
    state_ = State::kParameterName;
    return true;
  }
  const bool closed = match.tag == kFunctionClose;
  if (closed) take(rest, match.tag.size());
  end_call(closed);
  state_ = State::kCallEnd;
  return true;
}

void AssistantParser::end_call(bool closed) {
  ToolCall& call = message_.tool_calls.back();
  call.closed = closed;
  if (!closed) ++message_.malformed;
  const std::size_t begin = stray_.find_first_not_of(kSpace);
  const bool has_stray = begin != std::string::npos;
  if (!call.arguments.empty()) {
    call.arguments += '}';
    if (has_stray) ++message_.malformed;
    return;
  }
  call.arguments = "{}";
  if (!has_stray) return;
  ++message_.malformed;
  if (stray_[begin] == '{' && is_json(stray_)) {
    call.arguments = stray_.substr(begin, stray_.find_last_not_of(kSpace) - begin + 1);
  }
}

bool AssistantParser::step_parameter_name(std::string_view& rest) {
  name_ += take_name(rest, kMaxName + 1 - name_.size());
  if (rest.empty() && name_.size() <= kMaxName) return true;
  if (name_.size() <= kMaxName && rest.front() == '>') {
    take(rest, 1);
  } else {
    ++message_.malformed;
  }
  begin_value();
  return true;
}

void AssistantParser::begin_value() {
  const std::string name = trimmed_name(std::exchange(name_, {}));
  ToolCall& call = message_.tool_calls.back();
  value_.clear();
  value_begun_ = false;
  state_ = State::kValue;
  if (name.empty() || name.size() > kMaxName || !names_.insert(name).second) {
    ++message_.malformed;
    mode_ = ValueMode::kDiscard;
    return;
  }
  call.arguments += call.arguments.empty() ? "{\"" : ", \"";
  append_json_escaped(call.arguments, name);
  call.arguments += "\": ";
  types_ = format_.tools.types(call.name, name);
  mode_ = ValueMode::kCollect;
  if (types_ == kString) {
    call.arguments += '"';
    mode_ = ValueMode::kStream;
  }
}

bool AssistantParser::step_value(std::string_view& rest, bool final) {
  if (!std::exchange(value_begun_, true) && rest.front() == '\n') take(rest, 1);
  const TagMatch match =
      find_tag(rest, {kParameterClose, kParameter, kFunctionClose, kCallClose}, final);
  add_value(take(rest, match.begin));
  if (match.tag.empty()) return false;
  end_value();
  if (match.tag == kParameterClose) {
    take(rest, match.tag.size());
  } else {
    ++message_.malformed;
  }
  state_ = State::kFunctionBody;
  return true;
}

void AssistantParser::add_value(std::string_view text) {
  if (text.empty() || mode_ == ValueMode::kDiscard) return;
  if (mode_ == ValueMode::kCollect) {
    value_ += text;
    return;
  }
  std::string& arguments = message_.tool_calls.back().arguments;
  append_json_escaped(arguments, std::exchange(value_, {}));
  if (text.ends_with('\n')) {
    value_ = "\n";
    text.remove_suffix(1);
  }
  append_json_escaped(arguments, text);
}

void AssistantParser::end_value() {
  std::string& arguments = message_.tool_calls.back().arguments;
  if (mode_ == ValueMode::kStream) {
    arguments += '"';
  } else if (mode_ == ValueMode::kCollect) {
    std::string_view text = value_;
    if (text.ends_with('\n')) text.remove_suffix(1);
    arguments += argument_to_json(text, types_);
  }
}

bool AssistantParser::step_call_end(std::string_view& rest, bool final) {
  held_ += take_space(rest);
  if (rest.empty()) return true;
  for (const std::string_view tag : {kCallClose, kFunctionClose, kParameterClose}) {
    if (!rest.starts_with(tag)) continue;
    held_.clear();
    take(rest, tag.size());
    return true;
  }
  if (!final && partial_tag_size(rest, {kCallClose, kFunctionClose, kParameterClose, kCall,
                                        kFunction}) == rest.size()) {
    return false;
  }
  state_ = State::kContent;
  return true;
}

AssistantDelta AssistantParser::take_delta() {
  AssistantDelta delta;
  delta.reasoning = message_.reasoning.substr(reasoning_taken_);
  delta.content = message_.content.substr(content_taken_);
  reasoning_taken_ = message_.reasoning.size();
  content_taken_ = message_.content.size();
  const std::vector<ToolCall>& calls = message_.tool_calls;
  if (calls_taken_ > 0 && arguments_taken_ < calls[calls_taken_ - 1].arguments.size()) {
    delta.tool_calls.push_back(
        {.index = calls_taken_ - 1,
         .id = {},
         .name = {},
         .arguments = calls[calls_taken_ - 1].arguments.substr(arguments_taken_)});
  }
  for (; calls_taken_ < calls.size(); ++calls_taken_) {
    const ToolCall& call = calls[calls_taken_];
    delta.tool_calls.push_back(
        {.index = calls_taken_, .id = call.id, .name = call.name, .arguments = call.arguments});
  }
  if (!calls.empty()) arguments_taken_ = calls.back().arguments.size();
  return delta;
}

}  // namespace levin::text
