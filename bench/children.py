"""Shared by the benchmarks: runs commands with a time limit, builds guests, reads statistics, and formats tables.

Python's standard library only.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
GUESTS = ROOT / "guests"
PREBUILT = GUESTS / "prebuilt" / "loongarch64"
BUILT = ROOT / "target" / "emulation-bench"


class Failure(Exception):
    """An error whose message tells the user what to do."""


@dataclasses.dataclass
class Run:
    """A finished child process: wall, user and system seconds, the SHA-256 of its standard output, the problem, if any, its standard
    error, and its peak memory.
    """

    wall_s: float
    user_s: float
    system_s: float
    output: str
    problem: str = ""
    errors: str = ""
    resident_kib: int = 0


def time_child(command, timeout_s, cpu=None):
    """Runs a command to completion, on one CPU if `cpu` is given. Kills it and its children after `timeout_s`."""
    pin = None if cpu is None else lambda: os.sched_setaffinity(0, {cpu})
    with tempfile.TemporaryFile() as stdout_file, tempfile.TemporaryFile() as stderr_file:
        start = time.perf_counter()
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout_file, stderr=stderr_file, start_new_session=True, preexec_fn=pin
        )
        timed_out = threading.Event()

        def kill():
            timed_out.set()
            with contextlib.suppress(ProcessLookupError):  # it may just have ended
                os.killpg(child.pid, signal.SIGKILL)

        timer = threading.Timer(timeout_s, kill)
        timer.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)
            wall_s = time.perf_counter() - start
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
        finally:
            timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        stdout_file.seek(0)
        output = hashlib.sha256(stdout_file.read()).hexdigest()
        stderr_file.seek(0)
        message = stderr_file.read(1 << 20).decode(errors="replace")
    problem = f"timed out after {timeout_s:g} s" if timed_out.is_set() else f"exit {child.returncode}" if child.returncode else ""
    return Run(wall_s, usage.ru_utime, usage.ru_stime, output, problem, message, usage.ru_maxrss)


def out_of_date(folder, sources):
    """Whether `folder` is older than the last change to `sources`."""
    stamp = folder / "built"
    if not stamp.exists():
        return True
    newest = max(p.stat().st_mtime for s in sources for p in ([s] if s.is_file() else s.rglob("*")))
    return newest > stamp.stat().st_mtime


def build(folder, options, sources):
    """Runs guests/build to fill `folder`, if it is out of date."""
    sources = [*sources, GUESTS / "build", GUESTS / "guests.toml"]
    if not out_of_date(folder, sources):
        return
    print(f"building {folder.relative_to(ROOT)}", file=sys.stderr)
    made = subprocess.run([GUESTS / "build", *options, folder], capture_output=True, text=True, timeout=1800)
    if made.returncode != 0:
        raise Failure(made.stderr.strip() or f"guests/build failed with {made.returncode}")
    (folder / "built").touch()


def processor():
    """This host's processor name."""
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def number(value, form=".3f"):
    return format(value, form) if value is not None else "-"


def align_table(heads, lines, markdown=False, left=(0,)):
    """A table as aligned text or Markdown; the columns in `left` are left-aligned."""
    if markdown:
        return "\n".join("| " + " | ".join(line) + " |" for line in [heads, ["---"] * len(heads), *lines])
    widths = [max(len(line[i]) for line in [heads, *lines]) for i in range(len(heads))]
    pad = lambda i, text: text.ljust(widths[i]) if i in left else text.rjust(widths[i])
    return "\n".join("  ".join(pad(i, text) for i, text in enumerate(line)).rstrip() for line in [heads, *lines])


def run_model(options, level, guest, arguments, cpu=None, more=()):
    """Runs a guest on a model; returns the run and its statistics (empty if it failed). At level functional, the only statistic is
    the instruction count, and only if `more` contains `--stats`: counting slows the run.
    """
    if not pathlib.Path(options.longma).exists():
        raise Failure(f"{options.longma} does not exist: run `cargo build --release -p longma-cli` or give --longma PATH")
    guest_line = [PREBUILT / guest, *(["--", *arguments] if arguments else [])]
    command = [options.longma, "run", "--machine", str(options.machine), *level, *more]
    if "functional" in level:
        run = time_child([*command, "--format", "json", *guest_line], options.timeout, cpu)
        counted = [line for line in run.errors.splitlines() if line.startswith('{"')]
        return run, {"instructions": json.loads(counted[-1])["instructions"]} if counted and not run.problem else {}
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "statistics.json"
        run = time_child([*command, "--quiet", "--stats-out", file, *guest_line], options.timeout, cpu)
        if run.problem or not file.exists():
            return run, {}
        return run, read_statistics(json.loads(file.read_text()))


def value(tree, *names):
    """The value of a statistic in longma's JSON, or None."""
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree.get("value") if isinstance(tree, dict) else None


def read_statistics(report):
    """Reads the statistics that the benchmarks need: instructions, cycles and CPI stack of all cores, and the whole tree."""
    tree = report.get("statistics", {})
    stack = {}
    for core in (tree[name] for name in tree if re.fullmatch(r"core\d+", name)):
        for cause, entry in core.get("cpi", {}).items():
            stack[cause] = stack.get(cause, 0) + (entry.get("value") or 0) * (value(core, "instructions") or 0)
    cycles, instructions = value(tree, "run", "cycles"), value(tree, "run", "instructions")
    return {"instructions": instructions, "cycles": cycles, "stack": stack, "tree": tree} if instructions else {}
