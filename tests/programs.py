#!/usr/bin/env python3
"""Runs others' programs and their own tests for each architecture under longma and under QEMU, and on this host for x86-64.

Each script of tests/programs/cases runs in a root folder with Debian's packages, which are pinned by hash (tests/programs/*.lock). longma
must print what the reference prints: the host for x86-64, QEMU for the others. Needs root, for namespaces with several users. Results are
appended to target/programs/results.jsonl; runs that are there already are not repeated, except with --again.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
HERE = ROOT / "tests" / "programs"
sys.path.insert(0, str(HERE))

import debian_package
import packages
import roots
import sandbox

ARCHITECTURES = ["amd64", "arm64", "loong64", "mips64el"]
TITLES = {"amd64": "x86-64", "arm64": "AArch64", "loong64": "LoongArch", "mips64el": "MIPS64"}
QEMU = {"amd64": "qemu-x86_64", "arm64": "qemu-aarch64", "loong64": "qemu-loongarch64", "mips64el": "qemu-mips64el"}
MAX_SHOWN = 6


@dataclasses.dataclass
class Case:
    """A script, with the fields of its header."""

    path: pathlib.Path
    title: str = ""
    version: str = ""
    # Which lines of the output count, and which parts of them do not.
    keep: str = ".*"
    drop: str = "$^"
    order: str = "same"
    timeout: str = "120"
    needs: str = ""
    # Further options of longma for x86-64.
    x86: str = ""
    architectures: str = " ".join(ARCHITECTURES)

    def kept(self, output):
        lines = [match[0] for line in output.splitlines() if (match := re.search(self.keep, re.sub(self.drop, "", line)))]
        return sorted(lines) if self.order == "any" else lines


def cases():
    for path in sorted((HERE / "cases").glob("*.sh")):
        header = re.findall(r"^# (\w+): (.*)$", path.read_text(), re.MULTILINE)
        yield Case(path, **dict(header))


def digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()[:16]


class Runner:
    """Runs cases in the root of one architecture."""

    def __init__(self, architecture, options, results):
        self.architecture, self.options, self.results = architecture, options, results
        self.longma = shlex.split(options.emulator)
        self.qemu = options.qemu / QEMU[architecture]
        self.root = roots.debian(architecture)
        self.identities = {"longma": digest(shutil.which(self.longma[0])), "qemu": digest(self.qemu), "host": "host"}

    def layers(self, case):
        layers = [roots.sources(), scripts()]
        made = {"wheels": roots.wheels, "go": roots.go}
        return layers + [made[name](self.architecture) for name in case.needs.split()]

    def run(self, case, by, script=None):
        """How a case ends under longma, QEMU or the host; from the results if they have it."""
        text = script or f". /cases/{case.path.name}"
        key = f"{self.architecture} {case.path.stem} {by} {self.identities[by]} {digest(HERE / f'{self.architecture}.lock')} {hashlib.sha256((text + case.path.read_text()).encode()).hexdigest()[:16]}"
        if self.results.get(key, {}).get("status") is not None and not (self.options.again and by == "longma"):
            return self.results[key]
        shell = ["/bin/sh", "-c", text]

        def prepare(view):
            if by != "longma":
                return shell, True
            os.chdir(f"{view}/scratch")
            more = case.x86.split() if self.architecture == "amd64" else []
            return [*self.longma, *more, "--root", view, shell[0], "--", *shell[1:]], False

        qemu_rule = sandbox.rule(self.architecture, sandbox.marked(self.qemu, roots.BUILT)) if by == "qemu" else ""
        # QEMU and longma are given the same time, and the host too.
        ended = sandbox.run(self.root, prepare, int(case.timeout) * self.options.patience, self.layers(case), qemu_rule)
        result = {"key": key, "architecture": self.architecture, "case": case.path.stem, "by": by, "is_version": bool(script), "status": ended.status, "lines": ended.output.splitlines() if script else case.kept(ended.output),
                  "errors": ended.errors[-2000:], "cpu_s": round(ended.cpu_s, 2), "wall_s": round(ended.wall_s, 2), "peak_mib": ended.peak_kib >> 10,
                  "time": time.strftime("%Y-%m-%d %H:%M")}  # fmt: skip
        if self.options.show:
            print(ended.output[-self.options.show :], ended.errors[-self.options.show :], sep="\n-- standard error:\n")
        self.results[key] = result
        with (roots.BUILT / "results.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")
        return result


    def version(self, case):
        """What the program says of its version."""
        by = "host" if self.architecture == "amd64" else "longma"
        return "; ".join(self.run(case, by, case.version)["lines"]) if case.version else ""

    def on_host(self, case):
        """The newest result of the host, or None."""
        found = [result for result in self.results.values() if result["case"] == case.path.stem and result["by"] == "host" and not result.get("is_version")]
        return found[-1] if found else None


def scripts():
    """A layer with the cases."""
    content = hashlib.sha256(b"".join(case.path.read_bytes() for case in cases())).hexdigest()
    return roots.once(roots.BUILT / f"cases-{content[:12]}", content, lambda folder: shutil.copytree(HERE / "cases", folder / "cases"))


def difference(reference, got):
    """The first lines that differ, or an empty string."""
    if got["status"] is None:
        return "took too long"
    if got["lines"] != reference["lines"]:
        missing = [line for line in reference["lines"] if line not in got["lines"]]
        added = [line for line in got["lines"] if line not in reference["lines"]]
        shown = [f"-{line[:150]}" for line in missing[:MAX_SHOWN]] + [f"+{line[:150]}" for line in added[:MAX_SHOWN]]
        return f"{len(missing)} lines missing, {len(added)} added: {' | '.join(shown)} {got['errors'][-300:]}"
    return "" if got["status"] == reference["status"] else f"ended with {got['status']}, not {reference['status']}: {got['errors'][-300:]}"


def compare(runner, case):
    """Runs a case and returns a row of the table."""
    references = ["host", "qemu"] if runner.architecture == "amd64" else ["qemu"]
    ran = {by: runner.run(case, by) for by in references if by != "qemu" or not runner.options.no_qemu}
    longma = runner.run(case, "longma")
    problems = {by: difference(result, longma) for by, result in ran.items()}
    # What QEMU fails is compared with the host's run of the same version for x86-64.
    if problems.get("qemu") and (host := runner.on_host(case)) and not difference(host, longma):
        problems["qemu"], ran["host"] = "", host
    return {"case": case, "longma": longma, **ran, "problem": problems[references[0]] if references[0] in problems else "",
            "others": {by: difference(longma, ran[by]) for by in ran if by != references[0]}, "version": runner.version(case)}  # fmt: skip


def table(architecture, rows):
    """The rows in markdown."""
    seconds = lambda row, by: f"{row[by]['cpu_s']:.1f}" if by in row else ""
    yield f"| {TITLES[architecture]} | version | lines compared | result | longma, s | QEMU, s | host, s |"
    yield "| --- | --- | ---: | --- | ---: | ---: | ---: |"
    for row in rows:
        result = row["problem"].split(":")[0] or "same"
        yield f"| {row['case'].title} | {row['version']} | {len(row['longma']['lines'])} | {result} | {seconds(row, 'longma')} | {seconds(row, 'qemu')} | {seconds(row, 'host')} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--emulator", default=f"{ROOT}/target/release/longma run", metavar="COMMAND")
    parser.add_argument("--architecture", action="append", choices=ARCHITECTURES, help="only this one; may be repeated")
    parser.add_argument("--only", metavar="NAME", action="append", help="only this case; may be repeated")
    parser.add_argument("--no-qemu", action="store_true", help="without QEMU where the host is the reference")
    parser.add_argument("--qemu", type=pathlib.Path, default=ROOT / "target/qemu/usr/bin", metavar="DIR", help="folder with QEMU's user mode")
    parser.add_argument("--again", action="store_true", help="also what longma has run before")
    parser.add_argument("--patience", type=int, default=1, metavar="N", help="multiplies time limits, for a busy machine or an unoptimized build")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print the last N characters of each run's output")
    options = parser.parse_args()
    if not (options.qemu / QEMU["arm64"]).exists():
        debian_package.unpack(["qemu-user"], ROOT / "target/qemu")
    roots.BUILT.mkdir(parents=True, exist_ok=True)
    stored = roots.BUILT / "results.jsonl"
    results = {result["key"]: result for result in map(json.loads, stored.read_text().splitlines())} if stored.exists() else {}
    passed = failed = left_out = 0
    report = [f"{platform.node()}, {time.strftime('%Y-%m-%d')}"]
    for architecture in options.architecture or ARCHITECTURES:
        if not (HERE / f"{architecture}.lock").exists():
            continue
        try:
            runner = Runner(architecture, options, results)
        except packages.Absent as error:
            left_out += 1
            print(f"skipped: {architecture}: {error}", flush=True)
            continue
        rows = []
        for case in cases():
            if (options.only and case.path.stem not in options.only) or architecture not in case.architectures.split():
                continue
            try:
                row = compare(runner, case)
            except packages.Absent as error:
                left_out += 1
                print(f"skipped: {architecture} {case.path.stem}: {error}", flush=True)
                continue
            rows.append(row)
            passed, failed = passed + (not row["problem"]), failed + bool(row["problem"])
            times = ", ".join(f"{by} {row[by]['cpu_s']:.1f} s" for by in ("longma", "qemu", "host") if by in row)
            print(f"{'FAIL' if row['problem'] else 'ok  '} {architecture} {case.path.stem}: {len(row['longma']['lines'])} lines; {times} {row['problem']}", flush=True)
            for by, problem in row["others"].items():
                if problem:
                    print(f"       {by} differs from the host: {problem[:600]}", flush=True)
        report += ["", *table(architecture, rows)]
    (roots.BUILT / "table.md").write_text("\n".join(report) + "\n")
    print(f"programs: {passed} passed, {failed} failed")
    sys.exit(1 if failed or not (passed or left_out) else 0)


if __name__ == "__main__":
    main()
