#!/usr/bin/env python3
"""Changes every key of every shipped machine file, one at a time, and fails for keys whose change has no visible effect.

A key has an effect if some change of its value passes `longma machine check` and changes a statistic or the output of one of the probes
below. The probe must run on both machines, before and after the change. A name or a limit has an effect if the check rejects a change.
The change recorded in machine_keys.json is tried first; `--record` writes that file, which saves time and decides nothing.
For each key of the format, one machine that shows the effect suffices; with --machine, that machine must show the effect of each of its keys.
Source: the allowed values are those in docs/src/reference/machine-files.md, which is generated from the code.
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
RECORD = ROOT / "tests" / "machine_keys.json"
FILES = sorted((ROOT / "crates/machine/topology/machines").glob("*.toml")) + sorted((ROOT / "experiments" / "machines").glob("*.toml"))

# Keys that need no effect, with the reason. `*` matches any name or number.
EXCEPTIONS = {
    "sources.*": "documentation: where numbers come from; `longma machine show --sources` prints it",
    "*.source": "cites the sources",
    "*.source.*": "cites the sources",
    "*.source_of.*": "cites the sources",
    "name": "documentation: the name of the machine in messages",
    "title": "documentation of the machine",
    "description": "documentation of the machine",
    "*.title": "documentation of the part",
    "cores.*.extensions": "reported by `cpucfg` and AT_HWCAP; the tests of `longma run` compare them",
    "chips.*.ports.*.protocol": "shown in the drawing; width, rate and latency determine the timing",
    "hosts.*.links.*.protocol": "shown in the drawing; width, rate and latency determine the timing",
    "hosts.*.buses.*.protocol": "a model that needs PCI rejects other protocols; otherwise only width, rate and latency matter",
    "hosts.*.os.kernel": "documentation: the kernel whose costs are stated",
    "devices.*.zoned.zone_size": "the distance between zone starts, which affects addresses but no times",
    "devices.*.zoned.max_active": "a limit that the trees do not reach; tests in crates/storage/zoned-device reach it",
    "devices.*.zoned.page": "affects only reads of more than a block, which the trees do not issue; tests in crates/storage/zoned issue them",
    "devices.*.myrinet.interrupt_interval": "affects only interrupts, which the polling programs of the workload do not use",
    "*.units.*.name": "documentation: no other key refers to it",
    "cores.*.isa": "without simulation, `longma run` rejects all but LoongArch64, as its tests check; the models treat all alike",
    "cores.*.threads": "documentation of the real machine: a modelled core runs one thread",
    "chips.*.address_windows.address": "the width of addresses; probes use only the lower bits; crates/model/memory tests the windows",
    "chips.*.address_windows.chip_bit": "selects the chip by address; crates/model/memory tests the windows",
}

EMULATOR_STATUSES = range(124, 128)  # exit statuses of `longma run` itself rather than of the program
CPU_SECONDS = 15  # CPU time limit of a probe; the longest takes 6 s on a busy host with overflow checks

# Limits. `longma machine check` rejects a value below what the described parts need; other values have no effect.
LIMITS = {
    "chips.*.crossbars.*.master_ports": "every master needs a port",
    "chips.*.crossbars.*.slave_ports": "every slave needs a port",
    "switches.*.ports": "every cable needs a port",
    "hosts.*.count": "every cable ends at an existing host",
    "chips.*.nodes.*.count": "every link ends at an existing node",
    "switches.*.network": "a cable connects ports of one kind of network",
}

# Names and references. `longma machine check` rejects an unknown name and the renaming of a referenced part.
NAMES = re.compile(
    r"format|caches\.\*\.(level|next)|cores\.\*\.(caches|units\.\*\.operations)"
    r"|chips\.\*\.(caches|ports\.\*\.name|crossbars\.\*\.(name|masters|slaves)|nodes\.\*\.(caches|clusters\.\*\.(core|caches)|memory\.\*\.memory))"
    r"|hosts\.\*\.(name|chips|buses\.\*\.(name|on)|devices\.\*\.(name|device|on)|links\.\*\.(name|between))"
    r"|switches\.\*\.name|cables\.\*\.between"
)

ABSENT = object()  # a missing value

# Keys for which `other_values` finds no change with an effect on a shipped machine. Each entry states the machine, edits made both before and
# after, the key, its values before and after (`None`: the shipped value), and the probe. If there are several keys, all change together: line
# sizes, for example, must be equal at all levels.
SPECIAL_CASES = {
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
# A rate above that of a slow bus.
FAST = "tcp,bytes=200000,message=4096,message_interval_ns=2100"
# Messages arrive one at a time, after a polling program has started.
POLLED = "tcp,bytes=10000,begin_us=3000,message_interval_ns=20000"
PROBES = {
    "fft": guest("fft-lasx 8 3"),
    "sort": guest("sort 2000"),
    "threads": guest("stream_threads 20000 1 4"),
    "system-calls": guest("unix_syscall 50"),
    "context-switches": guest("unix_context 40"),
    "chase": guest("load_latency 4096 20000"),
    "dispatch": guest("bytecode 2"),
    "in-order": guest("fft 8 2", "--core", "in-order"),
    "cache-level": guest("sort 2000", level="cache"),
    "features": guest("hello", level="functional"),
    "numa": guest("stream_threads 20000 1 2", "--numa", "interleave:0,1"),
    "page-faults": guest("touch 1"),
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
    # The ring is smaller than the TCP window, and the core is slower than the link.
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
PROBES["far-node"] = experiment("program", **FAR)  # memory on another node than the threads
PROBES["far-nodes"] = experiment("program", **FAR | {"numa": "bind:1,4"})
TREES = {"pairs": 3000, "workload": "W1", "conventional_zones": 1, "sequential_zones": 40, "entries": 16}
PROBES |= {
    "tree-drive": experiment("zoned", device="nvme0", tree="cow", **TREES),
    "tree-fixed-latency": experiment("zoned", device="nullb0", tree="zb", **TREES | {"conventional_zones": -1, "sequential_zones": -1}),
    "tree-drive-full": experiment("zoned", device="nvme0", tree="cow", **TREES | {"sequential_zones": 1, "zone": "4 MiB"}),
    "tree-drive-zones": experiment("zoned", device="nvme0", tree="cow", **TREES | {"conventional_zones": 1, "sequential_zones": -1}),
}
GENERAL = ["fft", "sort", "threads", "system-calls", "context-switches", "chase", "dispatch", "in-order", "cache-level", "features", "numa", "page-faults", "sharing"]
ENGINES = ["engine", "machines", "engine-rules"]
PACKETS = ["packets", "frames", "packets-polled", "packets-fast", "queues"]
DRIVES = ["tree-drive", "tree-fixed-latency", "tree-drive-full", "tree-drive-zones"]
MESSAGES = ["messages", "messages-rate", "messages-pages", "messages-small"]
PROBES_OF = {
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
# The probes most likely to show an effect, by a pattern in the key; they run first.
LIKELY = [
    (r"\.(store|idma)\b", ["engine", "machines", "engine-rules"]),
    (r"\.cam\b", ["machines"]),
    (r"ethernet\.queues", ["queues", "queues-pci"]),
    (r"ethernet|buses", ["packets", "packets-pci", "frames", "packets-fast"]),
    (r"zoned", DRIVES),
    (r"myrinet|switches|cables", MESSAGES),
    (r"extensions|isa|vector_width", ["features", "fft"]),
    (r"lock|dca", ["packets"]),
    (r"system_call", ["system-calls"]),
    (r"softirq|wake_up", ["flow"]),
    (r"page_fault", ["page-faults"]),
    (r"interrupt|context_switch", ["packets", "messages"]),
    (r"links|distances", ["numa"]),
    (r"coherence", ["sharing"]),
    (r"indirect", ["dispatch"]),
    (r"crossbars|memor|next|coherence|caches", ["threads"]),
]


def exceeded_cpu_time(run):
    """Whether the CPU time limit ended a run. For a point of an experiment, the limit ends a child, and its message names the signal."""
    return run.returncode in (-signal.SIGXCPU, -signal.SIGKILL) or b"SIGXCPU" in run.stderr


class Runner:
    """Runs probes with one `longma` command and caches the results of unchanged machines."""

    def __init__(self, longma, folder):
        self.longma, self.folder = longma, pathlib.Path(folder)
        self.numbers, self.cache, self.lock = itertools.count(), {}, threading.Lock()
        self.record = json.loads(RECORD.read_text()) if RECORD.exists() else {}

    def command(self, *words, **others):
        # Limit CPU time rather than elapsed time, so that other load does not matter. `exceeded_cpu_time` detects such runs.
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
        """The result of probe `name` on the machine file `path`, without fields that name the file; None if the probe does not run."""
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
        # A killed run leaves an empty file.
        statistics = json.loads(out.read_text() or "{}") if out.exists() else {}
        statistics.pop("manifest", None)
        for left in (out, out.with_suffix(".machine.toml")):
            left.unlink(missing_ok=True)
        if exceeded_cpu_time(run) or run.returncode in EMULATOR_STATUSES:
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
        if exceeded_cpu_time(run) or not rows:
            return None
        failed = any(row["failure"] is not None for row in rows)
        # `key` is a digest of all inputs, and `machine` is a path, so both always differ.
        return int(failed), [{name: value for name, value in row.items() if name not in ("key", "machine")} for row in rows]

    def unchanged(self, machine, name):
        """The cached result of probe `name` on an unchanged machine."""
        with self.lock:
            entry = self.cache.setdefault((machine["name"], name), [threading.Lock(), None])
        with entry[0]:
            if entry[1] is None:
                entry[1] = self.result(name, self.write(machine))
        return entry[1]


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


# Tables whose keys are names of parts.
NAME_TABLES = {"sources", "cores", "caches", "memories", "chips", "devices", "operations"}


def leaves(value, path=()):
    """All values that are neither tables nor lists of tables, each with its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for number, inner in enumerate(value):
            yield from leaves(inner, (*path, number))
    else:
        yield path, value


def key_of(path):
    """The key of a path: `*` replaces names of parts and list indices."""
    words, before = [], None
    for word in path:
        named = before in NAME_TABLES and len(words) in (1, 3) and isinstance(word, str)
        words.append("*" if named or isinstance(word, int) else word)
        before = word
    return ".".join(words)


def changed(machine, path, value):
    """A copy of the machine with this value at `path`."""
    copy = json.loads(json.dumps(machine))
    table = copy
    for word in path[:-1]:
        table = table[word]
    if value is ABSENT:
        del table[path[-1]]
    else:
        table[path[-1]] = value
    return copy


def choices():
    """The allowed words of each key, from the tables in the book."""
    found = {}
    for line in CHAPTER.read_text().splitlines():
        if row := re.match(r'\| `(\w+)` \| ("[^|]*") \|', line):
            found.setdefault(row[1], set()).update(re.findall(r'"([^"]+)"', row[2]))
    return found


CHOICES = choices()
QUANTITY = re.compile(r"(\d+(?:\.\d+)?) ([A-Za-z/]+)")


def other_values(machine, path, value):
    """Other values of the same kind, those most likely to be accepted first."""
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
    parts = {name for part in NAME_TABLES if isinstance(machine.get(part), dict) for name in machine[part]}
    return sorted((parts | {"memory"}) - {value}) + ["nonexistent"]


def other_amounts(amount):
    values = [amount * 2, amount / 2, amount * 4, amount / 4] if amount else [100, 1000000]
    return [int(number) if number == int(number) else number for number in values]


def other_lists(machine, values):
    shorter = [values[:at] + values[at + 1 :] for at in range(len(values))]
    if values and isinstance(values[0], list):
        scaled = lambda v: f"{float(v.split()[0]) * 2:g} {v.split()[1]}" if isinstance(v, str) else v * 2
        return [[[v if at == here else scaled(v) for here, v in enumerate(row)] for at, row in enumerate(values)], [[scaled(v) for v in row] for row in values]]
    return shorter + [values + ["nonexistent"]]


# --- Evaluation -------------------------------------------------------------------------------------------------------


def exception(key):
    """Why the key needs no effect; None if it needs one."""
    for pattern, reason in EXCEPTIONS.items():
        if re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), key):
            return reason
    return None


def likely_probes(machine, key):
    """Of the probes that the machine can run, those most likely to show a change of the key."""
    usual = PROBES_OF.get(machine["name"], GENERAL)
    return [name for pattern, names in LIKELY if re.search(pattern, key) for name in names if name in usual] or usual[:4]


REJECTED = (None, "rejected")


def effect(runner, machine, path, value, probes, max_accepted):
    """The new value of the key and the probe that it affects; REJECTED if the check rejects every change; None without an effect.

    Tries at most `max_accepted` values that the check accepts.
    """
    accepted = rejected = 0
    for other in other_values(machine, path, value):
        file = runner.write(changed(machine, path, other))
        if not runner.accepts(file):
            rejected += 1
            continue
        accepted += 1
        for name in probes:
            found, before = runner.result(name, file), runner.unchanged(machine, name)
            if None not in (found, before) and before[0] == 0 and found != before:
                return other, name
        if accepted == max_accepted:
            break
    return REJECTED if rejected and not accepted else None


def read(file):
    return tomllib.loads(file.read_text())


def edited(machine, edits):
    """The machine with other values at dotted paths; `None` keeps a value."""
    for path, value in edits.items():
        words = [int(word) if word.isdigit() else word for word in path.split(".")]
        machine = changed(machine, words, value) if value is not None else machine
    return machine


def special_case(runner, key):
    """A description of the effect in the special case of the key; None if there is none."""
    name, edits, path, before, after, probe = SPECIAL_CASES[key]
    shipped = next(machine for machine in map(read, FILES) if machine["name"] == name)
    paths = path if isinstance(path, tuple) else (path,)
    files = [runner.write(edited(shipped, edits | dict.fromkeys(paths, value))) for value in (before, after)]
    if not all(map(runner.accepts, files)):
        return None
    results = [runner.result(probe, file) for file in files]
    change = "absent" if after is ABSENT else toml(after)
    return f"{name}: {change}: {probe}" if None not in results and results[0][0] == 0 and results[0] != results[1] else None


def rejected_limit(runner, places):
    """The machine and a value of the limit that `longma machine check` rejects; None if it accepts all."""
    for machine, path, value in places:
        for other in other_values(machine, path, value):
            if not runner.accepts(runner.write(changed(machine, path, other))):
                return f"{machine['name']}: {toml(other)} is rejected"
    return None


def recorded_effect(runner, entry, machine_name):
    """The recorded change of a key, if it still has an effect."""
    shipped = next((machine for machine in map(read, FILES) if machine["name"] == entry["machine"]), None)
    if shipped is None or machine_name not in (None, shipped["name"]):
        return None
    try:
        file = runner.write(changed(shipped, entry["path"], entry["value"]))
    except (KeyError, IndexError, TypeError):  # the part has another name now
        return None
    if not runner.accepts(file):
        return None
    found, before = runner.result(entry["probe"], file), runner.unchanged(shipped, entry["probe"])
    return entry if None not in (found, before) and before[0] == 0 and found != before else None


def search(runner, key, places):
    """A change of the key with an effect on the first of the machines that shows one; None without one."""
    attempts = [(place, likely_probes(place[0], key), 2) for place in places]
    attempts += [(place, PROBES_OF.get(place[0]["name"], GENERAL), 3) for place in places[:MAX_PLACES]]
    for (machine, path, value), probes, max_accepted in attempts:
        found = effect(runner, machine, path, value, probes, max_accepted)
        if found and (found is not REJECTED or NAMES.fullmatch(key)):
            return {"machine": machine["name"], "path": list(path), "value": found[0], "probe": found[1]}
    return None


def effect_of(runner, key, places, machine_name=None):
    """The effect of the key, as text or as an entry of the record: in its special case, in the recorded case, or by a search; None without one."""
    if key in SPECIAL_CASES and machine_name in (None, SPECIAL_CASES[key][0]):
        return special_case(runner, key)
    if key in LIMITS:
        return rejected_limit(runner, places)
    entry = runner.record.get(key)
    return entry and recorded_effect(runner, entry, machine_name) or search(runner, key, places)


MAX_PLACES = 12  # number of places of a key for which all probes run


def check_keys(runner, only, machine_name, jobs, verbose):
    """Returns the effects by key, and the keys without one."""
    keys = {}
    for machine in map(read, FILES):
        if machine_name not in (None, machine["name"]):
            continue
        for path, value in leaves(machine):
            keys.setdefault(key_of(path), []).append((machine, path, value))
    wanted = {key: places for key, places in keys.items() if not exception(key) and re.search(only, key)}
    effects, dead = {}, []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for key, found in zip(wanted, pool.map(lambda key: effect_of(runner, key, wanted[key], machine_name), wanted)):
            if found is None:
                dead.append(key)
                machines = sorted({machine["name"] for machine, _, _ in wanted[key]})
                print(f"{key}: no change has an effect ({', '.join(machines)})", flush=True)
                continue
            effects[key] = found
            if verbose:
                print(f"{key}: {shown(found)}", flush=True)
    return effects, dead


def shown(found):
    """An effect as one line."""
    if isinstance(found, str):
        return found
    value = "" if found["value"] is None else f"{toml(found['value'])}: "
    return f"{found['machine']}: {value}{found['probe']}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longma", default=f"{ROOT}/target/release/longma", help="path of the command")
    parser.add_argument("--only", default="", metavar="EXPRESSION", help="check only keys that match this regular expression")
    parser.add_argument("--machine", metavar="NAME", help="check only the keys of this machine, each by this machine")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of keys to check at once")
    parser.add_argument("--verbose", action="store_true", help="print the effect of each key")
    parser.add_argument("--record", action="store_true", help="search anew, and record the changes with an effect")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(options.longma, folder)
        if options.record:
            runner.record = {}
        effects, dead = check_keys(runner, options.only, options.machine, options.jobs, options.verbose)
    if options.record:
        entries = {key: found for key, found in sorted(effects.items()) if isinstance(found, dict) and found["probe"] != "rejected"}
        RECORD.write_text("{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(entry, ensure_ascii=False)}" for key, entry in entries.items()) + "\n}\n")
    print(f"machine_keys: {len(effects)} passed, {len(dead)} failed")
    sys.exit(1 if dead else 0)


if __name__ == "__main__":
    main()
