#!/usr/bin/env python3
"""Changes every key of every shipped machine file, one at a time, and fails for keys whose change has no visible effect.

A key counts as used if a change passes `longma machine check` and then changes a statistic or result of one of the probes below, provided
both machines run the probe. Names and limits count as used if the check rejects a change. Each key of the format needs one machine that
shows it.
Source: the kinds of values are those in the book's chapter on machines, which is generated from the code.
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
GUESTS = ROOT / "guests" / "prebuilt" / "loongarch64"
CHAPTER = ROOT / "docs" / "src" / "reference" / "machine-files.md"
FILES = sorted((ROOT / "crates/machine/topology/machines").glob("*.toml")) + sorted((ROOT / "experiments" / "machines").glob("*.toml"))

# Keys without an effect, with the reasons. `*` matches any name or number.
EXCEPTIONS = {
    "sources.*": "where numbers come from: read by `longma machine show --sources` and by people",
    "*.source": "cites the sources",
    "*.source.*": "cites the sources",
    "*.source_of.*": "cites the sources",
    "name": "what the machine is called: a name for people, and in messages",
    "title": "says what the machine is",
    "description": "says what the machine is",
    "*.title": "says what the part is",
    "cores.*.extensions": "what `cpucfg` and AT_HWCAP tell a program; unit tests of `longma run` compare them",
    "chips.*.ports.*.protocol": "what the port speaks, for the drawing; how fast it is say its width, rate and latency",
    "hosts.*.links.*.protocol": "what the link speaks, for the drawing; width, rate and latency say how fast it is",
    "hosts.*.buses.*.protocol": "what the bus speaks: where a model needs PCI another is refused, else width, rate and latency say it",
    "hosts.*.os.kernel": "a name: which kernel's costs are stated",
    "devices.*.zoned.zone_size": "how far zones are apart: no time depends on it",
    "devices.*.zoned.max_active": "a limit that the trees do not reach; the zone rules' tests in crates/storage/zoned-device do",
    "devices.*.zoned.page": "matters to reads of more than a block, which the trees do not make; crates/storage/zoned has tests that do",
    "devices.*.myrinet.interrupt_interval": "of interrupts, which the workload's polling programs do not ask for",
    "*.units.*.name": "a name for people: nothing refers to it",
    "cores.*.isa": "another is refused by `longma run`, whose tests say so: the models run LoongArch64",
    "cores.*.threads": "what the host's operating system sees; a modelled core runs one thread",
    "chips.*.address_windows.address": "how far up addresses go: caches and memories count by the bits below; crates/model/memory has tests of the windows",
    "chips.*.address_windows.chip_bit": "where a chip's addresses begin: as above",
}

REFUSED = range(124, 128)  # statuses of `longma run` that do not come from the program
CPU_SECONDS = 15  # time limit of a probe; the longest takes 6 s on a busy machine with overflow checks

# Limits: `longma machine check` rejects a change that the described parts would exceed; other changes have no effect.
LIMITS = {
    "chips.*.crossbars.*.master_ports": "masters must find a port",
    "chips.*.crossbars.*.slave_ports": "slaves must find a port",
    "switches.*.ports": "cables must find a port",
    "hosts.*.count": "the file's cables end at hosts",
    "chips.*.nodes.*.count": "links end at nodes",
    "switches.*.network": "cables carry what is at their ends",
}

# Names and references: an unknown name is rejected, and so is renaming a referenced part.
NAMES = re.compile(
    r"format|caches\.\*\.(level|next)|cores\.\*\.(caches|units\.\*\.operations)"
    r"|chips\.\*\.(caches|ports\.\*\.name|crossbars\.\*\.(name|masters|slaves)|nodes\.\*\.(caches|clusters\.\*\.(core|caches)|memory\.\*\.memory))"
    r"|hosts\.\*\.(name|chips|buses\.\*\.(name|on)|devices\.\*\.(name|device|on)|links\.\*\.(name|between))"
    r"|switches\.\*\.name|cables\.\*\.between"
)

ABSENT = object()  # a missing value

# Keys for which the usual changes on the shipped machines have too small an effect: the machine, permanent edits, the key's values before
# and after, and the probe. With several keys, all are changed, for example because line sizes must be equal at all levels.
CASES = {
    "cores.*.idma.interrupt": ("godson3", {}, "cores.gs464.idma.interrupt", "50 cycles", "50 us", "engine-faults"),
    "cores.*.cam.value": ("godson3", {}, "cores.gs464.cam.value", None, "8 bit", "machines"),
    "cores.*.cam.tag": ("godson3", {}, "cores.gs464.cam.tag", None, "1 bit", "machines"),
    "caches.*.line": ("godson3", {}, ("caches.l1i.line", "caches.l1d.line", "caches.l2.line"), None, "64 B", "fft"),
    "caches.*.lock.min_unlocked_ways": ("godson3", {}, "caches.l2.lock.min_unlocked_ways", 1, 4, "packets"),
    "caches.*.dca.ways": ("loongson-3a5000-ethernet", {"caches.l3.size": "256 KiB"}, "caches.l3.dca.ways", 2, 8, "packets-fast"),
    "caches.*.dca.locked_lines_only": ("godson3", {}, "caches.l2.dca.locked_lines_only", False, True, "packets"),
    "devices.*.ethernet.pause": ("sandybridge-2x6", {}, "devices.connectx3.ethernet.pause", None, True, "flow-overrun"),
    "caches.*.coherence": ("piii-myrinet", {"caches.l1d.coherence": "none"}, "caches.l2.coherence", "snoop", "directory", "sharing"),
    "cores.*.instruction_timing": ("loongson-3a4000", {}, "cores.gs464ev.instruction_timing", None, ABSENT, "fft"),
    "cores.*.tlbs.*.page_sizes": ("loongson-3a5000", {}, "cores.la464.tlbs.0.page_sizes", ["16 KiB"], ["4 KiB"], "chase"),
    "caches.*.prefetcher.crosses_pages": ("hygon-8node", {}, "caches.l2.prefetcher.crosses_pages", False, True, "threads"),
    "cores.*.page_walkers": ("hygon-8node", {"cores.zen.tlbs.2.entries": 12}, "cores.zen.page_walkers", 2, 1, "threads"),
    "chips.*.crossbars.*.separate_read_write": ("godson3", {}, "chips.godson3.crossbars.1.separate_read_write", True, False, "threads"),
    "hosts.*.links.*.bandwidth": ("hygon-8node", {}, "hosts.0.links.0.bandwidth", None, "100 MB/s", "far-node"),
    "hosts.*.buses.*.width": ("godson3-and-pci", {"hosts.0.buses.0.rate": "100 MT/s"}, "hosts.0.buses.0.width", None, "2 bit", "packets-pci"),
    "hosts.*.buses.*.rate": ("godson3-and-pci", {}, "hosts.0.buses.0.rate", None, "20 MT/s", "packets-pci"),
    "hosts.*.distances.slit": (
        "hygon-8node",
        {"hosts.0.distances.latency": ABSENT},
        "hosts.0.distances.slit",
        [[10 if a == b else 20 for a in range(8)] for b in range(8)],
        [[10 if a == b else 15 if {a, b} == {0, 4} else 20 for a in range(8)] for b in range(8)],
        "far-nodes",
    ),
    "hosts.*.os.tick_interval": ("sandybridge-2x6", {}, "hosts.0.os.tick_interval", "4 ms", "10 us", "fft"),
    "hosts.*.os.tick": ("sandybridge-2x6", {"hosts.0.os.tick_interval": "10 us"}, "hosts.0.os.tick", "2 us", "1 us", "fft"),
    "switches.*.rate": ("piii-myrinet", {}, "switches.0.rate", None, "200 Mb/s", "messages-rate"),
    "switches.*.cut_through": ("piii-myrinet", {}, "switches.0.cut_through", True, False, "messages"),
}

# --- Probes -----------------------------------------------------------------------------------------------------------


def guest(words, *options, level="timing", **environment):
    """A probe that runs a guest program in simulated time."""
    return {"words": words.split(), "options": options, "level": level, "environment": environment}


def experiment(workload, /, **parameters):
    """A probe that runs one point of an experiment workload."""
    return {"workload": workload, "parameters": parameters}


WIRE = "tcp,bytes=60000,message=1024"
# More than a slow bus can carry.
FAST = "tcp,bytes=200000,message=4096,message_interval_ns=2100"
# A polling program is ready only after a while; messages arrive one at a time.
POLLED = "tcp,bytes=10000,begin_us=3000,message_interval_ns=20000"
PROBES = {
    "fft": guest("fft-lasx 8 3"),
    "sort": guest("sort 2000"),
    "threads": guest("stream_threads 20000 1 4"),
    "calls": guest("unix_syscall 50"),
    "switches": guest("unix_context 40"),
    "chase": guest("load_latency 4096 20000"),
    "in-order": guest("fft 8 2", "--core", "in-order"),
    "counts": guest("sort 2000", level="cache"),
    "features": guest("hello", level="functional"),
    "numa": guest("stream_threads 20000 1 2", "--numa", "interleave:0,1"),
    "touch": guest("touch 1"),
    "sharing": guest("sharing 7 3 300"),
    "engine": guest("idma_memcpy-lasx 4096 tags 128 3"),
    "engine-rules": guest("idma_check 8 7"),
    "engine-faults": guest("idma_check 40 7"),
    "machines": guest("vm_switch save cam 3 64 100"),
    "pages": guest("page_migration rdma 4 4"),
    "packets": guest("tcp_receive eth0", "--wire", f"eth0,{WIRE}", dca="1", lock="1"),
    "packets-polled": guest("tcp_receive eth0", "--wire", f"eth0,{POLLED}", wait="2"),
    "packets-pci": guest("tcp_receive nic0", "--wire", f"nic0,{FAST}", dca="0"),
    "packets-fast": guest("tcp_receive eth0", "--wire", f"eth0,{FAST}", dca="1"),
    "frames": guest("device_check mac eth0 4 2", "--wire", "eth0,loop"),
    "flow": guest("flow_receive-lasx eth0", "--wire", "eth0,tcp,bytes=300000,mss=8960", flow="1", application="2"),
    # The ring is smaller than the window, and the core slower than the link.
    "flow-overrun": guest("flow_receive-lasx eth0", "--wire", "eth0,tcp,bytes=3000000,mss=8960", ring="16", path="20000"),
    # The program prints the number of queues.
    "queues": guest("flow_receive eth0", "--wire", f"eth0,{WIRE}", queues="16"),
    "queues-pci": guest("flow_receive nic0", "--wire", f"nic0,{WIRE}", queues="16"),
    "messages": experiment("via", firmware="bvia", measure="latency", messages=20, size="4 KiB"),
    "messages-rate": experiment("via", firmware="myvia", measure="bandwidth", messages=60, size="64 KiB"),
    "messages-pages": experiment("via", firmware="bvia", measure="bandwidth", messages=60, size="64 KiB", tlb_entries=16),
    "messages-small": experiment("via", firmware="myvia", measure="bandwidth", messages=60, size="4 B"),
}
FAR = {"folder": str(GUESTS), "program": "stream_threads", "arguments": ["20000", "1", "2"], "level": "timing", "numa": "bind:1"}
PROBES["far-node"] = experiment("program", **FAR)  # on a host that cannot run its own programs
PROBES["far-nodes"] = experiment("program", **FAR | {"numa": "bind:1,4"})
TREES = {"pairs": 3000, "workload": "W1", "conventional_zones": 1, "sequential_zones": 40, "entries": 16}
PROBES |= {
    "tree-drive": experiment("zoned", device="nvme0", tree="cow", **TREES),
    "tree-answering": experiment("zoned", device="nullb0", tree="zb", **TREES | {"conventional_zones": -1, "sequential_zones": -1}),
    "tree-drive-full": experiment("zoned", device="nvme0", tree="cow", **TREES | {"sequential_zones": 1, "zone": "4 MiB"}),
    "tree-drive-zones": experiment("zoned", device="nvme0", tree="cow", **TREES | {"conventional_zones": 1, "sequential_zones": -1}),
}
GENERAL = ["fft", "sort", "threads", "calls", "switches", "chase", "in-order", "counts", "features", "numa", "touch", "sharing"]
ENGINES = ["engine", "machines", "engine-rules"]
PACKETS = ["packets", "frames", "packets-polled", "packets-fast", "queues"]
DRIVES = ["tree-drive", "tree-answering", "tree-drive-full", "tree-drive-zones"]
MESSAGES = ["messages", "messages-rate", "messages-pages", "messages-small"]
OF = {
    "godson3": GENERAL + ENGINES + PACKETS,
    "godson3-conventional": GENERAL + PACKETS,
    "godson3-two-chips": GENERAL + ENGINES + ["pages"],
    "godson3-and-pci": GENERAL + ENGINES + PACKETS + ["packets-pci", "queues-pci"],
    "loongson-3a5000-ethernet": GENERAL + PACKETS,
    "sandybridge-2x6": GENERAL + ["packets-fast", "frames", "flow", "flow-overrun", "queues"],
    "zns-host": GENERAL + DRIVES,
    "piii-lanai9": GENERAL + MESSAGES,
    "piii-myrinet": GENERAL + MESSAGES,
}
# The probes most likely to show a key, by part of its path; they run first.
LIKELY = [
    (r"\.(store|idma)\b", ["engine", "machines", "engine-rules"]),
    (r"\.cam\b", ["machines"]),
    (r"ethernet\.queues", ["queues", "queues-pci"]),
    (r"ethernet|buses", ["packets", "packets-pci", "frames", "packets-fast"]),
    (r"zoned", DRIVES),
    (r"myrinet|switches|cables", MESSAGES),
    (r"extensions|isa|vector_width", ["features", "fft"]),
    (r"lock|dca", ["packets"]),
    (r"system_call", ["calls"]),
    (r"softirq|wake_up", ["flow"]),
    (r"page_fault", ["touch"]),
    (r"interrupt|context_switch", ["packets", "messages"]),
    (r"links|distances", ["numa"]),
    (r"coherence", ["sharing"]),
    (r"crossbars|memor|next|coherence|caches", ["threads"]),
]


def ended(run):
    """Whether the CPU time limit ended a run; for a point of an experiment, the limit applies to a child."""
    return run.returncode in (-signal.SIGXCPU, -signal.SIGKILL) or b"SIGXCPU" in run.stderr


class Runner:
    """Runs probes with one longma and caches the results of unchanged machines."""

    def __init__(self, longma, folder):
        self.longma, self.folder = longma, pathlib.Path(folder)
        self.numbers, self.known, self.lock = itertools.count(), {}, threading.Lock()

    def command(self, *words, **others):
        # Limit CPU time, so that other load has no influence. A run that reaches the limit shows nothing: see `ended`.
        limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        streams = {"stdin": subprocess.DEVNULL, "capture_output": True}
        return subprocess.run([self.longma, *words], timeout=1200, preexec_fn=limit, **streams, **others)

    def accepts(self, path):
        return self.command("machine", "check", path).returncode == 0

    def write(self, table):
        path = self.folder / f"machine{next(self.numbers)}.toml"
        path.write_text("".join(f"{quoted(key)} = {toml(value)}\n" for key, value in table.items()))
        return path

    def result(self, name, path):
        """The result of probe `name` on the machine file `path`, without the fields that name the file."""
        probe = PROBES[name]
        return self.point(probe, path) if "workload" in probe else self.run(probe, path)

    def run(self, probe, path):
        out = path.with_suffix(f".{threading.get_ident()}.json")
        options = ["--level", probe["level"], "--machine", path]
        if probe["level"] != "functional":
            options += ["--quiet", "--stats-out", out]
        environment = {"PATH": os.environ["PATH"], **probe["environment"]}
        words = [str(GUESTS / probe["words"][0]), *probe["words"][1:]]
        run = self.command("run", *options, *probe["options"], *words, env=environment)
        # A run that is killed leaves the file empty.
        statistics = json.loads(out.read_text() or "{}") if out.exists() else {}
        statistics.pop("manifest", None)
        for left in (out, out.with_suffix(".machine.toml")):
            left.unlink(missing_ok=True)
        if ended(run) or run.returncode in REFUSED:
            return None
        return run.returncode, run.stdout, run.stderr.replace(os.fsencode(path), b""), statistics

    def point(self, probe, path):
        store = path.with_suffix(f".{threading.get_ident()}.store")
        parameters = "".join(f"{key} = {toml(value)}\n" for key, value in probe["parameters"].items())
        text = (
            f'format = 1\nname = "probe"\ntitle = "A probe"\nworkload = "{probe["workload"]}"\nmachines = ["{path}"]\n'
            f"[parameters]\n{parameters}" + "".join(f'[metrics."{name}"]\nunit = "1"\n' for name in METRICS[probe["workload"]])
        )
        file = path.with_suffix(f".{threading.get_ident()}.experiment.toml")
        file.write_text(text)
        run = self.command("experiment", "run", file, "--store", store)
        table = store / "probe.jsonl"
        rows = [json.loads(line) for line in table.read_text().splitlines()] if table.exists() else []
        if ended(run) or not rows:
            return None
        failed = any(row["failure"] is not None for row in rows)
        # The key is a digest of all inputs, and the machine is a path.
        return int(failed), [{name: value for name, value in row.items() if name not in ("key", "machine")} for row in rows]

    def unchanged(self, machine, name):
        with self.lock:
            place = self.known.setdefault((machine["name"], name), [threading.Lock(), None])
        with place[0]:
            if place[1] is None:
                place[1] = self.result(name, self.write(machine))
        return place[1]


METRICS = {"program": ["run.cycles"], "via": ["bandwidth_mbps", "latency_us"], "zoned": ["run_time_s", "reads", "writes", "resets", "sequential_occupied"]}

# --- Machine files ----------------------------------------------------------------------------------------------------


def quoted(key):
    return json.dumps(key)


def toml(value):
    """Formats a value as inline TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case list():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            return "{" + ", ".join(f"{quoted(key)} = {toml(inner)}" for key, inner in value.items()) + "}"
        case _:
            return str(value)


NAMED = {"sources", "cores", "caches", "memories", "chips", "devices", "operations"}


def leaves(value, path=()):
    """All values that are not tables or lists of tables, with their paths."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for number, inner in enumerate(value):
            yield from leaves(inner, (*path, number))
    else:
        yield path, value


def key_of(path):
    """The key of a path in the format: without part names and list indices."""
    words, before = [], None
    for word in path:
        named = before in NAMED and len(words) in (1, 3) and isinstance(word, str)
        words.append("*" if named or isinstance(word, int) else word)
        before = word
    return ".".join(words)


def changed(machine, path, value):
    """The machine with another value at `path`."""
    copy = json.loads(json.dumps(machine))
    place = copy
    for word in path[:-1]:
        place = place[word]
    if value is ABSENT:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return copy


def choices():
    """The allowed words of each key, from the book's tables."""
    found = {}
    for line in CHAPTER.read_text().splitlines():
        if row := re.match(r'\| `(\w+)` \| ("[^|]*") \|', line):
            found.setdefault(row[1], set()).update(re.findall(r'"([^"]+)"', row[2]))
    return found


CHOICES = choices()
QUANTITY = re.compile(r"(\d+(?:\.\d+)?) ([A-Za-z/]+)")


def other_values(machine, path, value):
    """Alternative values by the kind of value, most plausible first."""
    key = path[-1] if isinstance(path[-1], str) else path[-2]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [n for n in (value * 2, value // 2, value + 1, value - 1, 1, 0) if n != value and n >= 0]
    if isinstance(value, list):
        return other_lists(machine, value)
    if amount := QUANTITY.fullmatch(value):
        return [f"{number} {amount[2]}" for number in other_amounts(float(amount[1]))]
    if value in CHOICES.get(key, ()):
        return sorted(CHOICES[key] - {value})
    parts = {name for part in NAMED if isinstance(machine.get(part), dict) for name in machine[part]}
    return sorted((parts | {"memory"}) - {value}) + ["nonesuch"]


def other_amounts(amount):
    values = [amount * 2, amount / 2, amount * 4, amount / 4] if amount else [100, 1000000]
    return [int(number) if number == int(number) else number for number in values]


def other_lists(machine, values):
    shorter = [values[:at] + values[at + 1 :] for at in range(len(values))]
    if values and isinstance(values[0], list):
        scaled = lambda v: f"{float(v.split()[0]) * 2:g} {v.split()[1]}" if isinstance(v, str) else v * 2
        return [[[v if at == here else scaled(v) for here, v in enumerate(row)] for at, row in enumerate(values)], [[scaled(v) for v in row] for row in values]]
    return shorter + [values + ["nonesuch"]]


# --- Evaluation -------------------------------------------------------------------------------------------------------


def excepted(key):
    for pattern, reason in EXCEPTIONS.items():
        if re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), key):
            return reason
    return None


def likely(machine, key):
    """The probes most likely to show a change of the key, of those that the machine can run."""
    usual = OF.get(machine["name"], GENERAL)
    return [name for pattern, names in LIKELY if re.search(pattern, key) for name in names if name in usual] or usual[:4]


def shows(runner, machine, path, value, probes, max_accepted):
    """What shows a change of one key of one machine. Tries the first `max_accepted` changes that the check accepts."""
    accepted = refused = 0
    for other in other_values(machine, path, value):
        file = runner.write(changed(machine, path, other))
        if not runner.accepts(file):
            refused += 1
            continue
        accepted += 1
        for name in probes:
            found, before = runner.result(name, file), runner.unchanged(machine, name)
            if None not in (found, before) and before[0] == 0 and found != before:
                return f"{toml(other)}: {name}"
        if accepted == max_accepted:
            break
    return "refused" if refused and not accepted else None


def read(file):
    return tomllib.loads(file.read_text())


def edited(machine, edits):
    """The machine with other values at dotted paths; `None` keeps a value."""
    for path, value in edits.items():
        words = [int(word) if word.isdigit() else word for word in path.split(".")]
        machine = changed(machine, words, value) if value is not None else machine
    return machine


def case(runner, key):
    """What shows the key in its special case."""
    name, edits, path, before, after, probe = CASES[key]
    shipped = next(machine for machine in map(read, FILES) if machine["name"] == name)
    paths = path if isinstance(path, tuple) else (path,)
    files = [runner.write(edited(shipped, edits | dict.fromkeys(paths, value))) for value in (before, after)]
    if not all(map(runner.accepts, files)):
        return None
    results = [runner.result(probe, file) for file in files]
    change = "left out" if after is ABSENT else toml(after)
    return f"{name}: {change}: {probe}" if None not in results and results[0][0] == 0 and results[0] != results[1] else None


def limit(runner, key, places):
    """A change of a limit that `machine check` rejects."""
    for machine, path, value in places:
        for other in other_values(machine, path, value):
            if not runner.accepts(runner.write(changed(machine, path, other))):
                return f"{machine['name']}: {toml(other)} is refused"
    return None


def answer(runner, key, places):
    """What shows the key: its special case, or the first machine that does, with the likeliest probes first."""
    if key in CASES:
        return case(runner, key)
    if key in LIMITS:
        return limit(runner, key, places)
    for machine, path, value in places:
        found = shows(runner, machine, path, value, likely(machine, key), 2)
        if found and (found != "refused" or NAMES.fullmatch(key)):
            return f"{machine['name']}: {found}"
    for machine, path, value in places[:MAX_PLACES]:
        found = shows(runner, machine, path, value, OF.get(machine["name"], GENERAL), 3)
        if found and (found != "refused" or NAMES.fullmatch(key)):
            return f"{machine['name']}: {found}"
    return None


MAX_PLACES = 12  # of a key, on which all probes are run

def ask(runner, only, jobs, verbose):
    keys = {}
    for machine in map(read, FILES):
        for path, value in leaves(machine):
            keys.setdefault(key_of(path), []).append((machine, path, value))
    asked = {key: places for key, places in keys.items() if not excepted(key)}
    wanted = {key: places for key, places in asked.items() if re.search(only, key)}
    dead = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for key, found in zip(wanted, pool.map(lambda key: answer(runner, key, wanted[key]), wanted)):
            if found is None:
                dead.append(key)
                machines = sorted({machine["name"] for machine, _, _ in wanted[key]})
                print(f"nothing shows a change of {key} ({', '.join(machines)})", flush=True)
            elif verbose:
                print(f"{key}: {found}", flush=True)
    return len(wanted) - len(dead), dead


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longma", default=f"{ROOT}/target/release/longma", help="the command")
    parser.add_argument("--only", default="", metavar="EXPRESSION", help="only keys that match it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    parser.add_argument("--verbose", action="store_true", help="print what shows each key")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        good, dead = ask(Runner(options.longma, folder), options.only, options.jobs, options.verbose)
    print(f"machine_keys: {good} passed, {len(dead)} failed")
    sys.exit(1 if dead else 0)


if __name__ == "__main__":
    main()
