#!/usr/bin/env python3
"""Tests `longma placement` under rare conditions: clock jumps, a full disk, a hanging libvirt, a locked or renamed database.

Clocks are changed with libfaketime, for the service and the agent only; the monotonic clock stays correct, as with a real clock step. The
full disk is a small tmpfs, which needs root. The hanging libvirt is a script in place of virsh. Tests that the machine cannot run are
skipped with a note. Source: libfaketime's README; tmpfs(5).
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

from placement_kills import Deployment, CheckFailed, free_port, must, until

HOUR = 3600
# An agent is missed after 30 s of silence, checked every 5 s.
SILENCE = (25, 45)


def faketime():
    """libfaketime's library for programs with threads, or None."""
    found = sorted(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return found[0] if found else None


class ShiftedDeployment(Deployment):
    """A service and an agent whose clock is offset by the number of seconds in a file."""

    def __init__(self, longma, folder, library):
        self.library, self.shift = library, folder / "shift"
        self.set_clock(0)
        super().__init__(longma, folder)

    def set_clock(self, seconds):
        beside = self.shift.with_suffix(".new")
        beside.write_text(f"{seconds:+d}\n")
        beside.replace(self.shift)

    def start(self, *words):
        clock = {"LD_PRELOAD": str(self.library), "FAKETIME_TIMESTAMP_FILE": str(self.shift), "FAKETIME_NO_CACHE": "1"}
        clock |= {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
        return subprocess.Popen(
            [self.longma, "placement", *words], stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL,
            env={**os.environ, **clock},
        )

    def host_is(self, status):
        return self.ask("GET", "/v1/hosts/h1")[1]["status"] == status

    def alarms(self):
        return [alarm["kind"] for alarm in self.ask("GET", "/v1/alarms")[1]["items"]]


def request(deployment, name, key=None, cpu="range"):
    return deployment.ask("POST", "/v1/vms", {"name": name, "vcpus": 1, "memory_mib": 64, "cpu": cpu}, key)


def runs(deployment, name):
    return deployment.ask("GET", f"/v1/vms/{name}")[1].get("state") == "running"


def clocks(longma, library):
    """After each clock jump everything keeps working, and a dead agent is missed after 30 s, not sooner."""
    with tempfile.TemporaryDirectory(prefix="longma-clocks-") as folder:
        deployment = ShiftedDeployment(longma, pathlib.Path(folder), library)
        try:
            status, first = request(deployment, "first", "k-first")
            must(status == 201, f"the first request: {status}")
            for turn, hours in enumerate([6, -12, 3, -1]):
                deployment.set_clock(hours * HOUR)
                status, token = deployment.ask("POST", "/v1/tokens", {"name": f"t{turn}", "role": "operator"})
                must(status in (200, 201), f"a token: {status}")
                made = next(t for t in deployment.ask("GET", "/v1/tokens")[1]["items"] if t["name"] == f"t{turn}")
                must(abs(made["created_at"] - time.time() - hours * HOUR) < 60, "the service's clock has not jumped")
                status, again = request(deployment, "first", "k-first")
                must(status in (200, 201) and again["id"] == first["id"], f"{hours} h: one key made two: {status} {again}")
                status, vm = request(deployment, f"v{turn}")
                must(status == 201, f"{hours} h: a request: {status}")
                until(f"{hours} h: it runs", lambda: runs(deployment, f"v{turn}"), 5)
                status, _ = deployment.ask("POST", f"/v1/vms/v{turn}/rebind", {})
                must(status == 200, f"{hours} h: a move: {status}")
                end = time.monotonic() + 12
                while time.monotonic() < end:
                    must(deployment.host_is("up") and not deployment.alarms(), f"{hours} h: the host is taken to be silent: {deployment.alarms()}")
                    time.sleep(0.5)
            deployment.agent.kill()
            deployment.agent.wait(timeout=30)
            deployment.set_clock(-5 * HOUR)
            took = until("a dead agent is missed", lambda: deployment.host_is("down"), SILENCE[1])
            must(took > SILENCE[0], f"an agent is missed after {took:.0f} s already")
            must("agent-silent" in deployment.alarms(), "no alarm says so")
            deployment.agent = deployment.start_agent()
            until("it is back", lambda: deployment.host_is("up") and "agent-silent" not in deployment.alarms(), 20)
            must(all(runs(deployment, name) for name in ("first", "v0", "v3")), "something does not run any more")
            must(deployment.ask("GET", "/v1/audit")[1]["database"] == [], "the database contradicts itself")
        finally:
            deployment.end()
    print(f"odd: 5 jumps of the clock, nothing lost; a dead agent was missed after {took:.0f} s")


@contextlib.contextmanager
def small_disk(folder, size):
    """Mounts a small file system at a folder; None, with a note, if that is not possible."""
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "longma-full", folder], capture_output=True
    ).returncode == 0
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", folder], check=True)


def fill(ballast, room=0):
    """Writes until no more than this many bytes are free."""
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
        file.truncate(file.tell() - room)


def full(longma):
    """On a full disk, write requests are rejected as a whole and reads work; with free space, everything works again."""
    with tempfile.TemporaryDirectory(prefix="longma-full-") as folder:
        folder = pathlib.Path(folder)
        state = folder / "state"
        state.mkdir()
        with small_disk(state, "4m") as mounted:
            if not mounted:
                print("skipped: placement on a full disk: it needs root, to mount a tmpfs")
                return
            deployment = Deployment(longma, folder)
            try:
                answered, refused, began = {}, [], time.monotonic()
                must(request(deployment, "before")[0] == 201, "the first request")
                fill(state / "ballast", 300 << 10)
                for turn in range(400):
                    name = f"v{turn}"
                    status, content = request(deployment, name, f"k-{name}")
                    if status == 201:
                        answered[name] = content["id"]
                    else:
                        must(status == 507, f"a full disk is answered with {status}: {content}")
                        must("nothing was changed" in content["detail"], content)
                        refused.append(name)
                    if len(refused) >= 20:
                        break
                must(refused, f"{len(answered)} requests on a full disk and none refused")
                names = {vm["request"]["name"] for vm in deployment.machines()}
                must(names == {"before", *answered}, f"{names ^ {'before', *answered}}: answered but missing, or refused but present")
                must(deployment.ask("GET", "/v1/hosts/h1")[0] == 200, "reads still work")
                # It is killed on the full disk and starts again: answered requests are kept, and requests that need space
                # are rejected.
                fill(state / "ballast")
                for _ in range(2):
                    deployment.service.kill()
                    deployment.service.wait(timeout=30)
                    deployment.service = deployment.start_service()
                must({vm["request"]["name"] for vm in deployment.machines()} == names, "started on a full disk it knows others")
                must(request(deployment, "without-room")[0] == 507, "a full disk after a start")
                # At another address, which is recorded when there is space.
                first, deployment.port = deployment.port, free_port()
                deployment.service.kill()
                deployment.service.wait(timeout=30)
                deployment.service = deployment.start_service()
                fill(state / "ballast")
                must(str(deployment.port) not in (state / "client.json").read_text(), "there was room for an address")
                (state / "ballast").unlink()
                until("its address is written down", lambda: str(deployment.port) in (state / "client.json").read_text(), 20)
                deployment.port = first
                deployment.service.kill()
                deployment.service.wait(timeout=30)
                deployment.service = deployment.start_service()
                until("all agree with room", deployment.agrees, 20)
                fill(state / "ballast")
                more = itertools.count()
                until("it is full again", lambda: request(deployment, f"w{next(more)}")[0] == 507, 60)
                (state / "ballast").unlink()
                for name in refused:
                    until(f"{name} is made", lambda: request(deployment, name, f"k-{name}")[0] in (200, 201), 10)
                until("all agree again, with nothing started anew", deployment.agrees, 20)
                must(all(runs(deployment, name) for name in [*answered, *refused]), "something does not run")
            finally:
                deployment.end()
    print(f"odd: a full disk: {len(answered)} answered, {len(refused)} refused whole, all of them made afterwards, {time.monotonic() - began:.0f} s")


# Lists the domains, but hangs on queries about one. Its child processes hold the output open.
HANGS = """#!/bin/sh
case "$*" in *version*|*list*) exit 0;; esac
echo $$ >> {folder}/called
sleep 1000
true
"""


def hangs(longma):
    """Ten virtual machines wait for a hanging libvirt. The service and a separate agent stop when asked, and leave no processes."""
    with tempfile.TemporaryDirectory(prefix="longma-hangs-") as folder:
        folder = pathlib.Path(folder)
        (folder / "virsh").write_text(HANGS.format(folder=folder))
        (folder / "virsh").chmod(0o755)
        path = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        log, called = (folder / "log").open("a"), folder / "called"

        def begin(*words):
            called.unlink(missing_ok=True)
            return subprocess.Popen(
                [longma, "placement", *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=path, cwd=folder
            )

        def say(*words):
            done = subprocess.run([longma, "placement", *words, "--state", folder / "state"], capture_output=True, text=True, timeout=60)
            return done.stdout if done.returncode == 0 else None

        def end(process):
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            code = process.wait(timeout=60)
            must(code == 0, f"it ended with {code}")
            took = time.monotonic() - began
            must(took <= 10, f"it ended after {took:.0f} s")
            left = [group for group in map(int, called.read_text().split()) if is_there(group)]
            must(not left, f"{left}: processes that it started still run")
            return took

        host = ["--virtualization", "software", "--name", "h1"]
        serve = ["serve", "--listen", "127.0.0.1:0", "--state", "state", "--overcommit", "10000"]
        service = begin(*serve, "--all-in-one", *host)
        agent, took = None, []
        try:
            until("the host is registered", lambda: "h1" in (say("hosts") or ""), 30)
            for number in range(10):
                say("request", f"v{number}", "--vcpus", "1", "--memory", "16MiB", "--patience", "0")
            must(len(json.loads(say("list", "--json"))) == 10, "ten wait")
            until("libvirt is called", called.exists, 30)
            took.append(end(service))
            service = begin(*serve)
            until("the service answers", lambda: say("list") is not None, 30)
            (folder / "token").write_text(say("token", "add", "agent", "--role", "agent", "--host", "h1"))
            access = json.loads((folder / "state" / "client.json").read_text())
            agent = begin("agent", "--server", access["url"], "--token-file", "token", *host)
            until("libvirt is called again", called.exists, 60)
            took.append(end(agent))
        finally:
            for process in filter(None, (agent, service)):
                process.kill()
                process.wait(timeout=30)
            for group in map(int, called.read_text().split() if called.exists() else []):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
    print(f"odd: a libvirt that hangs: the service ended within {took[0]:.0f} s, an agent within {took[1]:.0f} s")


def is_there(group):
    """Whether a process of a group is alive."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                return True
    return False


def locked(longma):
    """Another process locks the database: changes are rejected with a retry time, reads work, and everything works afterwards."""
    with tempfile.TemporaryDirectory(prefix="longma-locked-") as folder:
        folder = pathlib.Path(folder)
        deployment = Deployment(longma, folder)
        try:
            must(request(deployment, "before")[0] == 201, "the first request")
            other = sqlite3.connect(folder / "state" / "placement.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            status, content = request(deployment, "during", "k")
            must(status == 503 and content["title"] == "busy", f"a locked database is answered with {status}: {content}")
            must(deployment.headers.get("retry-after", "").isdigit(), f"{deployment.headers}: when to ask again")
            must(deployment.ask("GET", "/v1/vms/before")[0] == 200, "reads still work")
            other.execute("ROLLBACK")
            other.close()
            until("it is made", lambda: request(deployment, "during", "k")[0] == 201, 15)
            until("both run", lambda: runs(deployment, "before") and runs(deployment, "during"), 30)
        finally:
            deployment.end()
    print("odd: a locked database: refused with the time to ask again, made afterwards")


def two_names(longma):
    """A second service cannot open the same database under another name."""
    with tempfile.TemporaryDirectory(prefix="longma-names-") as folder:
        folder = pathlib.Path(folder)
        deployment = Deployment(longma, folder)
        state = folder / "state"

        def refused(home, why):
            words = [longma, "placement", "serve", "--listen", "127.0.0.1:0", "--state", home]
            try:
                done = subprocess.run(words, capture_output=True, text=True, timeout=20, cwd=folder)
            except subprocess.TimeoutExpired:
                raise CheckFailed(f"a second service runs as {home}") from None
            must(done.returncode != 0 and why in done.stderr, f"{home}: {done.returncode}: {done.stderr}")

        try:
            (folder / "linked").symlink_to(state)
            for home in ("state", "linked", "linked/../state"):
                refused(home, "another service uses this directory")
            for name, make in (("soft", os.symlink), ("hard", os.link)):
                (folder / name).mkdir()
                make(state / "placement.db", folder / name / "placement.db")
                refused(name, "another service uses this database")
            must(request(deployment, "after")[0] == 201, "the first one continues")
            # After a crash, the log exists under the first name only.
            deployment.service.kill()
            deployment.service.wait(timeout=30)
            refused("hard", "hard links")
            (folder / "hard" / "placement.db").unlink()
            deployment.service = deployment.start_service()
            until("it is the only name again", lambda: runs(deployment, "after"), 30)
        finally:
            deployment.end()
    print("odd: one database by five names: one service")


def lower_ratio(longma):
    """A service started with an overcommit ratio below the promised one says which ratio is needed."""
    with tempfile.TemporaryDirectory(prefix="longma-ratio-") as folder:
        deployment = Deployment(longma, pathlib.Path(folder))
        try:
            for n in itertools.count():
                body = {"name": f"v{n}", "vcpus": 16, "virtual_nodes": 1, "memory_mib": 64, "cpu": "range"}
                if deployment.ask("POST", "/v1/vms", body)[0] != 201:
                    break
            must(n > 8, f"{n} virtual machines of 16 virtual CPUs: that is not overcommitted")
            deployment.service.terminate()
            deployment.service.wait(timeout=60)
            words = [longma, "placement", "serve", "--listen", "127.0.0.1:0", "--state", pathlib.Path(folder) / "state", "--overcommit", "100"]
            done = subprocess.run(words, capture_output=True, text=True, timeout=60)
            must(done.returncode != 0 and "start with --overcommit 200" in done.stderr, f"{done}")
        finally:
            deployment.end()
    print("odd: a ratio below what is promised: the one that is needed is named")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--longma", type=pathlib.Path, required=True, help="the command")
    longma = parser.parse_args().longma.resolve()
    # Stop the processes when this one is terminated.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    hangs(longma)
    locked(longma)
    two_names(longma)
    lower_ratio(longma)
    full(longma)
    library = faketime()
    if library is None:
        print("skipped: placement under a clock that jumps: install faketime")
    else:
        clocks(longma, library)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (CheckFailed, subprocess.SubprocessError) as error:
        sys.exit(f"odd: {error}")
