#!/usr/bin/env python3
"""Tests the API of `longma placement serve --all-in-one` against its own OpenAPI document, with schemathesis.

Sends valid and invalid requests with an admin's token and, for the agents' calls, an agent's. Every answer must have a documented status,
type and body, invalid requests must be rejected, and there must be no internal errors. Not checked: `positive_data_acceptance`, because
fields depend on each other in ways that a schema cannot express, and the endless answer of `/v1/watch`. The packages of `schemathesis.txt`
are installed in a private folder; without them, the test is skipped with a note. Source: schemathesis' manual.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
LEFT_OUT = "positive_data_acceptance"


class CheckFailed(Exception):
    """A failed check."""


def schemathesis(folder):
    """The command with exactly the pinned packages, or None."""
    requirements = HERE / "schemathesis.txt"
    stamp, command = folder / "installed.txt", folder / "bin" / "schemathesis"
    if command.exists() and stamp.exists() and stamp.read_text() == requirements.read_text():
        return command
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", folder])
    pip = [folder / "bin" / "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "-r", requirements]
    if made.returncode != 0 or subprocess.run(pip, timeout=600).returncode != 0:
        return None
    stamp.write_text(requirements.read_text())
    return command


class Service:
    """The service of one machine, with a simulated host."""

    def __init__(self, longma, folder):
        self.state, self.log = folder / "state", (folder / "log").open("w+")
        words = ["serve", "--all-in-one", "--hypervisor", "fake", "--machine", "hygon-8node", "--name", "h1"]
        words = [longma, "placement", *words, "--listen", "127.0.0.1:0", "--state", self.state]
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while not (self.state / "client.json").exists():
            if time.monotonic() > end or self.process.poll() is not None:
                raise CheckFailed("the service does not begin")
            time.sleep(0.1)
        access = json.loads((self.state / "client.json").read_text())
        self.url, self.token = access["url"], access["token"]

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=30) as answer:
            return json.loads(answer.read())

    def end(self):
        self.process.terminate()
        return self.process.wait(timeout=90)


def run(command, service, token, which, examples, folder):
    """Runs schemathesis with one token; returns the number of requests."""
    report = folder / "report.json"
    words = [command, "run", f"{service.url}/openapi.json", "-H", f"Authorization: Bearer {token}", *which]
    words += ["--seed", "1", "--max-examples", str(examples), "--exclude-checks", LEFT_OUT, "--no-color", "--continue-on-failure"]
    words += ["--warnings", "off", "--report", "json", "--report-json-path", report, "--request-timeout", "30"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        raise CheckFailed(done.stdout[-20000:] + done.stderr[-2000:])
    generated = [line for line in done.stdout.splitlines() if " generated" in line]
    return generated[0].strip() if generated else "no request"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--longma", type=pathlib.Path, required=True, help="the command")
    parser.add_argument("--folder", type=pathlib.Path, default=HERE.parent / "target" / "schemathesis", help="where schemathesis is put")
    parser.add_argument("--examples", type=int, default=25, help="requests for each operation and phase, at most")
    arguments = parser.parse_args()
    command = schemathesis(arguments.folder.resolve())
    if command is None:
        print("skipped: the API against its OpenAPI document: schemathesis cannot be installed")
        return 0
    with tempfile.TemporaryDirectory(prefix="longma-api-") as folder:
        folder = pathlib.Path(folder)
        service = Service(arguments.longma.resolve(), folder)
        try:
            agents = ["--include-path-regex", "^/v1/agents"]
            agent = service.ask("/v1/tokens", {"name": "agent", "role": "agent", "scope": "h2"})["token"]
            others = ["--exclude-path", "/v1/watch", "--exclude-path-regex", "^/v1/agents"]
            for who, token, which in (("admin", service.token, others), ("agent", agent, agents)):
                print(f"api: {who}: {run(command, service, token, which, arguments.examples, folder)}, nothing that the document does not say")
            if service.ask("/v1/audit")["database"]:
                raise CheckFailed("the database contradicts itself after it")
        except CheckFailed:
            service.log.seek(0)
            print(service.log.read()[-3000:], file=sys.stderr)
            raise
        finally:
            code = service.end()
        if code != 0:
            raise CheckFailed(f"the service ended with {code}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (CheckFailed, subprocess.SubprocessError) as error:
        sys.exit(f"api: {error}")
