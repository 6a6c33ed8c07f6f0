#!/usr/bin/env python3
"""Many streams at once, a fifth of which vanish, and the server's memory before and after.

    tools/soak.py LEVIN [--requests 5000] [--streams 512]

Starts `LEVIN serve models/tiny`. Exit code 1 when a request fails, or when memory grows by more than
a tenth between the first fifth of the requests and the last.
"""
import argparse
import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("levin")
parser.add_argument("--requests", type=int, default=5000)
parser.add_argument("--streams", type=int, default=512)
args = parser.parse_args()

server = subprocess.Popen(
    [args.levin, "serve", "models/tiny", "--port", "0", "--disable-log-requests",
     "--prefix-cache-memory", "64M"], stderr=subprocess.PIPE, text=True)
port = None
for line in server.stderr:
    found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
    port = int(found.group(1)) if found else port
    if "speculation:" in line:
        break


def resident():
    with open(f"/proc/{server.pid}/status", encoding="ascii") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1)) / 1024


failures, finished, vanished, samples, peak, open_now = [], 0, 0, [], 0, 0


async def ask(number, gate):
    global finished, vanished, peak, open_now
    rng = random.Random(number)
    body = json.dumps({"messages": [{"role": "user", "content": f"Request {number % 97}"}],
                       "stream": True, "max_tokens": 4 + number % 9, "seed": number}).encode()
    async with gate:
        open_now += 1
        peak = max(peak, open_now)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
                     b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        if rng.random() < 0.2:  # vanishes
            await asyncio.wait([asyncio.ensure_future(reader.read(200))], timeout=rng.random())
            writer.transport.abort()
            vanished += 1
        else:
            answer = await reader.read(-1)
            if b" 200 OK" not in answer[:20] or b"[DONE]" not in answer:
                failures.append(answer[:200])
            writer.close()
            finished += 1
        open_now -= 1
        if (finished + vanished) % 250 == 0:
            samples.append(resident())


async def main():
    gate = asyncio.Semaphore(args.streams)
    await asyncio.gather(*(ask(i, gate) for i in range(args.requests)))

start = time.time()
asyncio.run(main())
seconds = time.time() - start
server.send_signal(signal.SIGTERM)
code = server.wait(timeout=60)
fifth = max(1, len(samples) // 5)
before, after = max(samples[:fifth]), max(samples[-fifth:])
print(f"{finished} finished, {vanished} vanished, {len(failures)} failed in {seconds:.1f} s; "
      f"{peak} at once; RSS {before:.1f} -> {after:.1f} MiB; exit code {code}")
for failure in failures[:3]:
    print(failure)
sys.exit(1 if failures or code != 0 or after > before * 1.1 else 0)
