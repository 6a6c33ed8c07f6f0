#!/usr/bin/env python3
"""Asks a running levin server through OpenAI's own Python client.

    python3 -m venv /tmp/client && /tmp/client/bin/pip install openai
    levin serve models/tiny --port 8000 &
    /tmp/client/bin/python tools/conformance/openai_client.py http://localhost:8000

Prints one line for each check; exit code 1 when one fails.
"""
import json
import sys

import openai

base = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"
client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
hi = [{"role": "user", "content": "What is 384 + 257?"}]
tool = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["a"]}}}
no_thinking = {"chat_template_kwargs": {"enable_thinking": False}}
failed = 0


def check(name, function):
    global failed
    try:
        ok, note = function(), ""
    except Exception as error:  # whatever the client makes of an answer
        ok, note = False, f" ({type(error).__name__}: {error})"
    failed += not ok
    print(f"{'ok  ' if ok else 'FAIL'} {name}{note}")


def chat(**more):
    return client.chat.completions.create(
        **{"model": "tiny", "messages": hi, "temperature": 0, "max_tokens": 100, **more})


def streamed_chat():
    whole = chat().choices[0].message
    content, reasoning, usage = "", "", None
    for chunk in chat(stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
    return content == whole.content and reasoning == whole.reasoning and usage.completion_tokens > 0


def stream_helper():
    with client.chat.completions.stream(model="tiny", messages=hi, max_tokens=60) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion().choices[0].finish_reason in ("stop", "length")


def tools_streamed():
    arguments = ""
    for chunk in chat(tools=[tool], tool_choice="required", parallel_tool_calls=False, stream=True,
                      extra_body=no_thinking):
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                arguments += call.function.arguments or ""
    return isinstance(json.loads(arguments)["a"], int)


def tool_turn():
    call = chat(tools=[tool], tool_choice="required", parallel_tool_calls=False,
                extra_body=no_thinking).choices[0].message
    result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "641"}
    return chat(messages=hi + [call.model_dump(exclude_none=True), result], tools=[tool],
                max_tokens=8).choices[0].finish_reason in ("stop", "length", "tool_calls")


def schema():
    answer = chat(extra_body=no_thinking, response_format={
        "type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {
            "type": "object", "properties": {"n": {"type": "integer", "maximum": 999, "minimum": 0}},
            "required": ["n"], "additionalProperties": False}}})
    return isinstance(json.loads(answer.choices[0].message.content)["n"], int)


def logprobs():
    entry = chat(logprobs=True, top_logprobs=2, max_tokens=3).choices[0].logprobs.content[0]
    return entry.logprob <= 0 and len(entry.top_logprobs) == 2


def completion_stream():
    text = "".join(c.choices[0].text for c in client.completions.create(
        model="tiny", prompt="It was", max_tokens=8, temperature=0, stream=True))
    return text == client.completions.create(
        model="tiny", prompt="It was", max_tokens=8, temperature=0).choices[0].text


def responses():
    whole = client.responses.create(model="tiny", input="What is 384 + 257?", temperature=0)
    final, text = None, ""
    for event in client.responses.create(model="tiny", input="What is 384 + 257?", temperature=0,
                                         stream=True):
        text += event.delta if event.type == "response.output_text.delta" else ""
        final = event
    return final.type == "response.completed" and text == whole.output_text != ""


def raises(kind, **more):
    try:
        chat(**more)
    except kind:
        return True
    return False


check("models.list", lambda: client.models.list().data[0].id == "tiny")
check("models.retrieve", lambda: client.models.retrieve("tiny").id == "tiny")
check("chat", lambda: chat().choices[0].message.role == "assistant")
check("chat, streamed equals whole", streamed_chat)
check("chat, stream helper", stream_helper)
check("chat, n", lambda: len(chat(n=3, temperature=1, max_tokens=4).choices) == 3)
check("chat, logprobs", logprobs)
check("chat, json_schema", schema)
check("chat, forced tool, streamed", tools_streamed)
check("chat, result of a tool", tool_turn)
check("completions, streamed equals whole", completion_stream)
check("responses, streamed equals whole", responses)
check("unknown model: NotFoundError", lambda: raises(openai.NotFoundError, model="gpt"))
check("bad value: BadRequestError", lambda: raises(openai.BadRequestError, temperature=-1))
sys.exit(1 if failed else 0)
