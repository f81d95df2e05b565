#!/usr/bin/env python3
"""Checks the page of `longma placement serve` in headless Chromium, at desktop and phone width.

The service is a private one with simulated hosts. --screenshot keeps pictures.
Source: the Chrome DevTools Protocol, over the browser's pipe.
"""

import argparse
import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
INSPECTION_SCRIPT = """JSON.stringify({
  hosts: document.querySelectorAll(".host").length, nodes: document.querySelectorAll(".node").length,
  own: document.querySelectorAll(".cpus i.own").length, shared: document.querySelectorAll(".cpus i.shared").length,
  vms: [...document.querySelectorAll(".vm")].map((vm) => vm.textContent), said: document.getElementById("said").textContent,
  asks: !document.getElementById("key").hidden, status: [...document.querySelectorAll(".host .status.bad")].map((s) => s.textContent),
  table: Object.fromEntries(["hosts", "tenants", "tokens"].map((kind) => [kind, [...document.querySelectorAll(`#table-${kind} tr`)].slice(1).map(
    (row) => [...row.children].map((cell) => cell.textContent))])), sees_tokens: !document.getElementById("access").hidden,
  bad: [...document.querySelectorAll("td.bad")].map((cell) => cell.textContent), text: document.body.innerText,
  events: document.getElementById("events").children.length, hash: location.hash, wide: document.documentElement.scrollWidth > innerWidth,
  outside: performance.getEntriesByType("resource").map((e) => e.name).filter((n) => !n.startsWith(location.origin)) })"""


class Browser:
    """Chromium with a DevTools pipe."""

    def __init__(self, folder):
        name = next(filter(shutil.which, BROWSERS))
        (reading, self.to), (self.of, writing) = os.pipe(), os.pipe()
        # Chromium reads from descriptor 3 and writes to 4; a shell sets them up.
        script = f'exec "$0" "$@" 3<&{reading} 4>&{writing}'
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={folder}/profile"]
        self.child = subprocess.Popen(["bash", "-c", script, name, *options], pass_fds=(reading, writing), stderr=subprocess.DEVNULL)
        os.close(reading), os.close(writing)
        self.number, self.rest, self.session = 0, b"", None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                read = os.read(self.of, 1 << 16)
                if not read:
                    sys.exit("the browser ended")
                self.rest += read
            answer, self.rest = self.rest.split(b"\0", 1)
            answer = json.loads(answer)
            if answer.get("id") == self.number:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, url, width):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=1600, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)

    def inspect(self):
        result = self.call("Runtime.evaluate", expression=INSPECTION_SCRIPT)["result"]
        return json.loads(result["value"]) if "value" in result else {}

    def until(self, what, condition, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            seen = self.inspect()
            if seen and condition(seen):
                return seen
            time.sleep(0.2)
        raise AssertionError(f"{what}: not within {seconds} s: {seen}")

    def picture(self, path):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip={**size, "scale": 1})
        path.write_bytes(base64.b64decode(taken["data"]))


def check_tables(seen):
    """Checks the tables: hosts with state and last report, tenants with usage and quota, tokens without secrets."""
    hosts, tenants, tokens = (seen["table"][kind] for kind in ("hosts", "tenants", "tokens"))
    assert [row[:2] for row in hosts] == [["h-1", "up"], ["h-2", "up"]] and all(row[2].endswith("s ago") for row in hosts), hosts
    assert sum(int(row[3]) for row in hosts) == 2, hosts
    assert tenants == [["default", "2 of 2", "10", "12 GiB of 100 GiB"], ["other", "0", "0 of 8", "0 MiB"]], tenants
    assert seen["bad"] == ["2 of 2"], f"{seen['bad']}: only what is full is marked"
    assert seen["sees_tokens"] and [row[:3] for row in tokens] == [[name, role, "all"] for name, role in
        (("admin", "admin"), ("local-admin", "admin"), ("operator", "operator"))], tokens
    assert all(row[4] == "never" for row in tokens) and tokens[1][5].startswith("20"), tokens


def check(browser, longma, folder, screenshot):
    state = folder / "state"

    def output_of(*words):
        return subprocess.run([longma, "placement", *words, "--state", state], capture_output=True, text=True, check=True).stdout

    for _ in range(300):
        if subprocess.run([longma, "placement", "list", "--state", state], capture_output=True).returncode == 0:
            break
        time.sleep(0.2)
    access = json.loads((state / "client.json").read_text())
    output_of("request", "web", "--vcpus", "4", "--memory", "8GiB")
    output_of("request", "db", "--vcpus", "6", "--memory", "4GiB", "--cpu", "exclusive")
    output_of("quota", "default", "--vms", "2", "--memory", "100GiB")
    output_of("quota", "other", "--vcpus", "8")
    tokens = {role: output_of("token", "add", role, "--role", role).strip() for role in ("operator", "admin")}
    for width in (1200, 390):
        browser.open(f"{access['url']}/#token={access['token']}", width)
        seen = browser.until("all is drawn", lambda s: s["hosts"] == 2 and len(s["vms"]) == 2)
        assert (seen["nodes"], seen["own"], seen["shared"]) == (16, 6, 4), seen
        assert sorted(seen["vms"]) == ["db", "web"] and not seen["asks"], seen
        check_tables(seen)
        assert not any(token in seen["text"] for token in tokens.values()), "a token is shown"
        assert not seen["wide"], f"at {width} pixels something is cut off"
        assert seen["hash"] == "" and seen["outside"] == [], seen
        if screenshot:
            time.sleep(1)
            browser.picture(screenshot.with_name(f"{screenshot.stem}-{width}{screenshot.suffix}"))
    output_of("drain", "h-2")
    seen = browser.until("the drained host", lambda s: s["status"] == ["draining"])
    assert ["h-2", "draining"] in [row[:2] for row in seen["table"]["hosts"]] and "draining" in seen["bad"], seen
    browser.open(f"{access['url']}/#token={tokens['operator']}", 390)
    seen = browser.until("an operator sees no tokens", lambda s: s["hosts"] == 2 and not s["sees_tokens"] and s["table"]["tenants"])
    assert not seen["asks"] and seen["table"]["tokens"] == [["none", "", "", "", "", ""]], seen
    browser.open(f"{access['url']}/#token={access['token']}", 1200)
    browser.until("an admin does", lambda s: s["sees_tokens"])
    output_of("delete", "web")
    seen = browser.until("what is deleted is gone", lambda s: s["vms"] == ["db"])
    browser.until("events", lambda s: s["events"] > 0)
    browser.call("Runtime.evaluate", expression="sessionStorage.clear()")
    browser.open(f"{access['url']}/#token=nonsense", 1200)
    seen = browser.until("a wrong token is reported", lambda s: s["asks"] and "is unknown" in s["said"])
    assert seen["hosts"] == 0, seen


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longma", default=f"{ROOT}/target/release/longma", type=pathlib.Path, help="the command")
    parser.add_argument("--screenshot", type=pathlib.Path, metavar="FILE.png")
    options = parser.parse_args()
    if not any(map(shutil.which, BROWSERS)):
        sys.exit("placement_page: needs Chromium: install the package chromium")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        words = "placement serve --all-in-one --hypervisor fake --machine hygon-8node --hosts 2 --name h --listen 127.0.0.1:0 --state"
        longma = options.longma.resolve()
        service = subprocess.Popen([longma, *words.split(), folder / "state"], stderr=subprocess.DEVNULL)
        browser = Browser(folder)
        try:
            check(browser, longma, folder, options.screenshot)
            print("placement_page: 1 passed, 0 failed")
        except AssertionError as error:
            print(f"{error}\nplacement_page: 0 passed, 1 failed")
            sys.exit(1)
        finally:
            for child in (browser.child, service):
                child.terminate()
                child.wait(timeout=30)


if __name__ == "__main__":
    main()
