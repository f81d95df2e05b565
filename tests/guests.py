#!/usr/bin/env python3
"""Runs every prebuilt guest with its small size and compares the output with guests/expected.

The expected output was produced natively on Linux, so this tests QEMU too: QEMU 7.2 gets two lines of `signals` wrong. bench/emulation is
the benchmark.
Source: guests/guests.toml.
"""

import argparse
import pathlib
import shlex
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
GUESTS = ROOT / "guests"
PREBUILT = GUESTS / "prebuilt" / "loongarch64"
# Excluded programs per translated architecture: MIPS64's C library rounds once in fused multiply-add, and these programs print all
# digits.
TRANSLATED = {"mips64el": {"fft", "nbody"}, "x86_64": set(), "aarch64": set()}
LIST = tomllib.loads((GUESTS / "guests.toml").read_text())


def cases(vectors, translated):
    """All runs as (title, program, arguments, expected output, expected signal)."""
    for name, facts in LIST["c"].items():
        expected = (GUESTS / "expected" / f"{name}.txt").read_bytes()
        suffixes = ["", "-lsx", "-lasx"] if vectors and facts.get("vectors") else [""]
        for suffix in suffixes:
            yield name + suffix, PREBUILT / (name + suffix), facts["small"], expected, 0
        for architecture, others in TRANSLATED.items() if translated and facts.get("translated") else ():
            if name not in others:
                yield f"{name} for {architecture}", PREBUILT.parent / architecture / name, facts["small"], expected, 0
    for case, signal in LIST["misbehave"].items():
        # A program that dies prints nothing before.
        expected = b"" if signal else (GUESTS / "expected" / f"misbehave-{case}.txt").read_bytes()
        yield f"misbehave {case}", PREBUILT / "misbehave", [case], expected, signal


def most_informative_line(stderr):
    """The most informative line of an error output: that of a panic, otherwise the last."""
    lines = stderr.decode(errors="replace").strip().splitlines() or [""]
    panic = [at for at, line in enumerate(lines) if "panicked" in line]
    return " ".join(lines[panic[0] : panic[0] + 2]) if panic else lines[-1]


def verdict(emulator, program, arguments, expected, signal, timeout_s):
    """The problem with a run, or an empty string."""
    try:
        run = subprocess.run([*emulator, program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return f"took over {timeout_s} s"
    # A signal appears as itself or as a shell reports it.
    if run.returncode not in ((-signal, 128 + signal) if signal else (0,)):
        return f"ended with {run.returncode}, not {'signal ' + str(signal) if signal else 0}: {most_informative_line(run.stderr)}"
    if run.stdout == expected:
        return ""
    got, want = run.stdout.decode(errors="replace").splitlines(), expected.decode().splitlines()
    for number, line in enumerate(want):
        if number >= len(got) or got[number] != line:
            return f"line {number + 1} is '{got[number] if number < len(got) else ''}', not '{line}'"
    return "printed more than expected"


# The ways to run a program in longma. Output and status must be the same in all of them.
LEVELS = {
    "translated": [],
    "interpreted": ["--interpret"],
    "cache": ["--level", "cache", "--quiet"],
    "timing": ["--level", "timing", "--quiet"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--emulator", default=f"{ROOT}/target/release/longma run", help="command that runs a program")
    parser.add_argument("--only", metavar="PART", default="", help="only runs whose title contains PART")
    parser.add_argument("--no-vectors", action="store_true", help="leave out the LSX and LASX programs")
    parser.add_argument("--timeout", type=int, default=60, metavar="SECONDS", help="for each run (default 60)")
    parser.add_argument("--levels", action="store_true", help="longma only: each program in every way that it can be run")
    options = parser.parse_args()
    passed = failed = 0
    levels = LEVELS if options.levels else {"": []}
    for title, program, arguments, expected, signal in cases(not options.no_vectors, options.levels):
        if options.only not in title:
            continue
        for level, words in levels.items():
            emulator = [*shlex.split(options.emulator), *words]
            wrong = verdict(emulator, program, arguments, expected, signal, options.timeout)
            passed, failed = passed + (not wrong), failed + bool(wrong)
            name = f"{title}, {level}" if level else title
            print(f"{'FAIL' if wrong else 'ok  '} {name}{': ' + wrong if wrong else ''}")
    print(f"guests: {passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
