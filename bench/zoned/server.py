#!/usr/bin/env python3
"""`longma zoned serve` beside redis-server with `appendfsync always`: requests a second and latency, by redis-benchmark.

Both acknowledge a change when it is durable, listen on a loopback address, and have their files in the same folder. Needs
redis-server and redis-benchmark (Debian: redis-server, redis-tools) and a built `longma`.
"""

import argparse
import csv
import json
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import time

START_SECONDS = 60
END_SECONDS = 60


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until_open(port, process):
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the server has ended with status {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the server does not accept connections")


def start_longma(folder, port, options):
    subprocess.run([options.longma, "zoned", "format", "map", "--zones", "120"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    extra = ["--relaxed"] if options.relaxed else []
    return [options.longma, "zoned", "serve", "map", "--listen", f"127.0.0.1:{port}", *extra]


def start_redis(folder, port, options):
    policy = "everysec" if options.relaxed else "always"
    settings = {"port": port, "bind": "127.0.0.1", "dir": folder, "save": "", "appendonly": "yes", "appendfsync": policy}
    return ["redis-server", *(word for name, value in settings.items() for word in (f"--{name}", str(value)))]


SERVERS = {"longma": start_longma, "redis": start_redis}


def measure(server, options):
    """The rows of redis-benchmark for each combination of clients and pipeline depth."""
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        port = free_port()
        process = subprocess.Popen(SERVERS[server](folder, port, options), cwd=folder, stdout=subprocess.DEVNULL)
        try:
            wait_until_open(port, process)
            for clients in options.clients:
                for depth in options.pipeline:
                    command = ["redis-benchmark", "-p", port, "-t", "set,get,mset", "-n", options.requests, "-r", options.keys,
                               "-d", options.value_bytes, "-c", clients, "-P", depth, "--csv"]
                    output = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout
                    lines = output[output.index('"test"'):].splitlines()
                    for row in csv.DictReader(lines):
                        rows.append({
                            "server": server, "test": re.sub(r" .*", "", row["test"]), "clients": clients, "pipeline": depth,
                            "requests_per_second": float(row["rps"]), "p50_ms": float(row["p50_latency_ms"]),
                            "p99_ms": float(row["p99_latency_ms"]),
                        })
        finally:
            process.terminate()
            process.wait(END_SECONDS)
    return rows


def main():
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longma", default=shutil.which("longma") or "target/release/longma", type=pathlib.Path)
    parser.add_argument("--folder", help="where the files are [default: the system's folder for temporary files]")
    parser.add_argument("--requests", type=int, default=100_000, help="requests of each test [default: %(default)s]")
    parser.add_argument("--keys", type=int, default=1_000_000, help="different keys [default: %(default)s]")
    parser.add_argument("--value-bytes", type=int, default=100, help="length of values [default: %(default)s]")
    parser.add_argument("--clients", type=numbers, default=[1, 50], metavar="N,...", help="connections [default: 1,50]")
    parser.add_argument("--pipeline", type=numbers, default=[1, 16], metavar="N,...", help="requests sent together [default: 1,16]")
    parser.add_argument("--relaxed", action="store_true", help="changes are durable after a second (Redis: appendfsync everysec)")
    parser.add_argument("--server", choices=SERVERS, help="only this one")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    options = parser.parse_args()
    options.longma = options.longma.resolve()
    for program in ("redis-server", "redis-benchmark"):
        if not shutil.which(program):
            parser.error(f"{program} is missing (Debian: apt-get install redis-server redis-tools)")
    if not options.longma.exists():
        parser.error(f"{options.longma} is missing: build it, or name it with --longma")
    rows = [row for server in SERVERS if options.server in (None, server) for row in measure(server, options)]
    if options.format == "json":
        print(json.dumps(rows, indent=1))
        return
    line = "{:8} {:5} {:>7} {:>8} {:>10} {:>9} {:>9}".format
    print(line("SERVER", "TEST", "CLIENTS", "PIPELINE", "REQUESTS/S", "P50 MS", "P99 MS"))
    for row in rows:
        print(line(*(f"{cell:.2f}" if isinstance(cell, float) and cell < 1000 else f"{cell:.0f}" if isinstance(cell, float) else cell for cell in row.values())))


if __name__ == "__main__":
    main()
