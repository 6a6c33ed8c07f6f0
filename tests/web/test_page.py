#!/usr/bin/env python3
"""Uses the web page in headless Chromium as a person would (see README.md).

Starts the mock server, or with --levin a live one; needs `websockets` and chromium."""
import argparse
import asyncio
import base64
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import websockets

HERE = pathlib.Path(__file__).parent


class Browser:
    """One page over the DevTools protocol. Collects errors and addresses that the page asked for."""

    def __init__(self, socket_):
        self.socket, self.next, self.waiting, self.faults, self.urls = socket_, 0, {}, [], []

    async def listen(self):
        async for text in self.socket:
            message = json.loads(text)
            if "id" in message:
                self.waiting.pop(message["id"]).set_result(message)
            elif message["method"] == "Runtime.exceptionThrown":
                self.faults.append(message["params"]["exceptionDetails"])
            elif message["method"] == "Log.entryAdded":
                entry = message["params"]["entry"]
                if entry["source"] in ("security", "violation") or "Content Security" in entry["text"]:
                    self.faults.append(entry["text"])
            elif message["method"] == "Network.requestWillBeSent":
                self.urls.append(message["params"]["request"]["url"])

    async def call(self, method, **params):
        self.next += 1
        future = self.waiting[self.next] = asyncio.get_running_loop().create_future()
        await self.socket.send(json.dumps({"id": self.next, "method": method, "params": params}))
        reply = await asyncio.wait_for(future, 30)
        assert "error" not in reply, reply
        return reply["result"]

    async def js(self, expression):
        result = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True,
                                 returnByValue=True)
        assert "exceptionDetails" not in result, (expression, result["exceptionDetails"])
        return result["result"].get("value")

    async def until(self, expression, seconds=20):
        end = time.monotonic() + seconds
        while not await self.js(expression):
            assert time.monotonic() < end, f"never true: {expression}; page says: " + \
                await self.js("document.body.innerText")
            await asyncio.sleep(0.05)

    async def key(self, name, code, modifiers=0, text=""):
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name,
                            windowsVirtualKeyCode=code, modifiers=modifiers,
                            text=text if kind == "keyDown" else "")

    async def say(self, text):
        await self.js("$('input').focus()")
        await self.call("Input.insertText", text=text)
        await self.key("Enter", 13, text="\r")

    async def answered(self):
        await self.until("!running && turns.length && turns.at(-1).role === 'assistant'", 60)
        error = await self.js("turns.at(-1).error")
        assert not error, error

    async def size(self, width, height, mobile=False):
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                        deviceScaleFactor=1, mobile=mobile)

    async def picture(self, path):
        shot = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


class Server:
    def __init__(self, command, url):
        self.command, self.url, self.process = command, url, None

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                return urllib.request.urlopen(self.url + "/health", timeout=2).close()
            except OSError:
                assert self.process.poll() is None, "the server ended at once"
                time.sleep(0.05)
        raise AssertionError("the server did not become ready")

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait(timeout=20)


def done(what):
    print("ok  ", what, flush=True)


async def both(page, server, url):
    """What holds for any server."""
    await page.until("$('status').textContent === 'connected' && model")
    done("load: connected, model named")
    await page.js("$('max_tokens').value = 40; $('temperature').value = 0")
    await page.say("Say hello")
    await page.answered()
    assert await page.js("(turns[1].content + turns[1].reasoning).length") > 0
    assert "tokens" in await page.js("turns[1].note")
    done("chat: Enter sends, the answer streams in")
    await page.until("$('g-speed').textContent !== '–' && $('g-run').textContent === '0'")
    done("gauges are drawn from /metrics")
    await page.js("$('thinking').checked = false")
    assert await page.js("request().chat_template_kwargs.enable_thinking") is False
    await page.js("[...turns[1].node.querySelectorAll('button')].find(b => b.textContent === 'Regenerate').click()")
    await page.answered()
    assert await page.js("turns.length") == 2 and await page.js("turns[1].reasoning") == ""
    done("regenerate with thinking off: no reasoning")
    # A small model ends soon by itself: ask the server to go on.
    await page.js("$('max_tokens').value = ''; window.plain = request;"
                  "request = () => ({...plain(), ignore_eos: true}); 0")
    await page.say("long")
    await page.until("running && turns.length === 4 && turns[3].content.length > 200")
    await page.key("Escape", 27)
    await page.until("!running && turns[3].note === 'stopped'", 5)
    await page.js("request = plain; 0")
    await page.until("$('g-run').textContent === '0'", 5)
    done("stop: Esc ends the answer and frees the slot")
    if server:
        server.stop()
        await page.until("$('status').textContent.startsWith('server lost')")
        server.start()
        await page.until("$('status').textContent === 'connected' && model")
        await page.js("$('fresh').click(); $('max_tokens').value = 10")
        await page.say("again")
        await page.answered()
        done("reconnect: loss shown, chat goes on after a restart")
    stray = [u for u in page.urls if not u.startswith((url, "data:"))]
    assert not stray, stray
    assert not page.faults, page.faults
    done("no request to elsewhere, no script error, no policy violation")


WEATHER = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "required": ["city", "days"], "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9}}}}}]


async def live_only(page):
    """A tool call by a model, which a grammar makes it write; and the turn after it."""
    await page.js("$('fresh').click(); $('max_tokens').value = 100; $('thinking').checked = false;"
                  f"$('tools').value = JSON.stringify({json.dumps(WEATHER)}); window.plain = request;"
                  "request = () => ({...plain(), tool_choice: 'required', parallel_tool_calls: false}); 0")
    await page.say("Will it rain in Graz?")
    await page.answered()
    await page.until("turns[1].callBox.textContent.startsWith('Tool call: get_weather{')")
    arguments = json.loads(await page.js("turns[1].calls[0].function.arguments"))
    assert isinstance(arguments["city"], str) and 1 <= arguments["days"] <= 9, arguments
    await page.js("request = plain; $('tools').value = ''; $('max_tokens').value = 10; 0")
    await page.say("And tomorrow?")
    await page.answered()
    assert await page.js("turns[3].error || ''") == ""
    done("tool call: streamed by the model, shown, sent back with the next turn")


async def mock_only(page):
    """What needs scripted answers."""
    await page.js("$('fresh').click(); $('thinking').checked = true; $('max_tokens').value = ''")
    await page.say("code")
    await page.answered()
    await page.until("turns[1].text.querySelector('pre code')?.textContent === \"print('hi')\"")
    assert await page.js("turns[1].text.querySelector('img') === null && "
                         "turns[1].text.textContent.includes('<img src=x')")
    done("code blocks drawn; HTML in an answer stays text")
    assert await page.js("!turns[1].think.hidden && !turns[1].think.open && "
                         "turns[1].think.textContent.includes('think about')")
    done("thinking is shown folded")
    await page.say("tool")
    await page.answered()
    await page.until("turns[3].callBox.textContent === 'Tool call: get_weather{\"city\": \"Graz\"}'")
    done("tool call shown with its arguments")
    await page.js("[...turns[2].node.querySelectorAll('button')].find(b => b.textContent === 'Edit').click()")
    assert await page.js("turns.length === 2 && $('input').value === 'tool'")
    await page.key("Enter", 13, modifiers=8, text="\r")
    assert await page.js("turns.length === 2 && $('input').value.includes('\\n')")
    await page.key("Enter", 13, text="\r")
    await page.answered()
    done("edit takes a turn back; Shift+Enter breaks the line")


async def key_checks(page):
    await page.until("$('status').textContent === 'connected'")
    await page.say("hi")
    await page.until("!running && turns.at(-1)?.error.startsWith('401')")
    await page.js("$('fresh').click(); $('key').value = 'secret'")
    await page.say("hi")
    await page.answered()
    done("401 asks for the key; the key lets in")


async def pictures(page, folder):
    await page.size(1100, 700)
    for name in ("dark", "light"):
        await page.js(f"theme('{name}')")
        await page.picture(folder / f"web_page_{name}.png")
    await page.size(390, 780, mobile=True)
    assert await page.js("document.documentElement.scrollWidth <= innerWidth"), "wider than a phone"
    await page.picture(folder / "web_page_phone.png")
    await page.size(1100, 700)
    done("fits a phone; pictures made")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


async def run(flags, chromium):
    port = free_port()
    url = flags.url.rstrip("/") if flags.url else f"http://127.0.0.1:{port}"
    mock = [sys.executable, str(HERE / "mock_server.py"), "--port", str(port)]
    server = None
    if flags.levin:
        server = Server([flags.levin, "serve", flags.model, "--port", str(port)], url)
    elif not flags.url:
        server = Server(mock, url)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = subprocess.Popen(
            [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
             f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            if server:
                server.start()
            told = pathlib.Path(profile) / "DevToolsActivePort"
            for _ in range(400):
                if told.exists() and len(told.read_text().split()) == 2:
                    break
                await asyncio.sleep(0.05)
            debug = told.read_text().split()[0]
            targets = json.load(urllib.request.urlopen(f"http://127.0.0.1:{debug}/json"))
            address = next(t["webSocketDebuggerUrl"] for t in targets if t["type"] == "page")
            async with websockets.connect(address, max_size=None, ping_interval=None) as ws:
                page = Browser(ws)
                listener = asyncio.create_task(page.listen())
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await page.call(f"{domain}.enable")
                await page.size(1100, 700)
                await page.call("Page.navigate", url=url + "/")
                await page.until("document.readyState === 'complete' && typeof watch === 'function'")
                await both(page, server, url)
                if flags.url or flags.levin:
                    await live_only(page)
                else:
                    await mock_only(page)
                if flags.pictures:
                    await pictures(page, pathlib.Path(flags.pictures))
                if not flags.url and not flags.levin:
                    server.stop()
                    server.command = mock + ["--api-key", "secret"]
                    server.start()
                    await page.call("Page.navigate", url=url + "/?key")
                    await page.until("location.search === '?key' && document.readyState === 'complete'")
                    await key_checks(page)
                assert not page.faults, page.faults
                listener.cancel()
        finally:
            browser.terminate()
            browser.wait(timeout=20)
            if server:
                server.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", help="a running server; the restart is then not tried")
    where.add_argument("--levin", help="a levin program to serve --model with")
    parser.add_argument("--model", default="models/tiny")
    parser.add_argument("--pictures", help="folder for screenshots")
    subprocess.run([sys.executable, str(HERE / "seal_page.py"), "--check"], check=True)
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    sys.exit("chromium is missing: apt install chromium") if not found else None
    asyncio.run(run(parser.parse_args(), found))
    print("the page works")
