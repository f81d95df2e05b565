#!/usr/bin/env python3
"""Tests `longma placement` against kill -9 of the service, the agent or both.

The test kills processes at random times while clients create, move, stop and delete virtual machines, and restarts them. Within half a minute
the database, the agent and the hypervisor must agree: no virtual machine changes its state any more, the audit finds nothing, every accepted
request has taken effect exactly once, and no CPU belongs to two virtual machines. The hypervisor is the fake one. It keeps its domains in a
file, so that they outlive the agent as libvirt's do. `libvirt.py` tests libvirt.
"""

import argparse
import http.client
import json
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

AGREEMENT_LIMIT_S = 30  # An idle host needs a third of this; other tests run beside this one.
AT_REST = {"running", "stopped", "failed"}


class CheckFailed(Exception):
    """A failed check."""


def must(condition, message):
    """Fails with this message, which describes the failure, unless the condition holds."""
    if not condition:
        raise CheckFailed(message)


def until(what, condition, seconds):
    """Waits until a condition holds, which `what` describes. Returns the waiting time in seconds."""
    begin, last = time.monotonic(), None
    while time.monotonic() - begin < seconds:
        try:
            if condition():
                return time.monotonic() - begin
        except (OSError, http.client.HTTPException) as error:
            last = error
        time.sleep(0.05)
    raise CheckFailed(f"{what}: not within {seconds} s ({last})")


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


class Deployment:
    """The service and the agent of one simulated host, each in its own process."""

    def __init__(self, longma, folder):
        self.longma, self.folder, self.port = longma, folder, free_port()
        self.log = (folder / "log").open("a")
        self.token, self.headers = None, {}
        self.service = self.start_service()
        self.token = json.loads((folder / "state" / "client.json").read_text())["token"]
        made = self.ask("POST", "/v1/tokens", {"name": "agent", "role": "agent", "scope": "h1"})[1]
        (folder / "agent.token").write_text(made["token"])
        self.agent = self.start_agent()
        until("the host is registered", lambda: self.ask("GET", "/v1/hosts/h1")[0] == 200, 30)

    def start(self, *words):
        return subprocess.Popen([self.longma, "placement", *words], stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)

    def start_service(self):
        started = self.start("serve", "--state", self.folder / "state", "--listen", f"127.0.0.1:{self.port}")
        until("the service answers", lambda: self.ask("GET", "/healthz")[0] == 200, 60)
        return started

    def start_agent(self):
        host = ["--hypervisor", "fake", "--machine", "hygon-8node", "--name", "h1", "--domains", self.folder / "domains"]
        return self.start("agent", "--server", f"http://127.0.0.1:{self.port}", "--token-file", self.folder / "agent.token", *host)

    def ask(self, method, path, body=None, key=None):
        """Sends a request; returns status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"content-type": "application/json"}
        headers |= {"authorization": f"Bearer {self.token}"} if self.token else {}
        headers |= {"idempotency-key": key} if key else {}
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            content, self.headers = answer.read(), {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, json.loads(content) if content.startswith((b"{", b"[")) else content
        finally:
            connection.close()

    def kill(self, victims):
        for victim in victims:
            process = getattr(self, victim)
            process.send_signal(signal.SIGKILL)
        for victim in victims:
            getattr(self, victim).wait(timeout=30)
        for victim in victims:
            setattr(self, victim, getattr(self, f"start_{victim}")())

    def end(self):
        for process in (self.agent, self.service):
            process.terminate()
            process.wait(timeout=90)

    def machines(self):
        return self.ask("GET", "/v1/vms?limit=1000")[1]["items"]

    def agrees(self):
        """Whether all operations are finished and the audit finds no difference."""
        if any(vm["state"] not in AT_REST for vm in self.machines()):
            return False
        status, audit = self.ask("GET", "/v1/audit")
        # The agent's last report may predate the kill, so read the domains from the file.
        return status == 200 and audit["database"] == [] and self.domains_agree()

    def domains_agree(self):
        file = self.folder / "domains" / "h1.json"
        domains = json.loads(file.read_text()) if file.exists() else {}
        found = {actual["vm"]: actual for actual, _ in domains.values()}
        vms = {vm["id"]: vm for vm in self.machines()}
        for number, vm in vms.items():
            running = number in found and found[number]["running"]
            if running != (vm["state"] == "running") or vm["intent"] not in ("run", "stop"):
                return False
            if running and found[number]["bound"] != vm["placement"]["bound"]:
                return False
        return not set(found) - set(vms)


class RandomClient(threading.Thread):
    """A client that creates, moves, stops, starts and deletes virtual machines until stopped."""

    def __init__(self, deployment, name, seed, accepted, deleted):
        super().__init__(daemon=True)
        self.deployment, self.prefix, self.random = deployment, name, random.Random(seed)
        self.accepted, self.deleted, self.stop, self.request_count = accepted, deleted, threading.Event(), 0
        self.unexpected_statuses = []

    def run(self):
        while not self.stop.is_set():
            try:
                self.act()
                self.request_count += 1
            except (OSError, http.client.HTTPException, json.JSONDecodeError):
                # The service is down.
                time.sleep(0.01)

    def act(self):
        mine = [name for name in list(self.accepted) if name.startswith(self.prefix) and name not in self.deleted]
        draw = self.random.random()
        if len(mine) < 3 or draw < 0.3:
            name = f"{self.prefix}-{self.random.randrange(1 << 40):x}"
            cpu = self.random.choice(["range", "exclusive", "none"])
            body = {"name": name, "vcpus": self.random.choice([1, 2, 4]), "memory_mib": 1024, "cpu": cpu}
            status, content = self.deployment.ask("POST", "/v1/vms", body, key=name)
            if status in (200, 201):
                self.accepted[name] = content["id"]
            self.expect(status, {200, 201, 409, 503})
            return
        name = self.random.choice(mine)
        if draw < 0.55:
            # A deletion without an answer may have taken effect.
            self.deleted.add(name)
            status, _ = self.deployment.ask("DELETE", f"/v1/vms/{self.accepted[name]}")
            self.expect(status, {200, 202, 404, 409, 503})
        else:
            action = self.random.choice(["rebind", "rebind", "stop", "start"])
            status, _ = self.deployment.ask("POST", f"/v1/vms/{self.accepted[name]}/{action}", {} if action == "rebind" else None)
            self.expect(status, {200, 202, 404, 409, 503, 504})

    def expect(self, status, expected):
        if status not in expected:
            self.unexpected_statuses.append(status)


def doubly_owned_cpu(machines):
    """A message about a CPU that two virtual machines own; None if there is none."""
    owners = {}
    for vm in machines:
        placement = vm["placement"] or {"cells": []}
        for cell in placement["cells"]:
            for cpu in cell.get("cpus", []) + cell.get("idle", []):
                if owners.setdefault(cpu, vm["id"]) != vm["id"]:
                    return f"CPU {cpu} belongs to {owners[cpu]} and {vm['id']}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--longma", type=pathlib.Path, required=True, help="path of the command")
    parser.add_argument("--kills", type=int, default=100, help="number of kills")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    accepted, deleted, took, request_count = {}, set(), [], 0
    # Exit through the `finally` block, which stops both processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="longma-kills-") as folder:
        deployment = Deployment(arguments.longma.resolve(), pathlib.Path(folder))
        try:
            for turn in range(arguments.kills):
                clients = [RandomClient(deployment, f"r{n}", rng.random(), accepted, deleted) for n in range(3)]
                for client in clients:
                    client.start()
                time.sleep(0.05 + 0.6 * rng.random())
                deployment.kill(rng.choice([["service"], ["agent"], ["agent", "service"]]))
                for client in clients:
                    client.stop.set()
                for client in clients:
                    client.join(timeout=60)
                    request_count += client.request_count
                    must(not client.unexpected_statuses, f"kill {turn}: unexpected statuses {client.unexpected_statuses}")
                took.append(until(f"kill {turn}: service, agent and hypervisor agree", deployment.agrees, AGREEMENT_LIMIT_S))
                machines = deployment.machines()
                names = [vm["request"]["name"] for vm in machines]
                must(len(set(names)) == len(names), f"kill {turn}: two virtual machines have the same name")
                lost = [name for name in accepted if name not in deleted and name not in names]
                must(not lost, f"kill {turn}: accepted but missing: {lost}")
                must(doubly_owned_cpu(machines) is None, f"kill {turn}: {doubly_owned_cpu(machines)}")
        except CheckFailed:
            deployment.log.flush()
            print((pathlib.Path(folder) / "log").read_text()[-4000:], file=sys.stderr)
            raise
        finally:
            deployment.end()
    took.sort()
    print(
        f"placement_kills: {len(took)} kills, {request_count} requests, {len(accepted)} virtual machines created, {len(deleted)} deleted; "
        f"agreement after {took[len(took) // 2]:.2f} s in the median and {took[-1]:.2f} s at most"
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (CheckFailed, subprocess.SubprocessError) as error:
        sys.exit(f"placement_kills: {error}")
