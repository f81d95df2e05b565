#!/usr/bin/env python3
"""Measures several schedulers on one PostgreSQL server. Prints JSON.

Starts the server in a temporary folder and stops it afterwards. It runs with its defaults, including fsync. Other arguments go to
`placement-bench cluster`. The server's memory is the private memory of its processes plus their shares of shared memory (proc(5):
smaps_rollup, Pss), sampled every second.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from postgres import Server, programs


def server_mib(folder):
    """Memory of a server's processes in MiB."""
    first = int((folder / "data" / "postmaster.pid").read_text().split()[0])
    children = pathlib.Path(f"/proc/{first}/task/{first}/children").read_text().split()
    total = 0
    for pid in [first, *map(int, children)]:
        try:
            rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            # The process has ended.
            continue
        total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bench", type=pathlib.Path, required=True, help="the program placement-bench")
    arguments, others = parser.parse_known_args()
    found = programs() or sys.exit("install postgresql")
    with tempfile.TemporaryDirectory(prefix="longma-cluster-", dir="/tmp") as folder:
        folder = pathlib.Path(folder)
        folder.chmod(0o755)
        server_folder = folder / "server"
        server_folder.mkdir()
        server = Server(found, server_folder)
        peak_mib, ended = [0.0], threading.Event()

        def sample_memory():
            while not ended.wait(1):
                peak_mib[0] = max(peak_mib[0], server_mib(server_folder))

        sampler = threading.Thread(target=sample_memory)
        sampler.start()
        try:
            server.sql("CREATE DATABASE fleet")
            words = [arguments.bench, "cluster", "--database", f"{server.url} dbname=fleet", "--folder", folder, *others]
            done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=900, check=True)
            result = json.loads(done.stdout)
            result["fsync"] = server.sql("SHOW fsync").strip()
            result["database_mib"] = round(int(server.sql("SELECT pg_database_size('fleet')")) / 2**20)
        finally:
            ended.set()
            sampler.join()
            server.stop()
        result["server_most_memory_mib"] = round(peak_mib[0])
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    try:
        main()
    except subprocess.SubprocessError as error:
        sys.exit(f"cluster: {error}")
