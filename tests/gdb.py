#!/usr/bin/env python3
"""Debugs compiled programs for every architecture with gdb, through longma run --gdb, and one without a kernel, through longma boot --gdb.

Each program goes through a debugging session. For the translated architectures, gdb also steps through a function: registers and flags must
equal those of the same program natively (x86-64) or under QEMU's user mode (AArch64, MIPS64). crates/cli/tests/gdb and
crates/system/system/tests/gdb test the protocol without gdb.
Needs zig, and a gdb that supports the architectures (for LoongArch, GDB 12 or later); installs one if there is none.
"""

import argparse
import pathlib
import re
import shlex
import shutil
import socket
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

/* What single steps go through: every flag, signed and unsigned, products, a loop, a call, memory, doubles. */
double scale = 0.5;
__attribute__((noinline)) long mixed(long a, long b) {
    unsigned long sum = (unsigned long)a;
    long table[4] = {b, 1, -2, a};
    for (int i = 0; i < 6; i++) {
        unsigned long before = sum;
        sum += (unsigned long)table[i & 3] * 0x9e3779b97f4a7c15u;
        if (sum < before) sum ^= sum >> 7;
        if ((long)sum < b) sum -= 3;
        if ((int)sum > (int)before) table[i & 3] = (int)sum;
        sum = sum << 5 | sum >> 59;
    }
    return (long)sum + outer((int)b) + (long)((double)b * scale);
}
static void *thread(void *given) { return (void *)(long)outer((int)(long)given); }

int main(void) {
    pthread_t other;
    signal(SIGUSR1, on_signal);
    if (mixed(3, 4) == 0) puts("zero");
    counter = 0;
    int sum = outer(1) + outer(2);
    pthread_create(&other, NULL, thread, (void *)3L);
    pthread_join(other, NULL);
    raise(SIGUSR1);
    printf("sum %d, counter %d\\n", sum, counter);
    fflush(stdout);
    abort();
}
"""

# Runs at privilege level 0 without a kernel: prints a letter on the serial port and switches the machine off.
MACHINE_PROGRAM = """
#define SERIAL ((volatile unsigned char *)0x1fe001e0)
#define POWER ((volatile unsigned char *)0x100e001c)

__attribute__((aligned(16), used)) char stack[4096];
int counter;
__attribute__((noinline)) int add(int by) { counter += by; return counter * 2; }

void work(void) {
    int sum = 0;
    for (int by = 1; by <= 3; by++) sum += add(by);
    *SERIAL = (unsigned char)('a' + sum);
    *POWER = 0x34;
    for (;;) {}
}

__asm__(".globl _start\\n_start: la.pcrel $sp, stack\\n addi.d $sp, $sp, 2032\\n b work\\n");
"""
MACHINE_SESSION = [
    ("x/i $pc", r"_start"),
    ("info threads", r"Thread 1\.1 [\s\S]*Thread 1\.2 .*not started"),
    ("print/x $CRMD", r"= 0x8\b"),
    ("hbreak add if by == 2", r"assisted breakpoint 1 at"),
    ("continue", r"Breakpoint 1, add \((by=|by@entry=)*2\)"),
    ("backtrace", r"#0 +add [\s\S]*#1 .* work"),
    ("finish", r"Value returned is \$\d+ = 6"),
    ("delete", r""),
    ("watch counter", r"atchpoint 2: counter"),
    ("continue", r"Old value = 3\s+New value = 6"),
    ("delete", r""),
    ("stepi", r""),
    ("info registers PRMD", r"PRMD +0x0"),
    ("set var counter = 50", r""),
    ("print counter", r"= 50\b"),
    ("continue", r"exited normally"),
]

# Commands for gdb, and a pattern that its output must match in this order. ARGUMENT is the register of the first argument.
SESSION = [
    ("x/i $pc", r"_start"),
    ("break inner if by < 4", r"Breakpoint 1 at"),
    ("continue", r"Breakpoint 1, inner \((by=|by@entry=)*1\)"),
    ("backtrace", r"#0 +inner [\s\S]*#1 .* outer [\s\S]*#2 .* main"),
    ("print ARGUMENT", r"= 1\b"),
    ("finish", r"Value returned is \$\d+ = 2"),
    ("continue", r"Breakpoint 1, inner \((by=|by@entry=)*2\)"),
    ("next", r""),
    ("continue", r"hit Breakpoint 1, inner \((by=|by@entry=)*3\)"),
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


class Architecture:
    """Properties of an architecture: its names in gdb and zig, the first argument's register, and how to run it without longma."""

    def __init__(self, known_as, target, argument, registers=(), other=None):
        self.known_as, self.target, self.argument = known_as, target, argument
        self.registers, self.other = registers, other


X86_REGISTERS = [*"rip eflags rax rbx rcx rdx rsi rdi rbp rsp".split(), *(f"r{n}" for n in range(8, 16))]
ARCHITECTURES = {
    "loongarch64": Architecture("Loongarch64", "loongarch64-linux-musl", "$a0"),
    "x86_64": Architecture("i386:x86-64", "x86_64-linux-musl", "$rdi", [*X86_REGISTERS, "xmm0.v2_int64[0]", "xmm1.v2_int64[0]"]),
    "aarch64": Architecture(
        "aarch64", "aarch64-linux-musl", "$x0", ["pc", "cpsr", "sp", *(f"x{n}" for n in range(31)), "v0.d.u[0]", "v1.d.u[0]"], "qemu-aarch64"
    ),
    # k0 and k1 read as zero: the kernel may change them at any time.
    "mips64el": Architecture(
        "mips:isa64r2",
        "mips64el-linux-muslabi64",
        "$a0",
        ["pc", "hi", "lo", *(f"{n}" for n in "at v0 v1 a0 a1 a2 a3 a4 a5 a6 a7 t0 t1 t2 t3 s0 s1 s2 s3 s4 s5 s6 s7 t8 t9 gp sp s8 ra".split())],
        "qemu-mips64el",
    ),
}
STEPS = 150
ARGUMENT_VALUE = 0x7EDCBA9876543211

# x86-64: flags in the manual's order CF PF ZF SF OF, and which instructions leave which of them undefined.
X86_FLAGS = 0x8C5
X86_UNDEFINED = {"imul": 0xC4, "mul": 0xC4, "shl": 0x800, "shr": 0x800, "sar": 0x800, "rol": 0x800, "ror": 0x800, "shld": 0x800}
# On AArch64, only with the suffix s.
FLAG_WRITERS = ("add", "sub", "cmp", "cmn", "tst", "test", "and", "or", "xor", "neg", "inc", "dec")


def supports(gdb, architecture):
    """Whether this gdb supports an architecture."""
    try:
        run = subprocess.run([gdb, "-nx", "-batch", "-ex", f"set architecture {architecture}"], capture_output=True, text=True, timeout=60)
    except OSError:
        return False
    return "is set to" in run.stdout + run.stderr


def find_gdb(architecture):
    """A gdb that supports an architecture; installs one if there is none."""
    own = VENV / "bin" / "gdb"
    for name in ["gdb-multiarch", "gdb", "loongarch64-linux-gnu-gdb", str(own)]:
        if shutil.which(name) and supports(name, architecture):
            return name
    print(f"gdb: installing {GDB_PACKAGE} into {VENV.relative_to(ROOT)}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True, timeout=TIMEOUT_S)
    subprocess.run([VENV / "bin" / "pip", "install", "--quiet", GDB_PACKAGE], check=True, timeout=600)
    if not supports(str(own), architecture):
        sys.exit(f"gdb: this needs a gdb that knows {architecture}: install one and give it with --gdb")
    return str(own)


def zig():
    """The zig command; installs zig if there is none."""
    own = ROOT / "target" / "guests-venv" / "bin" / "python3"
    for python in [sys.executable, str(own)]:
        if shutil.which(python) and subprocess.run([python, "-m", "ziglang", "version"], capture_output=True, timeout=60).returncode == 0:
            return [python, "-m", "ziglang"]
    subprocess.run([ROOT / "guests" / "build", "--install"], check=True, timeout=600)
    return [str(own), "-m", "ziglang"]


QUIET = ["set debuginfod enabled off", "set pagination off", "set width 0", "set confirm off"]


def run_gdb(gdb, words, program=None):
    """Runs gdb with these commands and returns its output."""
    arguments = [part for word in [*QUIET, *words] for part in ("-ex", word)]
    command = [gdb, "-nx", "-batch", *arguments, *([program] if program else [])]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S).stdout


def under_longma(emulator, gdb, program, words):
    """Debugs a program under longma; returns gdb's output, the program's output and its status."""
    command = [*emulator, "--gdb", "0", program]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = child.stderr.readline().split()[-1]
        printed = run_gdb(gdb, [f"target remote {address}", *words])
        output, _ = child.communicate(timeout=TIMEOUT_S)
    finally:
        child.kill()
    return printed, output, child.returncode


def without_longma(other, gdb, program, words):
    """Debugs the same program natively or under another emulator; returns gdb's output."""
    if other is None:
        return run_gdb(gdb, [word if word != "continue" else "run" for word in words], program)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    child = subprocess.Popen([other, "-g", str(port), program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return run_gdb(gdb, [f"target remote 127.0.0.1:{port}", *words], program)
    finally:
        child.kill()


def steps_of(printed):
    """Parses gdb's output into the steps (instruction name, registers) and the function's result."""
    steps = []
    for line in printed.splitlines():
        if found := re.match(r"(?:=> )?0x[0-9a-f]+ <mixed[^>]*>:\t(\S+)|(?:=> )?0x[0-9a-f]+[^:]*:\t(\S+)", line):
            steps.append([found.group(1) or found.group(2), None])
        elif found := re.match(r"<<(.*)>>", line):
            steps[-1][1] = [int(value, 16) for value in found.group(1).split()]
    result = re.search(r"Value returned is \$\d+ = (-?\d+)", printed)
    return steps, result and result.group(1)


def compare(architecture, emulator, gdb, program):
    """Steps through a function with and without longma; returns the difference, or an empty string."""
    formats = " ".join("%lx" for _ in architecture.registers)
    # gdb cannot cast flags, and prints pointers as numbers only if they are cast.
    values = ", ".join(f"${name}" if name in ("eflags", "cpsr") else f"(long)${name}" for name in architecture.registers)
    show = ["x/i $pc", f'printf "<<{formats}>>\\n", {values}']
    start = ["break *mixed", "continue", "delete", f"set var {architecture.argument} = {ARGUMENT_VALUE}"]
    words = [*start, *(word for _ in range(STEPS) for word in (*show, "stepi")), "finish", "kill"]
    ours, our_result = steps_of(under_longma(emulator, gdb, program, words)[0])
    theirs, their_result = steps_of(without_longma(architecture.other, gdb, program, words))
    if not len(ours) == len(theirs) == STEPS or not all(registers for _, registers in [*ours, *theirs]):
        return f"{len(ours)} steps, and {len(theirs)} without longma, of {STEPS}"
    # Stacks and environments are at different addresses: allow pointers to differ by the initial difference.
    initial_differences = {(own - other) % 2**64 for own, other in zip(ours[0][1], theirs[0][1])}
    undefined = X86_FLAGS  # Left by earlier code; depends on stack addresses.
    for index, ((name, own), (_, other)) in enumerate(zip(ours, theirs)):
        for register, mine, its in zip(architecture.registers, own, other):
            if register == "eflags":
                mine, its = mine & X86_FLAGS & ~undefined, its & X86_FLAGS & ~undefined
            if register == "cpsr":
                mine, its = (mine >> 28 & 15, its >> 28 & 15) if undefined != X86_FLAGS else (0, 0)
            if mine != its and (register in ("pc", "rip", "cpsr", "eflags") or (mine - its) % 2**64 not in initial_differences):
                before = ours[index - 1][0] if index else "the beginning"
                return f"step {index}, behind {before}: {register} is {mine:#x}, and {its:#x} without longma"
        if name.startswith(FLAG_WRITERS) and (name not in ("add", "sub", "and") or "eflags" in architecture.registers):
            undefined = 0
        undefined |= next((bits for end, bits in X86_UNDEFINED.items() if name.startswith(end)), 0)
    if our_result is None or our_result != their_result:
        return f"the function returned {our_result}, and {their_result} without longma"
    return None


class Tally:
    """Counts passed and failed checks."""

    def __init__(self):
        self.passed = self.failed = 0

    def note(self, what, right, detail):
        """Counts and prints a check; `detail` is the reason of a failure."""
        self.passed, self.failed = self.passed + bool(right), self.failed + (not right)
        print(f"{'ok  ' if right else 'FAIL'} {what}" + ("" if right else f": {detail}"))


def check(name, emulator, options, folder, tally):
    """Runs all checks for a program of an architecture."""
    architecture = ARCHITECTURES[name]
    gdb = options.gdb or find_gdb(architecture.known_as)
    program = pathlib.Path(folder, name)
    build = [*zig(), "cc", "-target", architecture.target, "-O1", "-g", "-static", "-Wno-option-ignored", "-o", program]
    subprocess.run([*build, pathlib.Path(folder, "program.c")], check=True, timeout=600)
    session = [(typed.replace("ARGUMENT", architecture.argument), expected) for typed, expected in SESSION]
    words = [word for typed, _ in session for word in (f"echo \\n<<<{typed}>>>\\n", typed)]
    printed, output, ended = under_longma(emulator, gdb, program, words)
    note_answers(name, session, printed, tally)
    tally.note(f"{name}: what it prints", output == "sum 10, counter 1005\n", repr(output))
    tally.note(f"{name}: how it ends", ended in (-6, 134), ended)
    if not architecture.registers:
        return
    if architecture.other and not shutil.which(architecture.other):
        print(f"skipped: {name} was not compared step by step: install qemu-user")
        return
    wrong = compare(architecture, emulator, gdb, program)
    tally.note(f"{name}: {STEPS} steps and the result are those without longma", wrong is None, wrong)


def check_machine(boot, options, folder, tally):
    """Debugs a program without a kernel on a machine with two cores."""
    gdb = options.gdb or find_gdb("Loongarch64")
    program, source = pathlib.Path(folder, "machine"), pathlib.Path(folder, "machine.c")
    source.write_text(MACHINE_PROGRAM)
    build = [*zig(), "cc", "-target", "loongarch64-freestanding-none", "-O1", "-g", "-nostdlib", "-static", "-Wno-option-ignored"]
    subprocess.run([*build, "-Wl,--image-base=0x1000000", "-o", program, source], check=True, timeout=600)
    words = [word for typed, _ in MACHINE_SESSION for word in (f"echo \\n<<<{typed}>>>\\n", typed)]
    command = [*boot, "--cores", "2", "--kernel", program, "--gdb", "0"]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        place = child.stderr.readline().split()[-1]
        printed = run_gdb(gdb, [f"file {program}", f"target remote {place}", *words])
        output, _ = child.communicate(timeout=TIMEOUT_S)
    finally:
        child.kill()
    note_answers("machine", MACHINE_SESSION, printed, tally)
    tally.note("machine: what it prints and how it ends", (output, child.returncode) == ("u", 0), (output, child.returncode))


def note_answers(name, session, printed, tally):
    """Checks gdb's answers to a session."""
    answers = re.split(r"\n<<<.*>>>\n", printed)[1:]
    for index, (typed, expected) in enumerate(session):
        answer = answers[index] if index < len(answers) else "(nothing)"
        tally.note(f"{name}: {typed}", re.search(expected, answer), f"no '{expected}' in:\n{answer}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--emulator", default=f"{ROOT}/target/release/longma run", help="command that runs a program")
    parser.add_argument("--boot", default=f"{ROOT}/target/release/longma boot", help="command that boots a kernel")
    parser.add_argument("--gdb", help="the gdb to use")
    parser.add_argument("--only", choices=[*ARCHITECTURES, "machine"], help="programs for one architecture, or that without a kernel")
    options = parser.parse_args()
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "program.c").write_text(PROGRAM)
        for name in [options.only] if options.only else [*ARCHITECTURES, "machine"]:
            if name == "machine":
                check_machine(shlex.split(options.boot), options, folder, tally)
            else:
                check(name, shlex.split(options.emulator), options, folder, tally)
    print(f"gdb: {tally.passed} passed, {tally.failed} failed")
    sys.exit(1 if tally.failed else 0)


if __name__ == "__main__":
    main()
