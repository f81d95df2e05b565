#!/usr/bin/env python3
"""Loads the API of `longma placement serve` with wrk and prints requests per second, wrk's latencies, and errors, as JSON lines.

This program describes a thousand hosts and keeps them alive. Reserved virtual machines are never created, so that the measurement covers
the API, the scheduler and the database. `create` requests a virtual machine each time; `mixed` shows one, lists ten and requests one in
turn. wrk waits for each answer before the next request on a connection. Source: wrk's manual.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HOSTS = 1000
SCRIPT = """
local number = {first}
local headers = {{ ["authorization"] = "Bearer {token}", ["content-type"] = "application/json" }}
local turn = 0
request = function()
  turn = turn + 1
  if "{what}" == "mixed" and turn % 3 == 1 then return wrk.format("GET", "/v1/vms/1", headers) end
  if "{what}" == "mixed" and turn % 3 == 2 then return wrk.format("GET", "/v1/vms?limit=10", headers) end
  number = number + 1
  headers["idempotency-key"] = "k" .. number
  local body = '{{"name":"v' .. number .. '","vcpus":1,"memory_mib":64}}'
  local made = wrk.format("POST", "/v1/vms", headers, body)
  headers["idempotency-key"] = nil
  return made
end
local wrong = {{}}
response = function(status)
  if status >= 400 then wrong[status] = (wrong[status] or 0) + 1 end
end
done = function(summary, latency)
  local e = summary.errors
  io.write(string.format("RESULT %d %d %d %d %d %d %d %d %d\\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), latency:percentile(99.9), latency.max, e.status, e.connect + e.read + e.write, e.timeout))
end
"""


class Service:
    """A service with its hosts."""

    def __init__(self, longma, folder, database):
        words = [longma, "placement", "serve", "--listen", "127.0.0.1:0", "--state", folder / "state"]
        words += ["--database", database] if database else []
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        while not (folder / "state" / "client.json").exists():
            if self.process.poll() is not None:
                sys.exit((folder / "log").read_text())
            time.sleep(0.05)
        access = json.loads((folder / "state" / "client.json").read_text())
        self.url, self.token, self.ended = access["url"], access["token"], threading.Event()
        self.agents = {}
        self.keeper = threading.Thread(target=self.keep_alive, daemon=True)
        self.keeper.start()
        for number in range(HOSTS):
            name = f"h{number}"
            token = self.request("/v1/tokens", {"name": name, "role": "agent", "scope": name})["token"]
            self.request(f"/v1/agents/{name}/changes", {"describe": host(name)}, token)
            self.agents[name] = token

    def request(self, path, body=None, token=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {token or self.token}", "content-type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def keep_alive(self):
        while not self.ended.wait(0.05):
            # Each host reports at least every 20 s, because it would count as lost later.
            for name, token in list(self.agents.items()):
                self.request(f"/v1/agents/{name}/report", {}, token)
                if self.ended.wait(0.015):
                    return

    def end(self):
        self.ended.set()
        self.process.terminate()
        self.process.wait(timeout=90)


def host(name):
    """Eight nodes of sixteen CPUs and 32 GiB."""
    node = lambda n: {"id": n, "cores": [str(n * 16 + c) for c in range(16)], "memory": [{"page_kib": 4, "mib": 32768}]}
    distances = [[10 if a == b else 16 for b in range(8)] for a in range(8)]
    return {"name": name, "nodes": [node(n) for n in range(8)], "distances": distances}


def measure(service, folder, what, connections, seconds, first):
    script = folder / "load.lua"
    script.write_text(SCRIPT.format(token=service.token, what=what, first=first))
    words = ["wrk", "--threads", "1", "--connections", str(connections), "--duration", f"{seconds}s", "--timeout", "10s"]
    done = subprocess.run([*words, "--script", script, service.url], capture_output=True, text=True, timeout=seconds + 60)
    found = re.search(r"^RESULT (.*)$", done.stdout, re.M)
    if not found:
        sys.exit(f"wrk: {done.stdout}{done.stderr}")
    count, microseconds, p50, p99, p999, max_us, refused, broken, late = map(int, found[1].split())
    return {
        "what": what, "connections": connections, "requests": count, "requests_a_second": round(count * 1e6 / microseconds),
        "p50_ms": p50 / 1e3, "p99_ms": p99 / 1e3, "p999_ms": p999 / 1e3, "max_ms": max_us / 1e3,
        "refused": refused, "broken": broken, "late": late,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--longma", type=pathlib.Path, required=True, help="the command")
    parser.add_argument("--seconds", type=int, default=10, help="for each measurement")
    parser.add_argument("--connections", default="1,8,64", help="numbers of connections")
    parser.add_argument("--database", help="URL of an empty PostgreSQL database [default: SQLite]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="longma-load-") as folder:
        folder = pathlib.Path(folder)
        service = Service(arguments.longma.resolve(), folder, arguments.database)
        try:
            turns = [(what, int(n)) for what in ("create", "mixed") for n in arguments.connections.split(",")]
            for turn, (what, connections) in enumerate(turns):
                print(json.dumps(measure(service, folder, what, connections, arguments.seconds, (turn + 1) * 1_000_000)), flush=True)
            wrong = service.request("/v1/audit")["database"]
            if wrong:
                sys.exit(f"the database contradicts itself: {wrong[:3]}")
        finally:
            service.end()


if __name__ == "__main__":
    main()
