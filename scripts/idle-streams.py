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


# What first requests make once and for all is not counted.
for _ in range(50):
    streamed().close()
before = metric("process_resident_memory_bytes")
files = metric("process_open_fds")
began = time.time()
connections = [streamed() for _ in range(streams)]
if time.time() - began > 14:
    sys.exit("opening them took so long that the server has closed the first")
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
