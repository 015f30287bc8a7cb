"""Requests through a router while one of two servers is killed: router.py URL MODEL VICTIM SERVERS..."""

import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

URL, MODEL, VICTIM, *SERVERS = sys.argv[1:]
REQUESTS = 24


def get(url):
    return urllib.request.urlopen(url, timeout=30).read().decode()


def ask(number):
    """One answer; asked again where it was lost, as any client would."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"Count to {number}."}],
            "temperature": 0, "max_tokens": 48}
    request = urllib.request.Request(
        f"{URL}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    for attempt in range(8):
        try:
            answer = json.load(urllib.request.urlopen(request, timeout=60))
            return answer["choices"][0]["message"]["content"]
        except (urllib.error.HTTPError, urllib.error.URLError, ConnectionError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429:
                raise
            time.sleep(0.5 * (attempt + 1))
    raise AssertionError(f"request {number} was lost")


def served(server):
    """Requests that a server has answered."""
    lines = get(f"{server}/metrics").splitlines()
    counts = [line for line in lines if line.startswith("vllm:request_success_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in counts)


end = time.time() + 60
while True:
    try:
        get(f"{URL}/readiness")
        break
    except (urllib.error.URLError, ConnectionError):
        assert time.time() < end, "the router did not start"
        time.sleep(0.2)

alone = [ask(number) for number in range(4)]
assert all(served(server) > 0 for server in SERVERS), "the router uses both servers"

answers = {}


def work(numbers):
    for number in numbers:
        answers[number] = ask(number)


threads = [threading.Thread(target=work, args=(range(i, REQUESTS, 6),)) for i in range(6)]
for thread in threads:
    thread.start()
while len(answers) < 4:
    time.sleep(0.01)
os.kill(int(VICTIM), signal.SIGKILL)
for thread in threads:
    thread.join()
assert sorted(answers) == list(range(REQUESTS)), sorted(answers)
# What was asked again, and what ran beside others, has the same answer.
assert [answers[number] for number in range(4)] == alone
print(f"{REQUESTS} requests through the router, one server of two killed: nothing lost")
