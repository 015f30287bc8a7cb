#!/usr/bin/env python3
"""What streams cost a dunlin server while nothing happens on them.

    scripts/idle-streams.py URL [STREAMS] [SECONDS]

opens STREAMS connections (default 1000), has each stream an answer to its end, leaves all open, and
tells how much more memory the server then holds and how much processor time it takes in SECONDS
(default 10, fewer than the 15 after which the server closes connections that nobody uses).
"""
import json
import re
import socket
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlparse

url = sys.argv[1]
streams = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 10
address = (urlparse(url).hostname, urlparse(url).port)


def metric(name):
    text = urllib.request.urlopen(url + "/metrics").read().decode()
    return float(re.search(rf"^{name} (\S+)$", text, re.M).group(1))


BODY = json.dumps({"prompt": "a", "max_tokens": 2, "ignore_eos": True, "stream": True}).encode()
REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    + b"Content-Length: %d\r\n\r\n" % len(BODY)
    + BODY
)


def streamed():
    """A connection on which an answer has been streamed."""
    connection = socket.create_connection(address, timeout=60)
    connection.sendall(REQUEST)
    answer = b""
    while not answer.endswith(b"0\r\n\r\n"):
        part = connection.recv(1 << 16)
        if not part:
            sys.exit(f"the answer was cut off: {answer[-200:]}")
        answer += part
    if not answer.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in answer:
        sys.exit(f"no stream: {answer[:200]}")
    return connection


def refresh(connection):
    """Has the server wait for the next request on it from now on."""
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = b""
    while not answer.endswith(b'"ok"}'):
        part = connection.recv(1 << 12)
        if not part:
            sys.exit("the server has closed a connection")
        answer += part


def many(count):
    """So many of them, made 64 at a time; none waits for so long that the server closes it."""
    made, refreshed = [], time.time()
    with ThreadPoolExecutor(64) as pool:
        while len(made) < count:
            made += pool.map(lambda _: streamed(), range(min(64, count - len(made))))
            if time.time() - refreshed > 5 or len(made) == count:
                list(pool.map(refresh, made))
                refreshed = time.time()
    return made


# What first requests make once and for all is not counted.
for connection in many(128):
    connection.close()
before = metric("process_resident_memory_bytes")
files = metric("process_open_fds")
connections = many(streams)
held = metric("process_resident_memory_bytes") - before
opened = metric("process_open_fds") - files
used, began = metric("process_cpu_seconds_total"), time.time()
time.sleep(seconds)
used, began = metric("process_cpu_seconds_total") - used, time.time() - began
print(json.dumps({
    "streams": streams,
    "open": opened,
    "held_mb": held / 1e6,
    "cpu_seconds": used,
    "seconds": began,
}))
if opened < streams:
    sys.exit(f"only {opened} connections are open")
