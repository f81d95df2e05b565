#!/usr/bin/env python3
"""Runs the kernel's own tests of its system calls (tools/testing/selftests) on the host, under longma and under QEMU.

The sources are those of Debian's package linux-source (tests/programs/linux.lock), compiled here for each architecture. Longma should pass
what the host passes. Needs root, for namespaces. Source: the kernel's dev-tools/kselftest.rst and dev-tools/ktap.rst.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
HERE = ROOT / "tests" / "programs"
sys.path.insert(0, str(HERE))

import debian_package
import packages
import roots
import sandbox
from programs import QEMU, TITLES, digest

COMPILERS = {"amd64": "gcc", "arm64": "aarch64-linux-gnu-gcc", "mips64el": "mips64el-linux-gnuabi64-gcc"}
HEADERS = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu", "mips64el": "mips64el-linux-gnuabi64"}
# Folders of tests that exist for one architecture only.
ONLY = {"x86": "amd64"}
TIMEOUT_S = 45
# A line of KTAP, of the harness's older form, or of the tests of x86.
RESULT = re.compile(r"^[# ]*(ok|not ok) \d+ ?-? ?(.*)$|^\[(OK|FAIL|PASS)\]:?\s+(.*)$", re.MULTILINE)
# Directives, addresses and times differ between runs.
VARYING = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?( ?(ns|us|ms|s|sec))?\b|# SKIP.*| *#.*$")


def tests():
    """The tests as (folder, program, further words of the compiler)."""
    for line in (HERE / "kernel_selftests.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            folder, _, rest = line.partition(": ")
            names, _, more = rest.partition(" | ")
            yield from ((folder, name, more.split()) for name in names.split())


def kernel():
    """The folder of the kernel's sources, and that of its headers."""
    def make(folder):
        archives = roots.fetch(roots.locked("linux"))
        for archive in archives:
            packages.unpack(archive.read_bytes(), folder)
        whole = next(folder.glob("usr/src/linux-source-*.tar.xz"))
        with tarfile.open(whole) as files:
            for entry in files:
                if "/tools/testing/selftests/" in entry.name or "/tools/include/" in entry.name:
                    files.extract(entry, folder, filter="tar")
        whole.unlink()

    folder = roots.once(roots.BUILT / "kernel", digest(HERE / "linux.lock"), make)
    return next(folder.glob("linux-source-*")), folder / "usr/include"


def build(architecture):
    """A layer with the compiled tests in /selftests; those that do not compile are left out."""
    compiler = COMPILERS[architecture]
    if shutil.which(compiler) is None:
        raise packages.Absent(f"{compiler} is not installed")
    source, headers = kernel()
    base = source / "tools/testing/selftests"

    def make(folder):
        for group, name, more in tests():
            if ONLY.get(group, architecture) != architecture:
                continue
            output = folder / "selftests" / group / name
            output.parent.mkdir(parents=True, exist_ok=True)
            command = [compiler, "-O2", "-w", "-static", "-pthread", "-D_GNU_SOURCE=", "-isystem", headers, "-isystem", headers / HEADERS[architecture],
                       f"-I{base}", f"-I{source}/tools/include", "-o", output, f"{name}.c", *more, "-lrt", "-lm"]  # fmt: skip
            made = subprocess.run(command, cwd=base / group, capture_output=True, text=True, timeout=120)
            if made.returncode != 0:
                print(f"       {architecture} {group}/{name} does not compile: {made.stderr.strip().splitlines()[-1][:150]}", flush=True)

    return roots.once(roots.BUILT / architecture / "selftests", digest(HERE / "kernel_selftests.txt") + digest(HERE / "linux.lock"), make)


def run(architecture, by, layer, program, longma, qemu):
    """The results of a test by name, and its status."""
    def prepare(view):
        # Tests write files where they start.
        path = f"/selftests/{program}"
        if by != "longma":
            return ["/bin/sh", "-c", f"cd /selftests/{os.path.dirname(program)} && exec {path}"], True
        os.chdir(f"{view}/selftests/{os.path.dirname(program)}")
        return [longma[0], *longma[1:], "--root", view, path], False

    rule = sandbox.rule(architecture, sandbox.marked(qemu / QEMU[architecture], roots.BUILT)) if by == "qemu" else ""
    ended = sandbox.run(roots.debian(architecture), prepare, TIMEOUT_S, [layer], rule)
    results = {}
    for match in RESULT.finditer(ended.output):
        name = VARYING.sub("", match[2] or match[4] or "").strip()
        good = (match[1] or match[3]) in ("ok", "OK", "PASS")
        results[name] = "skip" if "# SKIP" in match[0] else "ok" if good and results.get(name) != "failed" else "failed"
    return {"status": ended.status, "results": results, "tail": (ended.output + ended.errors)[-600:]}


def good(ran):
    """What passed: the program itself, and its parts."""
    parts = {name for name, result in ran["results"].items() if result == "ok"}
    return parts | ({"(program)"} if ran["status"] == 0 else set())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--emulator", default=f"{ROOT}/target/release/longma run", metavar="COMMAND")
    parser.add_argument("--architecture", action="append", choices=COMPILERS, help="only this one; may be repeated")
    parser.add_argument("--only", metavar="PART", default="", help="only programs whose path contains PART")
    parser.add_argument("--no-qemu", action="store_true")
    parser.add_argument("--qemu", type=pathlib.Path, default=ROOT / "target/qemu/usr/bin", metavar="DIR", help="folder with QEMU's user mode")
    parser.add_argument("--show", action="store_true", help="print the end of the output of tests that fail under longma")
    options = parser.parse_args()
    if not (options.qemu / QEMU["arm64"]).exists():
        debian_package.unpack(["qemu-user"], ROOT / "target/qemu")
    longma = shlex.split(options.emulator)
    native = build("amd64")
    totals = {}
    rows = []
    failed = 0
    host = {}
    for architecture in options.architecture or COMPILERS:
        layer = build(architecture)
        for path in sorted(layer.glob("selftests/**/*")):
            program = str(path.relative_to(layer / "selftests"))
            if not path.is_file() or options.only not in program:
                continue
            if program not in host and (native / "selftests" / program).exists():
                host[program] = run("amd64", "host", native, program, longma, options.qemu)
            ran = {"longma": run(architecture, "longma", layer, program, longma, options.qemu)}
            if not options.no_qemu:
                ran["qemu"] = run(architecture, "qemu", layer, program, longma, options.qemu)
            wanted = good(host[program]) if program in host else set()
            missing = {by: sorted(wanted - good(result)) for by, result in ran.items()}
            for by in ran:
                total = totals.setdefault((architecture, by), [0, 0])
                total[0] += len(wanted) - len(missing[by])
                total[1] += len(wanted)
            failed += bool(missing["longma"])
            rows.append({"architecture": architecture, "program": program, "wanted": len(wanted), "missing": missing, "status": {by: result["status"] for by, result in ran.items()}})
            shown = f" QEMU misses {len(missing['qemu'])}" if missing.get("qemu") else ""
            lost = f": misses {len(missing['longma'])} ({ran['longma']['status']}): {', '.join(missing['longma'])[:300]}" if missing["longma"] else ""
            print(f"{'FAIL' if lost else 'ok  '} {architecture} {program} {len(wanted)}{lost}{shown}", flush=True)
            if lost and options.show:
                print("\n".join(f"       | {line}" for line in ran["longma"]["tail"].splitlines()), flush=True)
    (roots.BUILT / "selftests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for (architecture, by), (passed, wanted) in totals.items():
        print(f"{TITLES[architecture]} {by}: {passed} of {wanted} that the host passes")
    print(f"selftests: {len(rows) - failed} passed, {failed} failed")
    sys.exit(1 if failed or not rows else 0)


if __name__ == "__main__":
    main()
