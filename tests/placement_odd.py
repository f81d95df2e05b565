#!/usr/bin/env python3
"""Tests `longma placement` under rare conditions: clock jumps, a full disk, a hanging libvirt, a locked or renamed database.

libfaketime changes the wall clock of the service and the agent only. Their monotonic clock stays correct, as after a real clock step. The
full disk is a small tmpfs, which needs root. A script that hangs replaces virsh. Tests that the host cannot run are skipped with a message.
Source: libfaketime's README; tmpfs(5).
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
# The service reports a host as down after 30 s without a message from its agent. It checks every 5 s.
MIN_SILENCE_S, MAX_SILENCE_S = 25, 45


def faketime():
    """The path of libfaketime's library for programs with threads, or None."""
    found = sorted(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return found[0] if found else None


class ShiftedDeployment(Deployment):
    """A service and an agent whose wall clocks are shifted by the number of seconds in a file."""

    def __init__(self, longma, folder, library):
        self.library, self.shift = library, folder / "shift"
        self.set_clock(0)
        super().__init__(longma, folder)

    def set_clock(self, seconds):
        replacement = self.shift.with_suffix(".new")
        replacement.write_text(f"{seconds:+d}\n")
        replacement.replace(self.shift)

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


def is_running(deployment, name):
    return deployment.ask("GET", f"/v1/vms/{name}")[1].get("state") == "running"


def test_clock_jumps(longma, library):
    """After each clock jump, requests, moves and heartbeats work. The service reports the host of a killed agent after 30 s, not sooner."""
    with tempfile.TemporaryDirectory(prefix="longma-clocks-") as folder:
        deployment = ShiftedDeployment(longma, pathlib.Path(folder), library)
        try:
            status, first = request(deployment, "first", "k-first")
            must(status == 201, f"the first request got status {status}")
            for turn, hours in enumerate([6, -12, 3, -1]):
                deployment.set_clock(hours * HOUR)
                status, token = deployment.ask("POST", "/v1/tokens", {"name": f"t{turn}", "role": "operator"})
                must(status in (200, 201), f"{hours} h: the request for a token got status {status}")
                made = next(t for t in deployment.ask("GET", "/v1/tokens")[1]["items"] if t["name"] == f"t{turn}")
                must(abs(made["created_at"] - time.time() - hours * HOUR) < 60, f"{hours} h: the service's clock did not jump")
                status, again = request(deployment, "first", "k-first")
                must(status in (200, 201) and again["id"] == first["id"], f"{hours} h: a repeated idempotency key created a second virtual machine: {status} {again}")
                status, vm = request(deployment, f"v{turn}")
                must(status == 201, f"{hours} h: a request got status {status}")
                until(f"{hours} h: the new virtual machine runs", lambda: is_running(deployment, f"v{turn}"), 5)
                status, _ = deployment.ask("POST", f"/v1/vms/v{turn}/rebind", {})
                must(status == 200, f"{hours} h: a move got status {status}")
                end = time.monotonic() + 12
                while time.monotonic() < end:
                    must(deployment.host_is("up") and not deployment.alarms(), f"{hours} h: the host is down or has alarms: {deployment.alarms()}")
                    time.sleep(0.5)
            deployment.agent.kill()
            deployment.agent.wait(timeout=30)
            deployment.set_clock(-5 * HOUR)
            took = until("the host of the killed agent is down", lambda: deployment.host_is("down"), MAX_SILENCE_S)
            must(took > MIN_SILENCE_S, f"the host is down after only {took:.0f} s without its agent")
            must("agent-silent" in deployment.alarms(), "there is no alarm agent-silent")
            deployment.agent = deployment.start_agent()
            until("the host is up again", lambda: deployment.host_is("up") and "agent-silent" not in deployment.alarms(), 20)
            must(all(is_running(deployment, name) for name in ("first", "v0", "v3")), "a virtual machine no longer runs")
            must(deployment.ask("GET", "/v1/audit")[1]["database"] == [], "the audit finds errors in the database")
        finally:
            deployment.end()
    print(f"placement_odd: 5 clock jumps lost nothing; a host was down {took:.0f} s after its agent was killed")


@contextlib.contextmanager
def small_disk(folder, size):
    """Mounts a tmpfs of this size at a folder; yields None if that is not possible."""
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "longma-full", folder], capture_output=True
    ).returncode == 0
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", folder], check=True)


def fill_disk(ballast, free_bytes=0):
    """Appends to the file `ballast` until the disk is full, then frees this many bytes."""
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
        file.truncate(file.tell() - free_bytes)


def test_full_disk(longma):
    """On a full disk, the service rejects writes without partial effects and serves reads. With free space, all requests work again."""
    with tempfile.TemporaryDirectory(prefix="longma-full-") as folder:
        folder = pathlib.Path(folder)
        state = folder / "state"
        state.mkdir()
        with small_disk(state, "4m") as mounted:
            if not mounted:
                print("skipped: placement on a full disk: mounting a tmpfs needs root")
                return
            deployment = Deployment(longma, folder)
            try:
                accepted, rejected, start = {}, [], time.monotonic()
                must(request(deployment, "before")[0] == 201, "the first request was rejected")
                fill_disk(state / "ballast", free_bytes=300 << 10)
                for turn in range(400):
                    name = f"v{turn}"
                    status, content = request(deployment, name, f"k-{name}")
                    if status == 201:
                        accepted[name] = content["id"]
                    else:
                        must(status == 507, f"a request on a full disk got status {status}: {content}")
                        must("nothing was changed" in content["detail"], content)
                        rejected.append(name)
                    if len(rejected) >= 20:
                        break
                must(rejected, f"{len(accepted)} requests on a full disk were accepted and none rejected")
                names = {vm["request"]["name"] for vm in deployment.machines()}
                must(names == {"before", *accepted}, f"{names ^ {'before', *accepted}}: accepted but missing, or rejected but present")
                must(deployment.ask("GET", "/v1/hosts/h1")[0] == 200, "a read failed on a full disk")
                # Kill and restart the service on the full disk: it keeps the accepted requests, and rejects requests that
                # need space.
                fill_disk(state / "ballast")
                for _ in range(2):
                    deployment.service.kill()
                    deployment.service.wait(timeout=30)
                    deployment.service = deployment.start_service()
                must({vm["request"]["name"] for vm in deployment.machines()} == names, "a restart on a full disk changed the virtual machines")
                # A restart can shorten the database's log, which makes room for one request.
                fill_disk(state / "ballast")
                must(request(deployment, "without-space")[0] == 507, "a request on a full disk was accepted after a restart")
                # Restart the service at another address, which it records as soon as there is space.
                first, deployment.port = deployment.port, free_port()
                deployment.service.kill()
                deployment.service.wait(timeout=30)
                deployment.service = deployment.start_service()
                fill_disk(state / "ballast")
                must(str(deployment.port) not in (state / "client.json").read_text(), "the new address was recorded on a full disk")
                (state / "ballast").unlink()
                until("the new address is recorded", lambda: str(deployment.port) in (state / "client.json").read_text(), 20)
                deployment.port = first
                deployment.service.kill()
                deployment.service.wait(timeout=30)
                deployment.service = deployment.start_service()
                until("service, agent and hypervisor agree", deployment.agrees, 20)
                fill_disk(state / "ballast")
                numbers = itertools.count()
                until("the disk is full again", lambda: request(deployment, f"w{next(numbers)}")[0] == 507, 60)
                (state / "ballast").unlink()
                for name in rejected:
                    until(f"{name} is accepted", lambda: request(deployment, name, f"k-{name}")[0] in (200, 201), 10)
                until("service, agent and hypervisor agree again", deployment.agrees, 20)
                must(all(is_running(deployment, name) for name in [*accepted, *rejected]), "a virtual machine does not run")
            finally:
                deployment.end()
    print(f"placement_odd: full disk: {len(accepted)} requests accepted, {len(rejected)} rejected and accepted later, {time.monotonic() - start:.0f} s")


# A virsh that lists the domains, but hangs on queries about one. Its child process keeps the output pipe open.
HANGING_VIRSH = """#!/bin/sh
case "$*" in *version*|*list*) exit 0;; esac
echo $$ >> {folder}/called
sleep 1000
true
"""


def test_hanging_libvirt(longma):
    """While ten virtual machines wait for a hanging libvirt, the service and a separate agent stop on SIGTERM and leave no processes."""
    with tempfile.TemporaryDirectory(prefix="longma-hangs-") as folder:
        folder = pathlib.Path(folder)
        (folder / "virsh").write_text(HANGING_VIRSH.format(folder=folder))
        (folder / "virsh").chmod(0o755)
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        log, called = (folder / "log").open("a"), folder / "called"

        def start(*words):
            called.unlink(missing_ok=True)
            return subprocess.Popen(
                [longma, "placement", *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, cwd=folder
            )

        def run(*words):
            done = subprocess.run([longma, "placement", *words, "--state", folder / "state"], capture_output=True, text=True, timeout=60)
            return done.stdout if done.returncode == 0 else None

        def stop(process):
            begin = time.monotonic()
            process.send_signal(signal.SIGTERM)
            code = process.wait(timeout=60)
            must(code == 0, f"the process exited with {code}")
            took = time.monotonic() - begin
            must(took <= 10, f"the process took {took:.0f} s to stop")
            left = [group for group in map(int, called.read_text().split()) if is_alive(group)]
            must(not left, f"process groups {left} still run")
            return took

        host = ["--virtualization", "software", "--name", "h1"]
        serve = ["serve", "--listen", "127.0.0.1:0", "--state", "state", "--overcommit", "10000"]
        service = start(*serve, "--all-in-one", *host)
        agent, took = None, []
        try:
            until("the host is registered", lambda: "h1" in (run("hosts") or ""), 30)
            for number in range(10):
                run("request", f"v{number}", "--vcpus", "1", "--memory", "16MiB", "--patience", "0")
            must(len(json.loads(run("list", "--json"))) == 10, "the service does not list ten virtual machines")
            until("libvirt is called", called.exists, 30)
            took.append(stop(service))
            service = start(*serve)
            until("the service answers", lambda: run("list") is not None, 30)
            (folder / "token").write_text(run("token", "add", "agent", "--role", "agent", "--host", "h1"))
            connection = json.loads((folder / "state" / "client.json").read_text())
            agent = start("agent", "--server", connection["url"], "--token-file", "token", *host)
            until("libvirt is called again", called.exists, 60)
            took.append(stop(agent))
        finally:
            for process in filter(None, (agent, service)):
                process.kill()
                process.wait(timeout=30)
            for group in map(int, called.read_text().split() if called.exists() else []):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
    print(f"placement_odd: hanging libvirt: the service stopped in {took[0]:.0f} s, the agent in {took[1]:.0f} s")


def is_alive(group):
    """Whether a process group contains a process that is not a zombie."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, process_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(process_group) == group and state != "Z":
                return True
    return False


def test_locked_database(longma):
    """While another process locks the database, the service rejects changes with a retry time and serves reads. Afterwards changes work."""
    with tempfile.TemporaryDirectory(prefix="longma-locked-") as folder:
        folder = pathlib.Path(folder)
        deployment = Deployment(longma, folder)
        try:
            must(request(deployment, "before")[0] == 201, "the first request was rejected")
            other = sqlite3.connect(folder / "state" / "placement.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            status, content = request(deployment, "during", "k")
            must(status == 503 and content["title"] == "busy", f"a change of a locked database got status {status}: {content}")
            must(deployment.headers.get("retry-after", "").isdigit(), f"the response has no retry time: {deployment.headers}")
            must(deployment.ask("GET", "/v1/vms/before")[0] == 200, "a read of a locked database failed")
            other.execute("ROLLBACK")
            other.close()
            until("the repeated request is accepted", lambda: request(deployment, "during", "k")[0] == 201, 15)
            until("both virtual machines run", lambda: is_running(deployment, "before") and is_running(deployment, "during"), 30)
        finally:
            deployment.end()
    print("placement_odd: locked database: a request was rejected with a retry time and accepted later")


def test_database_under_two_names(longma):
    """A second service cannot open the same database under another name."""
    with tempfile.TemporaryDirectory(prefix="longma-names-") as folder:
        folder = pathlib.Path(folder)
        deployment = Deployment(longma, folder)
        state = folder / "state"

        def must_refuse(state_folder, reason):
            words = [longma, "placement", "serve", "--listen", "127.0.0.1:0", "--state", state_folder]
            try:
                done = subprocess.run(words, capture_output=True, text=True, timeout=20, cwd=folder)
            except subprocess.TimeoutExpired:
                raise CheckFailed(f"a second service runs on {state_folder}") from None
            must(done.returncode != 0 and reason in done.stderr, f"{state_folder}: exit {done.returncode}: {done.stderr}")

        try:
            (folder / "linked").symlink_to(state)
            for alias in ("state", "linked", "linked/../state"):
                must_refuse(alias, "another service uses this directory")
            for name, make in (("soft", os.symlink), ("hard", os.link)):
                (folder / name).mkdir()
                make(state / "placement.db", folder / name / "placement.db")
                must_refuse(name, "another service uses this database")
            must(request(deployment, "after")[0] == 201, "the first service rejected a request")
            # After a crash, the write-ahead log exists under the first name only.
            deployment.service.kill()
            deployment.service.wait(timeout=30)
            must_refuse("hard", "hard links")
            (folder / "hard" / "placement.db").unlink()
            deployment.service = deployment.start_service()
            until("the restarted service works without the other name", lambda: is_running(deployment, "after"), 30)
        finally:
            deployment.end()
    print("placement_odd: five names of one database admit one service")


def test_lower_overcommit_ratio(longma):
    """A service started with an overcommit ratio too low for its virtual machines reports the ratio that they need."""
    with tempfile.TemporaryDirectory(prefix="longma-ratio-") as folder:
        deployment = Deployment(longma, pathlib.Path(folder))
        try:
            for n in itertools.count():
                body = {"name": f"v{n}", "vcpus": 16, "virtual_nodes": 1, "memory_mib": 64, "cpu": "range"}
                if deployment.ask("POST", "/v1/vms", body)[0] != 201:
                    break
            must(n > 8, f"only {n} virtual machines of 16 virtual CPUs fit: the host is not overcommitted")
            deployment.service.terminate()
            deployment.service.wait(timeout=60)
            words = [longma, "placement", "serve", "--listen", "127.0.0.1:0", "--state", pathlib.Path(folder) / "state", "--overcommit", "100"]
            done = subprocess.run(words, capture_output=True, text=True, timeout=60)
            must(done.returncode != 0 and "start with --overcommit 200" in done.stderr, f"{done}")
        finally:
            deployment.end()
    print("placement_odd: a service with too low an overcommit ratio reports the ratio that it needs")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--longma", type=pathlib.Path, required=True, help="path of the command")
    longma = parser.parse_args().longma.resolve()
    # Exit through the `finally` blocks, which stop the processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    test_hanging_libvirt(longma)
    test_locked_database(longma)
    test_database_under_two_names(longma)
    test_lower_overcommit_ratio(longma)
    test_full_disk(longma)
    library = faketime()
    if library is None:
        print("skipped: placement under clock jumps: install faketime")
    else:
        test_clock_jumps(longma, library)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (CheckFailed, subprocess.SubprocessError) as error:
        sys.exit(f"placement_odd: {error}")
