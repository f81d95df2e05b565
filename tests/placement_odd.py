#!/usr/bin/env python3
"""Tests `longma placement` under what seldom happens to a machine: its clock jumps by hours, forwards and backwards, and its disk is full.

Clocks are libfaketime's, for the service and the agent only, and the monotonic one is left alone, as a real step of the clock leaves it. The
full disk is a small tmpfs, which needs root. What the machine cannot do is left out with a line. Source: libfaketime's README; tmpfs(5).
"""

import argparse
import contextlib
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from placement_kills import House, Wrong, must, until

HOUR = 3600
# An agent that is silent for 30 s is looked for every 5 s.
SILENCE = (25, 45)


def faketime():
    """The library for programs with threads, or None."""
    found = sorted(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return found[0] if found else None


class ShiftedHouse(House):
    """A service and an agent whose clock is off by as many seconds as a file says."""

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


def request(house, name, key=None, cpu="range"):
    return house.ask("POST", "/v1/vms", {"name": name, "vcpus": 1, "memory_mib": 64, "cpu": cpu}, key)


def runs(house, name):
    return house.ask("GET", f"/v1/vms/{name}")[1].get("state") == "running"


def clocks(longma, library):
    """After each jump everything goes on, and an agent that dies is still missed after 30 s and no sooner."""
    with tempfile.TemporaryDirectory(prefix="longma-clocks-") as folder:
        house = ShiftedHouse(longma, pathlib.Path(folder), library)
        try:
            status, first = request(house, "first", "k-first")
            must(status == 201, f"the first request: {status}")
            for turn, hours in enumerate([6, -12, 3, -1]):
                house.set_clock(hours * HOUR)
                status, token = house.ask("POST", "/v1/tokens", {"name": f"t{turn}", "role": "operator"})
                must(status in (200, 201), f"a token: {status}")
                made = next(t for t in house.ask("GET", "/v1/tokens")[1]["items"] if t["name"] == f"t{turn}")
                must(abs(made["created_at"] - time.time() - hours * HOUR) < 60, "the service's clock has not jumped")
                status, again = request(house, "first", "k-first")
                must(status in (200, 201) and again["id"] == first["id"], f"{hours} h: one key made two: {status} {again}")
                status, vm = request(house, f"v{turn}")
                must(status == 201, f"{hours} h: a request: {status}")
                until(f"{hours} h: it runs", lambda: runs(house, f"v{turn}"), 5)
                status, _ = house.ask("POST", f"/v1/vms/v{turn}/rebind", {})
                must(status == 200, f"{hours} h: a move: {status}")
                end = time.monotonic() + 12
                while time.monotonic() < end:
                    must(house.host_is("up") and not house.alarms(), f"{hours} h: the host is taken to be silent: {house.alarms()}")
                    time.sleep(0.5)
            house.agent.kill()
            house.agent.wait(timeout=30)
            house.set_clock(-5 * HOUR)
            took = until("a dead agent is missed", lambda: house.host_is("down"), SILENCE[1])
            must(took > SILENCE[0], f"an agent is missed after {took:.0f} s already")
            must("agent-silent" in house.alarms(), "no alarm says so")
            house.agent = house.start_agent()
            until("it is back", lambda: house.host_is("up") and "agent-silent" not in house.alarms(), 20)
            must(all(runs(house, name) for name in ("first", "v0", "v3")), "something does not run any more")
            must(house.ask("GET", "/v1/audit")[1]["database"] == [], "the database contradicts itself")
        finally:
            house.end()
    print(f"odd: 5 jumps of the clock, nothing lost; a dead agent was missed after {took:.0f} s")


@contextlib.contextmanager
def small_disk(folder, size):
    """A file system of its own at a folder; says so with None where none can be had."""
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "longma-full", folder], capture_output=True
    ).returncode == 0
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", folder], check=True)


def fill(ballast, room=0):
    """Writes until there is no more than so many bytes of room."""
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
        file.truncate(file.tell() - room)


def full(longma):
    """With no room left, requests are refused whole and reading goes on; with room again, everything does."""
    with tempfile.TemporaryDirectory(prefix="longma-full-") as folder:
        folder = pathlib.Path(folder)
        state = folder / "state"
        state.mkdir()
        with small_disk(state, "4m") as there:
            if not there:
                print("left out: placement on a full disk: it needs root and a tmpfs of its own")
                return
            house = House(longma, folder)
            try:
                answered, refused, began = {}, [], time.monotonic()
                must(request(house, "before")[0] == 201, "the first request")
                fill(state / "ballast", 300 << 10)
                for turn in range(400):
                    name = f"v{turn}"
                    status, said = request(house, name, f"k-{name}")
                    if status == 201:
                        answered[name] = said["id"]
                    else:
                        must(status == 507, f"a full disk is answered with {status}: {said}")
                        must("nothing was done" in said["detail"], said)
                        refused.append(name)
                    if len(refused) >= 20:
                        break
                must(refused, f"{len(answered)} requests on a full disk and none refused")
                names = {vm["request"]["name"] for vm in house.machines()}
                must(names == {"before", *answered}, f"{names ^ {'before', *answered}}: answered and not there, or refused and there")
                must(house.ask("GET", "/v1/hosts/h1")[0] == 200, "reading goes on")
                # It dies with no room left, and is started when there is some.
                house.service.kill()
                house.service.wait(timeout=30)
                (state / "ballast").unlink()
                house.service = house.start_service()
                until("all agree with room", house.agrees, 20)
                fill(state / "ballast")
                more = itertools.count()
                until("it is full again", lambda: request(house, f"w{next(more)}")[0] == 507, 60)
                (state / "ballast").unlink()
                for name in refused:
                    until(f"{name} is made", lambda: request(house, name, f"k-{name}")[0] in (200, 201), 10)
                until("all agree again, with nothing started anew", house.agrees, 20)
                must(all(runs(house, name) for name in [*answered, *refused]), "something does not run")
            finally:
                house.end()
    print(f"odd: a full disk: {len(answered)} answered, {len(refused)} refused whole, all of them made afterwards, {time.monotonic() - began:.0f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--longma", type=pathlib.Path, required=True, help="the command")
    longma = parser.parse_args().longma.resolve()
    # Whatever stops this stops the processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    full(longma)
    library = faketime()
    if library is None:
        print("left out: placement under a clock that jumps: install faketime")
    else:
        clocks(longma, library)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Wrong, subprocess.SubprocessError) as error:
        sys.exit(f"odd: {error}")
