#!/usr/bin/env python3
"""Debugs a compiled program with gdb itself, through longma run --gdb.

Not the protocol's own tests (crates/cli/tests/gdb.rs has those, without gdb).
Needs a gdb that knows LoongArch (GDB 12 or later, built with that target) and zig; installs both if they are missing.
"""

import argparse
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / "target" / "gdb-venv"
GDB_PACKAGE = "gdb-for-pwndbg==18.1.0.post1"
TIMEOUT_S = 120

PROGRAM = """
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

int counter;
static void on_signal(int signal) { (void)signal; counter += 1000; }
__attribute__((noinline)) int inner(int by) { counter += by; return counter * 2; }
__attribute__((noinline)) int outer(int by) { return inner(by) + 1; }
static void *thread(void *given) { return (void *)(long)outer((int)(long)given); }

int main(void) {
    pthread_t other;
    signal(SIGUSR1, on_signal);
    int sum = outer(1) + outer(2);
    pthread_create(&other, NULL, thread, (void *)3L);
    pthread_join(other, NULL);
    raise(SIGUSR1);
    printf("sum %d, counter %d\\n", sum, counter);
    fflush(stdout);
    abort();
}
"""

# What gdb is told, and a pattern that its answers must hold, in this order.
SESSION = [
    ("info registers pc", r"_start"),
    ("break inner", r"Breakpoint 1 at"),
    ("continue", r"Breakpoint 1, inner \(by=1\)"),
    ("backtrace", r"#0 +inner \(by=1\)[\s\S]*#1 .* outer \(by=1\)[\s\S]*#2 .* main"),
    ("print $a0", r"= 1\b"),
    ("finish", r"Value returned is \$\d+ = 2"),
    ("continue", r"Breakpoint 1, inner \(by=2\)"),
    ("next", r""),
    ("continue", r"hit Breakpoint 1, inner \(by=3\)"),
    ("info threads", r"\* 2 +Thread"),
    ("thread apply all backtrace 1", r"Thread 1 "),
    ("delete", r""),
    ("watch counter", r"atchpoint 2: counter"),
    ("continue", r"Old value = 3\s+New value = 6"),
    ("delete", r""),
    ("handle SIGUSR1 stop pass", r""),
    ("continue", r"received signal SIGUSR1"),
    ("print counter", r"= 6\b"),
    ("set var counter = 5", r""),
    ("continue", r"received signal SIGABRT"),
    ("continue", r"terminated with signal SIGABRT"),
]


def knows_loongarch(gdb):
    """True if this gdb can debug LoongArch programs."""
    try:
        run = subprocess.run([gdb, "-nx", "-batch", "-ex", "set architecture Loongarch64"], capture_output=True, text=True, timeout=60)
    except OSError:
        return False
    return "is set to" in run.stdout + run.stderr


def find_gdb():
    """A gdb that knows LoongArch, installed if there is none."""
    own = VENV / "bin" / "gdb"
    for name in ["loongarch64-linux-gnu-gdb", "gdb", "gdb-multiarch", str(own)]:
        if shutil.which(name) and knows_loongarch(name):
            return name
    print(f"gdb: installing {GDB_PACKAGE} into {VENV.relative_to(ROOT)}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True, timeout=TIMEOUT_S)
    subprocess.run([VENV / "bin" / "pip", "install", "--quiet", GDB_PACKAGE], check=True, timeout=600)
    if not knows_loongarch(str(own)):
        sys.exit("gdb: this needs a gdb that knows LoongArch: install one and give it with --gdb")
    return str(own)


def zig():
    """The command for zig."""
    for python in [sys.executable, ROOT / "target" / "guests-venv" / "bin" / "python3"]:
        if subprocess.run([python, "-m", "ziglang", "version"], capture_output=True, timeout=60).returncode == 0:
            return [python, "-m", "ziglang"]
    sys.exit("gdb: zig is missing: run guests/build --install")


def debug(emulator, gdb, program):
    """Runs the session; returns what gdb printed for each command, the program's output and its end."""
    command = [*emulator, "--gdb", "0", program]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = child.stderr.readline().split()[-1]
        words = ["set debuginfod enabled off", "set pagination off", "set width 0", f"target remote {address}"]
        words += [word for said, _ in SESSION for word in (f"echo \\n<<<{said}>>>\\n", said)]
        told = [part for word in words for part in ("-ex", word)]
        run = subprocess.run([gdb, "-nx", "-batch", *told], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S)
        output, _ = child.communicate(timeout=TIMEOUT_S)
    finally:
        child.kill()
    return re.split(r"\n<<<.*>>>\n", run.stdout)[1:], output, child.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--emulator", default=f"{ROOT}/target/release/longma run", help="command that runs a program")
    parser.add_argument("--gdb", help="the gdb to use")
    options = parser.parse_args()
    gdb = options.gdb or find_gdb()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        source, program = pathlib.Path(folder, "program.c"), pathlib.Path(folder, "program")
        source.write_text(PROGRAM)
        build = [*zig(), "cc", "-target", "loongarch64-linux-musl", "-O1", "-g", "-static", "-o", program, source]
        subprocess.run(build, check=True, timeout=600)
        answers, output, ended = debug(shlex.split(options.emulator), gdb, program)
    for index, (said, wanted) in enumerate(SESSION):
        answer = answers[index] if index < len(answers) else "(nothing)"
        right = re.search(wanted, answer) is not None
        failed += not right
        print(f"{'ok  ' if right else 'FAIL'} {said}" + ("" if right else f": no '{wanted}' in:\n{answer}"))
    for what, right in [("what it prints", output == "sum 10, counter 1005\n"), ("how it ends", ended in (-6, 134))]:
        failed += not right
        print(f"{'ok  ' if right else 'FAIL'} {what}" + ("" if right else f": {output!r}, {ended}"))
    print(f"gdb: {len(SESSION) + 2 - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
