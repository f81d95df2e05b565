#!/usr/bin/env python3
"""Tests `longma placement` with a private PostgreSQL server: the store's tests, and two services on one database that are killed.

The server runs in a private folder, is reachable through a socket in it only, and is stopped afterwards. PostgreSQL refuses to run as root:
as root, it is started as Debian's user `postgres`. Source: PostgreSQL's manual, initdb and pg_ctl.
"""

import argparse
import contextlib
import json
import os
import pathlib
import pwd
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent


class CheckFailed(Exception):
    """A failed check."""


def must(condition, message):
    if not condition:
        raise CheckFailed(message)


def until(what, condition, seconds=30):
    """Waits until a condition holds and returns its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.1)
    raise CheckFailed(f"{what}: not within {seconds} s")


def programs():
    """The program folder of the newest installed server, or None."""
    if found := shutil.which("initdb"):
        return pathlib.Path(found).parent
    versions = [path.parent for path in pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(versions, key=lambda path: float(path.parent.name), default=None)


class Server:
    """A PostgreSQL server."""

    def __init__(self, programs, folder):
        self.programs, self.folder = programs, folder
        self.user = None
        if os.geteuid() == 0:
            self.user = pwd.getpwnam("postgres")
            os.chown(folder, self.user.pw_uid, self.user.pw_gid)
        self.run("initdb", "-D", "data", "-A", "trust", "-U", "longma", "-E", "UTF8", "--no-sync")
        self.start()

    def run(self, name, *words):
        user = {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []} if self.user else {}
        with (self.folder / "commands.log").open("a") as log:
            subprocess.run(
                [self.programs / name, *words], cwd=self.folder, check=True, timeout=120, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, env={**os.environ, "HOME": str(self.folder), "LC_ALL": "C"}, **user,
            )

    def start(self):
        options = f"-k {self.folder} -c listen_addresses='' -c max_connections=200"
        self.run("pg_ctl", "-D", "data", "-o", options, "-l", "server.log", "-w", "start")

    def stop(self, how="fast"):
        self.run("pg_ctl", "-D", "data", "-m", how, "-w", "stop")

    @property
    def url(self):
        return f"host={self.folder} user=longma"

    def sql(self, statement, database="postgres"):
        words = ["psql", "-h", self.folder, "-U", "longma", "-d", database, "-Atqc", statement]
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


class Service:
    """`longma placement serve` with a fake host."""

    def __init__(self, longma, folder, name, database):
        self.longma, self.state, self.name, self.database = longma, folder / name, name, database
        self.log = (folder / f"{name}.log").open("a")
        self.process = None

    def start(self):
        words = ["placement", "serve", "--all-in-one", "--hypervisor", "fake", "--machine", "hygon-8node", "--name", self.name]
        words += ["--listen", "127.0.0.1:0", "--state", self.state, "--database", self.database]
        shutil.rmtree(self.state / "client.json", ignore_errors=True)
        self.process = subprocess.Popen([self.longma, *words], stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        until(f"{self.name} answers", lambda: self.ask("hosts") is not None)

    def kill(self, how=signal.SIGKILL):
        self.process.send_signal(how)
        self.process.wait(timeout=90)

    def http(self, method, path, body=None, key=None):
        """Sends an API request; returns status, headers and body."""
        access = json.loads((self.state / "client.json").read_text())
        headers = {"authorization": f"Bearer {access['token']}", "content-type": "application/json"} | ({"idempotency-key": key} if key else {})
        request = urllib.request.Request(access["url"] + path, json.dumps(body).encode() if body else None, headers, method=method)
        try:
            answer = urllib.request.urlopen(request, timeout=30)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}, json.loads(answer.read())

    def ask(self, *words):
        """The JSON output of a command, or None if it failed."""
        words = [self.longma, "placement", *words, "--state", self.state, "--json"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        return json.loads(done.stdout) if done.returncode == 0 and done.stdout.strip() else None


def two_services(longma, server, folder, kills):
    """Two services on one database receive requests, and one is killed now and then: nothing is done twice or lost, and the audit finds
    no difference.
    """
    server.sql("CREATE DATABASE shared")
    both = [Service(longma, folder, name, f"{server.url} dbname=shared") for name in ("one", "two")]
    for service in both:
        service.start()
    until("each knows both hosts", lambda: all(len(s.ask("hosts") or []) == 2 for s in both))
    chance, answered = random.Random(7), {}
    for turn in range(kills):
        victim, other = both if chance.random() < 0.5 else both[::-1]
        busy = [
            subprocess.Popen(
                [longma, "placement", "request", f"v{turn}-{n}", "--vcpus", "2", "--memory", "64MiB",
                 *(["--cpu", "exclusive"] if n == 0 else []), "--state", (victim if n % 2 else other).state, "--json"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )
            for n in range(4)
        ]
        time.sleep(chance.random() * 0.15)
        victim.kill()
        time.sleep(chance.random() * 0.5)
        # Virtual machines on its host run again once its agent, in the same process, is back.
        victim.start()
        for n, process in enumerate(busy):
            output, _ = process.communicate(timeout=120)
            if process.returncode == 0:
                answered[f"v{turn}-{n}"] = json.loads(output)["id"]
        # Delete half of them, through the service whose agent may not own them.
        for name in [name for name in answered if chance.random() < 0.5]:
            if other.ask("delete", name) is not None:
                del answered[name]

    def agree():
        machines = {vm["request"]["name"]: vm for vm in both[0].ask("list") or []}
        return all(name in machines and machines[name]["state"] == "running" for name in answered) and machines

    until("all that was answered runs", agree, 60)
    found = both[1].ask("list")
    owners = {}
    for vm in found:
        placement = vm["placement"]
        for cell in placement["cells"] if placement and vm["request"].get("cpu") == "exclusive" else []:
            for cpu in cell["cpus"]:
                must(owners.setdefault((placement["host"], cpu), vm["id"]) == vm["id"], f"CPU {cpu} is promised twice")
    words = ["placement", "serve", "--listen", "127.0.0.1:0", "--state", folder / "other", "--database", both[0].database, "--overcommit", "300"]
    other = subprocess.run([longma, *words], capture_output=True, text=True, timeout=60)
    must(other.returncode != 0 and "start with --overcommit 200" in other.stderr, f"a service with another ratio: {other}")
    outage(server, both)
    for service in both:
        service.kill(signal.SIGTERM)
        must(service.process.returncode == 0, f"{service.name} ended with {service.process.returncode}")
    print(f"postgres: {kills} kills, {len(answered)} virtual machines kept, {len(owners)} exclusive CPUs, nothing twice")


def outage(server, both):
    """The server stops under the services and comes back: they report it with a retry time and recover without a restart."""
    for turn, how in enumerate(("fast", "immediate")):
        server.stop(how)
        for attempt in range(6):
            for service in both:
                for method, path, body in (("GET", "/v1/vms", None), ("POST", "/v1/vms", {"name": f"o{turn}", "vcpus": 1, "memory_mib": 16})):
                    status, headers, output = service.http(method, path, body, f"o{turn}")
                    must(status == 503, f"{method} without a database, attempt {attempt}: {status}: {output}")
                    must(headers.get("retry-after", "").isdigit() and "database cannot be reached" in output["title"], f"{headers} {output}")
            time.sleep(0.3)
        server.start()
        for service in both:
            until(f"{service.name} answers again", lambda: service.http("GET", "/v1/vms")[0] == 200, 15)
            made = {"name": f"o{turn}", "vcpus": 1, "memory_mib": 16}
            until("what was refused is made", lambda: service.http("POST", "/v1/vms", made, f"o{turn}")[0] in (200, 201), 15)
        found = [vm["request"]["name"] for vm in both[0].ask("list")]
        must(found.count(f"o{turn}") == 1, f"{found}: made once")
        must(all(service.process.poll() is None for service in both), "a service ended with its database")
    until("all run", lambda: all(vm["state"] == "running" for vm in both[0].ask("list")), 30)


def full_database(longma, server, folder):
    """With a full disk, the database rejects requests as a whole, and works again when there is space. The disk is a small tmpfs, which
    needs root.
    """
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size=24m,mode=700,uid={server.user.pw_uid if server.user else 0}", "longma-full", disk]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        print("skipped: placement on a full PostgreSQL: it needs root, to mount a tmpfs")
        return
    service = Service(longma, folder, "small", f"{server.url} dbname=small")
    try:
        server.sql(f"CREATE TABLESPACE small LOCATION '{disk}'")
        server.sql("CREATE DATABASE small TABLESPACE small")
        service.start()
        ballast = disk / "ballast"
        with ballast.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"x" * size):
                        pass
            # Space for some requests, or parts of them.
            file.truncate(file.tell() - (100 << 10))
        access = json.loads((service.state / "client.json").read_text())

        def request(name):
            body = json.dumps({"name": name, "vcpus": 1, "memory_mib": 16}).encode()
            headers = {"authorization": f"Bearer {access['token']}", "content-type": "application/json", "idempotency-key": name}
            try:
                with urllib.request.urlopen(urllib.request.Request(f"{access['url']}/v1/vms", body, headers), timeout=30) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                return error.code

        answered, refused = [], []
        for turn in range(1000):
            status = request(f"v{turn}")
            must(status in (201, 507), f"a full database is answered with {status}")
            (answered if status == 201 else refused).append(f"v{turn}")
            if len(refused) >= 20:
                break
        must(refused, "a full database refused nothing")
        names = {vm["request"]["name"] for vm in service.ask("list")}
        must(names == set(answered), f"{names ^ set(answered)}: answered but missing, or refused but present")
        ballast.unlink()
        for name in refused:
            until(f"{name} is made", lambda: request(name) in (200, 201))
        until("all of them run", lambda: all(vm["state"] == "running" for vm in service.ask("list")))
        until("the audit finds all as intended", lambda: service.ask("audit"))
        print(f"postgres: a full disk: {len(answered)} answered, {len(refused)} refused whole, all of them made afterwards")
    finally:
        if service.process:
            service.kill(signal.SIGTERM)
        server.sql("DROP DATABASE IF EXISTS small WITH (FORCE)")
        server.sql("DROP TABLESPACE IF EXISTS small")
        subprocess.run(["umount", "--lazy", disk], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--longma", type=pathlib.Path, help="the command: also tests two services")
    parser.add_argument("--kills", type=int, default=8, help="how often one of the two services is killed")
    arguments = parser.parse_args()
    found = programs()
    if found is None:
        print("skipped: placement on PostgreSQL: install postgresql")
        return 0
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="longma-postgres-", dir="/tmp")))
        folder.chmod(0o755)
        server_folder = folder / "server"
        server_folder.mkdir()
        server = Server(found, server_folder)
        stack.callback(server.stop)
        # Stop the server when this process is terminated.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        tests = ["cargo", "test", "--workspace", "--locked", "--test", "accounts", "--test", "store", "--test", "postgres"]
        subprocess.run(tests, cwd=ROOT, check=True, env={**os.environ, "LONGMA_TEST_POSTGRES": server.url}, timeout=1800)
        if arguments.longma:
            two_services(arguments.longma.resolve(), server, folder, arguments.kills)
            full_database(arguments.longma.resolve(), server, folder)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (CheckFailed, subprocess.SubprocessError) as error:
        sys.exit(f"postgres: {error}")
