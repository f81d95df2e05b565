"""Measures single mechanisms of the timing model with generated programs, and compares them with the machine file or measured tables.

microchecks measures latencies and bandwidths of memory levels. Python's standard library only.
"""

import dataclasses
import pathlib
import re
import tempfile

from children import ROOT, run_model, value
from microprograms import BASE, DATA, OTHER, ROWS, ZERO, branch, chain, constant, elf, independent, loop, word

LINE = 64
PAGE = 16 << 10
TOLERANCE = 0.05
TIMING = ROOT / "crates/model/timing/src"
AUDITED = "loongson-3a5000"
# One-way latency between two cores of a 3A5000HV at 2.5 GHz: mean of its six pairs (nviennot/core-to-core-latency, results).
TRANSFER_NS = 39.5
# Registers used in addition to those of `microprograms`.
VALUE, SUM, STATE, BIT = 5, 6, 7, 8


@dataclasses.dataclass
class Check:
    """One figure: its name, the expected value (None: a prediction), and the result. `bound` is empty for equality, or "at least" or
    "at most".
    """

    what: str
    machine: str
    unit: str
    expected: float | None
    measured: float | None
    problem: str = ""
    note: str = ""
    tolerance: float = TOLERANCE
    bound: str = ""

    def error(self):
        return self.measured / self.expected - 1 if self.expected and self.measured is not None else None

    def met(self):
        """Whether the figure is close enough to the expected value; None for a prediction."""
        if self.expected is None:
            return None
        error = self.error()
        if error is None:
            return False
        far = {"at least": -error, "at most": error}.get(self.bound, abs(error))
        return far <= self.tolerance + 1e-9

    def verdict(self):
        within = f"within {100 * self.tolerance:.0f} %"
        if self.bound:
            within = self.bound + (f", {within}" if self.tolerance else "")
        return {True: within, False: f"NOT {within}", None: "prediction"}[self.met()]


class Audit:
    """Runs micro-programs on one machine."""

    def __init__(self, options, core):
        self.options, self.core = options, core
        self.problem = ""

    def run(self, words, data_bytes=1 << 16):
        """The statistics of one run; empty if it failed, with the reason in `problem`."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "micro"
            path.write_bytes(elf(words, data_bytes))
            path.chmod(0o755)
            run, found = run_model(self.options, ["--level", "timing", "--core", self.options.core], path, [])
        self.problem = run.problem
        return found

    def cycles(self, body, before=(), between=(), rounds=(50, 150), data_bytes=1 << 16):
        """Cycles per round of `body`, from the difference between two round counts; None if a run failed."""
        runs = [self.run(loop(body, times, before, between), data_bytes) for times in rounds]
        if not all(runs):
            return None
        return (runs[1]["cycles"] - runs[0]["cycles"]) / (rounds[1] - rounds[0])

    def check(self, what, unit, expected, measured, note="", tolerance=TOLERANCE, bound=""):
        return Check(what, self.options.machine, unit, expected, measured, self.problem, note, tolerance, bound)


def cycles_of(text):
    """A latency in cycles."""
    return float(text.split()[0])


# --- The table of instructions ----------------------------------------------------------------------------------------


def table():
    """(latency, interval) by mnemonic, measured or documented; of a range, the middle."""
    found = {}
    for name in ("described-la464.tsv", "measured-la464.tsv"):
        for line in (TIMING / name).read_text().splitlines():
            if line and not line.startswith("#"):
                mnemonic, latency, interval = line.split("\t")[:3]
                ends = [float(end) for end in latency.split("-") if end]
                found[mnemonic] = (sum(ends) / len(ends) if ends else None, float(interval))
    return found


def instructions(audit):
    """Checks latency and rate of every computing instruction of the table: one row per wrong instruction, and a total."""
    if audit.core.get("instruction_timing") != "la464":
        return
    for quantity, index, made, copies in (("latency", 0, chain, 32), ("interval", 1, independent, 8)):
        errors = []
        for name, row in sorted(table().items()):
            body = made(name) if name in ROWS and row[index] else None
            if body is None or (audit.options.few and len(errors) >= audit.options.few):
                continue
            body = body * copies
            measured = audit.cycles(body, rounds=(20, 60))
            # The two loop instructions take one dispatch slot each.
            measured = measured and measured / len(body)
            # The model uses whole cycles of latency.
            expected = max(1, int(row[0] + 0.5)) if quantity == "latency" else row[1]
            found = audit.check(f"{quantity} of {name}", "cycles", expected, measured, tolerance=0.1)
            errors.append(abs(found.error() or 0) if not found.problem else 1)
            if not found.met():
                yield found
        mean = sum(errors) / len(errors)
        yield Check(f"mean error of {quantity}", audit.options.machine, "%", 2.0, 100 * mean, "", f"{len(errors)} instructions", 0, "at most")


def accesses(audit):
    """Checks the rate of every load and store in the table."""
    for name, (_, interval) in sorted(table().items()):
        if name not in ROWS or ROWS[name].kind not in ("load", "store"):
            continue
        number = lambda operand, place: place if operand[0] in "vx" else {"r5": BASE, "r10": ZERO}.get(operand, 0)
        body = [word(name, *(number(operand, place) for operand in ROWS[name].operands)) for place in range(12, 20)] * 8
        measured = audit.cycles(body, constant(BASE, DATA), rounds=(20, 60))
        yield audit.check(f"interval of {name}", "cycles", interval, measured and measured / len(body), tolerance=0.1)


# --- Windows, forwarding, misses --------------------------------------------------------------------------------------


def windows(audit):
    """Checks the reorder buffer: the number of instructions between two misses that still overlap."""
    base = constant(BASE, DATA)
    step = [word("addi.d", BASE, BASE, 1024)] * 9  # new lines, in steps that no prefetcher predicts
    miss = word("ld.d", VALUE, BASE, 0)

    def overlaps(count):
        gap = [word("andi", ZERO, ZERO, 0)] * count
        found = audit.run(loop([miss, *gap], 40, base, step), 1 << 20)
        return found["cycles"] if found else None

    expected = audit.core["rob_entries"]
    inside, outside = overlaps(expected // 2), overlaps(expected * 2)
    if inside is None or outside is None:
        yield audit.check("reorder buffer", "entries", expected, None)
        return
    # With the step and the loop, a round has eleven more instructions.
    low, high = 0, 2 * expected
    half = (inside + outside) / 2
    while high - low > 1:
        middle = (low + high) // 2
        cycles = overlaps(middle)
        low, high = (middle, high) if cycles and cycles < half else (low, middle)
    yield audit.check("reorder buffer", "entries", expected, low + 12, "the longest round whose miss overlaps the next one's", 0.1)


def forwarding(audit):
    """Checks store-to-load forwarding: the latency of a value through memory."""
    load, store = (cycles_of(audit.core["operations"][name]["latency"]) for name in ("load", "store"))
    base = [*constant(BASE, DATA), *constant(OTHER, DATA + 2048)]
    pair = [word("st.d", VALUE, BASE, 0), word("ld.d", VALUE, BASE, 0)]
    yield audit.check("store to load", "cycles", load + store, audit.cycles(pair * 8, base) and audit.cycles(pair * 8, base) / 8)
    other = [pair[0], word("st.d", ZERO, OTHER, 0), pair[1]]
    measured = audit.cycles(other * 8, base)
    yield audit.check("the same with a store 2 KiB away", "cycles", load + store, measured and measured / 8)
    parts = [word("st.w", VALUE, BASE, 0), word("st.w", VALUE, BASE, 4), word("ld.w", VALUE, BASE, 0)]
    measured = audit.cycles(parts * 8, base)
    yield audit.check("the same with a store in the other half", "cycles", load + store, measured and measured / 8)
    divided = [word("div.d", VALUE, VALUE, ZERO), *other]
    measured = audit.cycles(divided * 4, base)
    divide = table()["div.d"][0]
    yield audit.check("a division through memory", "cycles", load + store + divide, measured and measured / 4)


def misses(audit):
    """Checks miss parallelism: exactly as many misses overlap as the L1 has MSHRs."""
    first = next(c for c in audit.caches.values() if c["level"] == 1 and c["kind"] == "data")
    expected = first["mshrs"]
    # One line per page, of pages already translated, in an order that no prefetcher predicts.
    load = [word("ld.d", 4 + n % 4, BASE, 0) for n in range(1)] + [word("addi.d", BASE, BASE, 1088)]
    chained = [word("ld.d", VALUE, BASE, 0), word("add.d", BASE, BASE, VALUE), word("addi.d", BASE, BASE, 1088)]
    bytes_ = 1 << 20
    touch = [*constant(OTHER, DATA)]
    for _ in range(bytes_ // (2 * PAGE)):
        touch += [word("ld.d", VALUE, OTHER, 0), *[word("addi.d", OTHER, OTHER, 2047)] * 16, word("addi.d", OTHER, OTHER, 16)]
    before = [*touch, *constant(BASE, DATA)]
    alone = audit.cycles(chained, before, rounds=(100, 400), data_bytes=bytes_)
    many = audit.cycles(load * 4, before, rounds=(50, 200), data_bytes=bytes_)
    if alone is None or many is None:
        yield audit.check("misses in parallel", "lines", expected, None)
        return
    yield audit.check("misses in parallel", "lines", expected, alone / (many / 4), f"{alone:.0f} cycles one by one, {many / 4:.1f} in parallel", 0.1, "at most")
    yield audit.check("misses in parallel", "lines", expected / 2, alone / (many / 4), "the banks of the memory take the rest", 0, "at least")


# --- Translation, strides, branches, fetch ----------------------------------------------------------------------------


def translation(audit):
    """Checks page walks: the extra latency of a load whose page is in no TLB, alone and in parallel."""
    miss = cycles_of(next(tlb["miss"] for tlb in reversed(audit.core["tlbs"]) if tlb.get("miss")))
    step = [word("addi.d", BASE, BASE, 2047)] * 16 + [word("addi.d", BASE, BASE, 16)]
    chained = [word("ld.d", VALUE, BASE, 0), word("add.d", BASE, BASE, VALUE)]
    for what, body in (("one after another", chained), ("side by side", chained[:1])):
        found = audit.run(loop(body, 400, constant(BASE, DATA), step), 16 << 20)
        missed = found and value(found["tree"], "core0", "dtlb", "misses")
        measured = found["stack"].get("translation", 0) / missed if missed else None
        yield audit.check(f"TLB miss, {what}", "cycles", miss, measured, "cycles of translation in the CPI stack, by misses", 0.1)


def strides(audit):
    """Checks loads with constant strides: a prefetcher must not make large strides slower."""
    bytes_ = 4 << 20
    without = without_prefetcher(audit)
    for stride in (64, 128, 192, 512, 1024, 2048, 4096):
        body = [word("ld.d", VALUE, BASE, 0), *[word("addi.d", BASE, BASE, min(2047, stride))] * (1 if stride < 2048 else stride // 2047)]
        rest = stride - 2047 * (stride // 2047) if stride >= 2048 else 0
        body += [word("addi.d", BASE, BASE, rest)] if rest else []
        times = min(1000, bytes_ // stride - 10)
        measured = audit.cycles(body, constant(BASE, DATA), rounds=(times // 4, times), data_bytes=bytes_)
        plain = without.cycles(body, constant(BASE, DATA), rounds=(times // 4, times), data_bytes=bytes_)
        yield audit.check(f"loads in steps of {stride} B", "cycles", plain, measured, "compared with the same machine without prefetching", 0.1, "at most")


def without_prefetcher(audit):
    """The same machine without prefetchers."""
    text = (ROOT / "crates/machine/topology/machines" / f"{audit.options.machine}.toml").read_text()
    tables = text.split("\n\n")
    kept = "\n\n".join(table for table in tables if ".prefetcher]" not in table)
    path = pathlib.Path(audit.folder) / "without-prefetcher.toml"
    path.write_text(kept)
    options = type(audit.options)(**vars(audit.options))
    options.machine = path
    return Audit(options, audit.core)


def branches(audit):
    """Checks the misprediction penalty: a branch on a random bit against one that always goes the same way."""
    # Marsaglia's xorshift; the choice of the tested bit makes the two branches.
    random = [word("slli.d", BIT, STATE, 13), word("xor", STATE, STATE, BIT), word("srli.d", BIT, STATE, 7), word("xor", STATE, STATE, BIT)]
    random += [word("slli.d", BIT, STATE, 17), word("xor", STATE, STATE, BIT)]
    found = []
    for mask in (1, 0):
        body = [*random, word("andi", BIT, STATE, mask), branch("bnez", 2, BIT), word("addi.d", SUM, SUM, 1)]
        runs = [audit.run(loop(body, times, constant(STATE, 88172645))) for times in (1000, 9000)]
        if not all(runs):
            yield audit.check("misprediction", "cycles", None, None)
            return
        wrong = [value(run["tree"], "core0", "branch", "conditional_mispredicted") or 0 for run in runs]
        found.append((runs[1]["cycles"] - runs[0]["cycles"], wrong[1] - wrong[0]))
    (slow, wrong), (quick, right) = found
    expected = cycles_of(audit.core["branch"]["mispredict"])
    note = f"{wrong - right} of 8000 mispredicted"
    measured = (slow - quick) / (wrong - right) if wrong > right else None
    yield audit.check("misprediction", "cycles", expected, measured, f"{note}; what resolves later costs more", 0.05, "at least")


def fetch(audit):
    """Checks straight-line code that does not fit the L1."""
    count = 24_000  # 94 KiB, in a cache of 64
    found = audit.cycles([word("andi", ZERO, ZERO, 0)] * count, rounds=(2, 6))
    width = audit.core["decode_width"]
    yield audit.check("straight code from L2", "cycles", None, found and found / count, f"an instruction; {1 / width} from L1")
    small = audit.cycles([word("andi", ZERO, ZERO, 0)] * 4000, rounds=(4, 12))
    yield audit.check("straight code from L1", "cycles", 1 / width, small and small / 4000, "an instruction")


def contention(audit):
    """Checks a word passed between two cores against the measured latency."""
    run, _ = run_model(audit.options, ["--level", "timing", "--core", audit.options.core], "contention", ["2", "2000"])
    audit.problem = run.problem
    seen = re.search(r"there and back: ([\d.]+) ns", run.errors)
    measured = float(seen[1]) / 2 if seen and not run.problem else None
    note = "one way, by the guest contention; what was measured is another program, of compare-and-swap"
    yield audit.check("a word handed to another core", "ns", TRANSFER_NS, measured, note, 0.15)


AUDIT = {
    "instructions": instructions,
    "accesses": accesses,
    "windows": windows,
    "forwarding": forwarding,
    "misses": misses,
    "translation": translation,
    "strides": strides,
    "branches": branches,
    "fetch": fetch,
    "contention": contention,
}


def run_audit(options, parts, only):
    """Runs these parts of the audit on a machine."""
    core = next(iter(parts["cores"].values()))
    with tempfile.TemporaryDirectory() as folder:
        audit = Audit(options, core)
        audit.caches, audit.folder = parts["caches"], folder
        yield from AUDIT[only](audit)
