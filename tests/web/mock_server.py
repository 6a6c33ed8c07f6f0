#!/usr/bin/env python3
"""Speaks as much of the server's API as the page uses, with scripted answers (stdlib only).

The last user message picks the answer: "tool" calls a tool, "code" shows a fenced block and HTML
that must stay text, "long" streams until the client goes away, anything else a short greeting."""
import argparse
import http.server
import json
import pathlib
import time

PAGE = pathlib.Path(__file__).parents[2] / "src/serve/web/page.html"
CODE = "Some **bold** text.\n\n```python\nprint('hi')\n```\n\n<img src=x onerror=alert(1)> stays text."
COUNTS = {"tokens": 0, "drafted": 0, "accepted": 0, "running": 0, "aborted": 0}


def deltas(body):
    if body.get("chat_template_kwargs", {}).get("enable_thinking", True):
        for word in "Let me think about that. ".split(" "):
            yield {"reasoning": word + " "}
    said = body["messages"][-1]["content"]
    if "tool" in said:
        yield {"tool_calls": [{"index": 0, "id": "call_1", "type": "function",
                               "function": {"name": "get_weather", "arguments": ""}}]}
        for piece in ('{"city": ', '"Graz"}'):
            yield {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
    elif "long" in said:
        for number in range(20000):
            yield {"content": f"word{number} "}
    else:
        for piece in (CODE if "code" in said else "Hello from the mock.").split(" "):
            yield {"content": piece + " "}


class Handler(http.server.BaseHTTPRequestHandler):
    api_key = None

    def log_message(self, *args):
        pass

    def reply(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def refused(self):
        if not self.api_key or self.headers.get("Authorization") == f"Bearer {self.api_key}":
            return False
        self.reply(401, "application/json", json.dumps({"error": {"message": "wrong key", "code": 401}}))
        return True

    def do_GET(self):
        if self.path.partition("?")[0] == "/":
            self.reply(200, "text/html; charset=utf-8", PAGE.read_text())
        elif self.path == "/health":
            self.reply(200, "application/json", '{"status":"ok"}')
        elif self.path == "/v1/models":
            if not self.refused():
                self.reply(200, "application/json", '{"object":"list","data":[{"id":"mock"}]}')
        elif self.path == "/metrics":
            values = {"num_requests_running": COUNTS["running"], "num_requests_waiting": 0,
                      "kv_cache_usage_perc": COUNTS["running"] / 8,
                      "generation_tokens_total": COUNTS["tokens"],
                      "spec_decode_num_draft_tokens_total": COUNTS["drafted"],
                      "spec_decode_num_accepted_tokens_total": COUNTS["accepted"]}
            self.reply(200, "text/plain", "".join(
                f'levin:{name}{{model_name="mock",engine="0"}} {value}\n' for name, value in values.items()))
        else:
            self.reply(404, "application/json", '{"error":{"message":"no such path"}}')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refused():
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        COUNTS["running"] += 1
        count, finish = 0, "stop"
        try:
            for delta in deltas(body):
                count += 1
                COUNTS["tokens"] += 1
                COUNTS["drafted"] += 4
                COUNTS["accepted"] += 3
                if "tool_calls" in delta:
                    finish = "tool_calls"
                self.send({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
                time.sleep(0.002)
            self.send({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
            self.send({"choices": [], "usage": {"completion_tokens": count}})
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            COUNTS["aborted"] += 1
        finally:
            COUNTS["running"] -= 1

    def send(self, chunk):
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8011)
    parser.add_argument("--api-key")
    flags = parser.parse_args()
    Handler.api_key = flags.api_key
    Server(("127.0.0.1", flags.port), Handler).serve_forever()
