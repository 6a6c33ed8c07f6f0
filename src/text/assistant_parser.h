// Takes generated text apart into reasoning, content and tool calls while it arrives. One state
// machine for all three, since they interrupt one another: <tool_call> ends reasoning that was not
// closed, and what turns out to be no call is content.
//
// Reasoning (nemotron_v3, after vLLM's parser of that name):
//  - It begins where the prompt has left <think> open, or, with a prompt nobody has looked at,
//    unless enable_thinking is false. Otherwise a <think> at the very start of the output opens it.
//  - It ends at </think> or <tool_call>. White space at its end, and one line break behind a
//  <think>
//    that the model wrote, are dropped. Further <think> in reasoning and </think> in content are
//    dropped.
//  - With force_nonempty_content, or enable_thinking false, an output without content and calls
//    gets its reasoning as content.
// Tool calls (qwen3_coder):
//    <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>
//  - One line break at either end of a value belongs to the markup. tool_arguments.h types values.
//  - Missing closing tags are supplied; text between parameters is dropped, unless there is no
//    parameter and it is a JSON object: then it is the arguments; of parameters with the same name
//    the first counts. Without <tool_call> a <function= counts when it names a tool of the request.
//    <tool_call> without a function is content.
//  - White space before, between and behind calls is dropped when there is no other content there.
//
// Nothing is held back but what may be the beginning of a tag, white space that may be dropped, the
// name of a function or parameter, values that are not plain strings, and unfinished characters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "text/assistant.h"
#include "text/reasoning.h"
#include "text/tool_arguments.h"

namespace levin::text {

struct AssistantFormat {
  ReasoningFormat reasoning = ReasoningFormat::kNone;
  // kNone also for a request without tools, or with tool_choice none.
  ToolCallFormat tool_calls = ToolCallFormat::kNone;
  PromptReasoning prompt = PromptReasoning::kUnknown;
  std::optional<bool> enable_thinking = {};  // as in chat_template_kwargs
  bool force_nonempty_content = false;       // as in chat_template_kwargs
  // The content has been constrained by a grammar and is taken as it is: no tag in it is markup.
  bool verbatim_content = false;
  ToolParameters tools = {};
  uint64_t id_seed = 0;  // ids of calls are made of it; give each response its own
};

class AssistantParser {
 public:
  explicit AssistantParser(AssistantFormat format);

  // Takes the next bytes of the output, cut anywhere. The output must have been decoded with its
  // special tokens, since the tags are such. Bytes that are not UTF-8 become U+FFFD.
  AssistantDelta push(std::string_view bytes);
  // The output has ended.
  AssistantDelta finish();

  // All deltas so far, put together; final after finish().
  const AssistantMessage& message() const { return message_; }
  // Whether the output is inside reasoning (for counting reasoning tokens).
  bool in_reasoning() const { return state_ == State::kReasoning; }

 private:
  enum class State : uint8_t {
    kReasoning,
    kContent,
    kCallStart,     // behind <tool_call>
    kFunctionName,  // behind <function=
    kFunctionBody,
    kParameterName,  // behind <parameter=
    kValue,
    kCallEnd  // behind </function>
  };
  // How far the value of a parameter has been put out.
  enum class ValueMode : uint8_t { kCollect, kStream, kDiscard };

  void run(bool final);
  // Consumes from `rest`. False when more input is needed.
  bool step(std::string_view& rest, bool final);
  bool step_reasoning(std::string_view& rest, bool final);
  bool step_content(std::string_view& rest, bool final);
  bool step_call_start(std::string_view& rest, bool final);
  bool step_function_name(std::string_view& rest);
  bool step_function_body(std::string_view& rest, bool final);
  bool step_parameter_name(std::string_view& rest);
  bool step_value(std::string_view& rest, bool final);
  bool step_call_end(std::string_view& rest, bool final);

  void add_reasoning(std::string_view text);
  void add_content(std::string_view text);
  void end_reasoning();
  // The beginning of a call turned out to be something else.
  void give_up_call();
  void begin_call(std::string name);
  void end_call(bool closed);
  void begin_value();
  void add_value(std::string_view text);
  void end_value();
  void force_content();

  bool parses_calls() const { return format_.tool_calls != ToolCallFormat::kNone; }
  bool parses_reasoning() const { return format_.reasoning != ReasoningFormat::kNone; }
  bool forces_content() const;
  AssistantDelta take_delta();

  AssistantFormat format_;
  State state_;
  std::string bytes_;   // an unfinished character
  std::string buffer_;  // text not yet understood: at most the beginning of a tag
  std::string held_;    // white space that is dropped or kept with what follows
  std::string markup_;  // what give_up_call() makes content of
  std::string name_;    // of a function or parameter, as far as it is there
  std::string stray_;   // text between the parameters of the current call
  std::string value_;   // kCollect: all so far; kStream: a line break that may be the last
  std::unordered_set<std::string> names_;  // parameters of the current call
  JsonTypes types_ = kString;
  ValueMode mode_ = ValueMode::kDiscard;
  bool value_begun_ = false;  // its leading line break has been dealt with
  bool wrapped_ = false;      // the current call began with <tool_call>
  bool think_opened_ = false;
  bool at_start_ = true;  // no reasoning, content or call yet

  AssistantMessage message_;
  // How much of message_ has been handed out.
  std::size_t reasoning_taken_ = 0;
  std::size_t content_taken_ = 0;
  std::size_t calls_taken_ = 0;      // calls whose id and name have been
  std::size_t arguments_taken_ = 0;  // of the last of them
};

}  // namespace levin::text
