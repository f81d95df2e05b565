#!/usr/bin/env python3
"""Runs the tests of Go's standard library, compiled for loong64 or another architecture, under longma and under QEMU.

They use system calls, signals, threads and floating point as real programs do. Exits with 0 only if longma passes all required tests: with
--qemu, those that QEMU passes in this run; otherwise all. Source: https://pkg.go.dev/cmd/go ("go test -c").
"""

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

MAIN_PACKAGES = """bytes strings sort strconv math math/big math/bits unicode/utf8 encoding/json encoding/binary
compress/flate crypto/sha256 crypto/aes hash/crc32 container/heap regexp text/template sync sync/atomic
time os/signal""".split()

EXTRA_PACKAGES = """archive/tar archive/zip bufio bytes compress/bzip2 compress/gzip container/list context crypto/ecdsa
crypto/ed25519 crypto/md5 crypto/rsa crypto/sha1 crypto/sha512 encoding/base64 encoding/csv encoding/gob encoding/hex
encoding/xml errors expvar flag fmt go/parser go/printer go/scanner hash/adler32 hash/fnv hash/maphash html
image image/gif image/jpeg image/png internal/poll io io/fs io/ioutil log maps math/cmplx math/rand mime net
net/http net/http/httptest net/netip net/url os os/exec os/user path path/filepath reflect regexp/syntax runtime runtime/debug
slices strings syscall text/scanner text/tabwriter unicode unicode/utf16""".split()

# QEMU's user-mode emulator for each Go architecture.
QEMU = {"loong64": "qemu-loongarch64", "amd64": "qemu-x86_64", "arm64": "qemu-aarch64", "mips64le": "qemu-mips64el"}

RESULT = re.compile(r"^--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)
FLAGS = ["-test.v", "-test.count=1"]


class Failure(Exception):
    """An error of the environment, with a remedy."""


@dataclasses.dataclass
class Outcome:
    """The results of a package's tests by name, and how the process ended."""

    results: dict
    ending: str  # empty after exit 0
    seconds: float
    tail: str

    def count(self, result):
        return sum(r == result for r in self.results.values())

    def named(self, result):
        return {name for name, r in self.results.items() if r == result}


def go_command():
    found = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if found is None:
        raise Failure("go_std: Go is missing: install Go 1.19 or later (Debian: guests/build --install)")
    return found


def go_environment(go, names):
    output = subprocess.run([go, "env", *names], capture_output=True, text=True, timeout=60, check=True).stdout
    return output.split("\n")[: len(names)]


def compile_package(go, folder, arch, package, timeout_s):
    """Returns the test program, compiled once per Go version, or the compiler's output."""
    program = folder / (package.replace("/", "_") + ".test")
    if program.exists():
        return program, ""
    environment = os.environ | {"GOOS": "linux", "GOARCH": arch, "CGO_ENABLED": "0", "GOFLAGS": ""}
    partial = program.with_suffix(".partial")
    command = ["nice", go, "test", "-c", "-o", partial, package]
    try:
        compiler = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return None, f"the compiler took over {timeout_s} s"
    if compiler.returncode != 0 or not partial.exists():
        return None, (compiler.stderr or compiler.stdout or "package has no tests").strip()
    partial.rename(program)
    return program, ""


def run_tests(words, program, folder, options):
    """Runs a test program in its package's folder, as `go test` does."""
    flags = [*FLAGS, f"-test.timeout={max(1, options.timeout - 5)}s"]
    flags += [] if options.long else ["-test.short"]
    flags += [f"-test.run={options.run}"] if options.run else []
    separator = ["--"] if "run" in words else []
    start = time.monotonic()
    child = subprocess.Popen(
        [*words, program, *separator, *flags],
        cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = child.communicate(timeout=options.timeout)
        ending = "" if child.returncode == 0 else f"exit {child.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        output, _ = child.communicate()
        ending = f"over {options.timeout} s"
    text = output.decode(errors="replace")
    results = {name: result for result, name in RESULT.findall(text)}
    # A test that started and did not end is the one in which the process died or hung.
    for name in re.findall(r"^=== RUN +([^/\s]+)$", text, re.MULTILINE):
        results.setdefault(name, "LOST")
    return Outcome(results, ending, time.monotonic() - start, "\n".join(text.splitlines()[-options.tail :]))


def summary(outcome):
    """Formats the results of longma or of QEMU."""
    if outcome is None:
        return "-"
    failed = outcome.count("FAIL") + outcome.count("LOST")
    skipped = f" {outcome.count('SKIP')} skipped" if outcome.count("SKIP") else ""
    ending = f" ({outcome.ending})" if outcome.ending else ""
    return f"{outcome.count('PASS')} passed {failed} failed{skipped}{ending} {outcome.seconds:.1f} s"


def not_passed(longma, qemu):
    """Required tests that longma does not pass."""
    if qemu is None:
        names = longma.named("FAIL") | longma.named("LOST")
        return names or ({"(the program itself)"} if longma.ending else set())
    names = qemu.named("PASS") - longma.named("PASS") - longma.named("SKIP")
    return names or ({"(the program itself)"} if longma.ending and not qemu.ending else set())


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="packages to test (default: the main list)")
    parser.add_argument("--extra", action="store_true", help="also test the packages of the extra list")
    parser.add_argument("--arch", choices=QEMU, default="loong64", help="architecture that the tests are compiled for (default loong64)")
    parser.add_argument("--qemu", nargs="?", const="", metavar="COMMAND", help="also run the tests under QEMU; longma must pass those that QEMU passes")
    parser.add_argument("--emulator", default=f"{ROOT}/target/release/longma run", metavar="COMMAND", help="command to use instead of `longma run`")
    parser.add_argument("--long", action="store_true", help="run the tests without -test.short")
    parser.add_argument("--run", metavar="REGEXP", help="run only tests whose name matches")
    parser.add_argument("--timeout", type=int, default=300, metavar="SECONDS", help="time limit for each package (default 300)")
    parser.add_argument("--tail", type=int, default=12, metavar="LINES", help="lines of a failed program's output to show")
    parser.add_argument("--compile-only", action="store_true", help="compile the tests into target/go-std and exit")
    options = parser.parse_args()
    if options.qemu == "":
        options.qemu = QEMU[options.arch]
    return options


def compare(package, program, source, options):
    """Runs a package's tests under longma, and under QEMU if requested, and prints the results.

    Returns the number of tests that longma passes, and the names of the required tests that it does not pass.
    """
    longma = run_tests(shlex.split(options.emulator), program, source, options)
    qemu = run_tests(shlex.split(options.qemu), program, source, options) if options.qemu else None
    missing = not_passed(longma, qemu)
    summaries = [summary(longma), *([f"qemu: {summary(qemu)}"] if qemu else [])]
    print(f"{'FAIL' if missing else 'ok  '} {package:20} {'; '.join(summaries)}", flush=True)
    if qemu and (qemu.named("FAIL") | qemu.named("LOST")):
        print(f"       qemu fails: {', '.join(sorted(qemu.named('FAIL') | qemu.named('LOST')))}")
    if missing:
        print(f"       longma fails: {', '.join(sorted(missing))}")
        print("\n".join(f"       | {line}" for line in longma.tail.splitlines()))
    return longma.count("PASS"), missing


def main():
    options = parse()
    packages = options.packages or [*MAIN_PACKAGES, *(EXTRA_PACKAGES if options.extra else [])]
    packages = list(dict.fromkeys(packages))
    try:
        go = go_command()
        if not options.compile_only and shutil.which(shlex.split(options.emulator)[0]) is None:
            raise Failure(f"go_std: {options.emulator.split()[0]} is missing: cargo build --release -p longma-cli, or give --emulator COMMAND")
        version, goroot = go_environment(go, ["GOVERSION", "GOROOT"])
    except Failure as error:
        sys.exit(str(error))
    cache = ROOT / "target" / "go-std" / (version or "unknown").replace(" ", "_")
    if options.arch != "loong64":
        cache /= options.arch
    cache.mkdir(parents=True, exist_ok=True)
    passed = failed = 0
    # Compile the next package while one runs.
    with concurrent.futures.ThreadPoolExecutor(1) as compiler:
        compiled = {p: compiler.submit(compile_package, go, cache, options.arch, p, 900) for p in packages}
        for package in packages:
            program, error = compiled[package].result()
            if program is None:
                failed += 1
                print(f"FAIL {package:20} does not compile: {error}", flush=True)
            elif options.compile_only:
                print(f"ok   {package}", flush=True)
            else:
                package_passed, missing = compare(package, program, pathlib.Path(goroot) / "src" / package, options)
                passed, failed = passed + package_passed, failed + len(missing)
    if options.compile_only:
        sys.exit(1 if failed else 0)
    print(f"go_std: {passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
