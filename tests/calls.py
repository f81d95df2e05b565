#!/usr/bin/env python3
"""Runs programs with system calls in edge cases natively and on longma at every level, and compares the output.

Each program in tests/calls prints the result of every call; longma must print what Linux prints on this machine. The programs are compiled
for both machines with the compiler of guests/build and its musl. Source: tests/calls/*.c name the manual pages.
"""

import argparse
import importlib.machinery
import importlib.util
import pathlib
import shlex
import subprocess
import sys

from guests import LEVELS

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ROOT / "tests" / "calls"
BUILT = ROOT / "target" / "calls"
# Warnings about calls that fail on purpose would concern every line.
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-fno-sanitize=all", "-w", "-static", "-lpthread"]


def guest_builder():
    """Loads guests/build as a module, for zig."""
    path = str(ROOT / "guests" / "build")
    loader = importlib.machinery.SourceFileLoader("guest_builder", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("guest_builder", loader))
    loader.exec_module(module)
    return module


def levels_of(name):
    """The levels at which a program is run: all of them, or those in its comment."""
    for line in (SOURCES / f"{name}.c").read_text().splitlines():
        if line.startswith("// Levels: "):
            return line.removeprefix("// Levels: ").partition(" (")[0].split()
    return list(LEVELS)


def compile_all(names, builder):
    """Compiles the programs for this machine and for LoongArch."""
    zig = builder.zig()
    for machine, target in (("native", builder.NATIVE), ("loongarch", builder.LOONGARCH)):
        (BUILT / machine).mkdir(parents=True, exist_ok=True)
        for name in names:
            output = BUILT / machine / name
            builder.run([*zig, "cc", *target, *FLAGS, "-o", output, SOURCES / f"{name}.c"], env=builder.zig_environment())


def run_to_end(command, timeout_s):
    """The status and output of a command; None if it exceeded the time limit."""
    try:
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return None
    return run.returncode, run.stdout.decode(errors="replace").splitlines(), run.stderr.decode(errors="replace").strip()


def difference(expected, got):
    """The difference between two runs, or an empty string."""
    if got is None:
        return "took too long"
    if got[1] != expected[1]:
        differing = [
            f"'{there}', not '{here}'"
            for here, there in zip([*expected[1], *[""] * 1000], [*got[1], *[""] * 1000])
            if here != there
        ]
        return f"{len(differing)} lines: {'; '.join(differing[:12])} {got[2][-300:]}"
    return "" if got[0] == expected[0] else f"ended with {got[0]}, not {expected[0]}: {got[2][-300:]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--emulator", default=f"{ROOT}/target/release/longma run", help="command that runs a program")
    parser.add_argument("--only", metavar="PART", default="", help="only programs whose name contains PART")
    parser.add_argument("--level", choices=list(LEVELS), help="only this one")
    parser.add_argument("--timeout", type=int, default=60, metavar="SECONDS", help="for each run (default 60)")
    options = parser.parse_args()
    names = sorted(source.stem for source in SOURCES.glob("*.c") if options.only in source.stem)
    builder = guest_builder()
    try:
        compile_all(names, builder)
    except builder.Failure as error:
        sys.exit(str(error))
    passed = failed = 0
    for name in names:
        expected = run_to_end([BUILT / "native" / name], options.timeout)
        if expected is None or expected[0] != 0 or not expected[1]:
            sys.exit(f"calls: {name} does not run natively: {expected and expected[0]} {expected and expected[2]}")
        for level in levels_of(name):
            if options.level not in (None, level):
                continue
            command = [*shlex.split(options.emulator), *LEVELS[level], BUILT / "loongarch" / name]
            wrong = difference(expected, run_to_end(command, options.timeout))
            passed, failed = passed + (not wrong), failed + bool(wrong)
            print(f"{'FAIL' if wrong else 'ok  '} {name}, {level}{': ' + wrong if wrong else ''}", flush=True)
    print(f"calls: {passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
