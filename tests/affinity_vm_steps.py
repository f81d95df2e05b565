"""The checks of affinity_vm.py: most run in its guest, the last ones on this machine with what the guest recorded.

Each check of the guest gets the network that it needs, and compares all settings before and after what it runs.
"""

import collections
import contextlib
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import time

from libvirt import CheckFailed, cpus, must, run, until

ROOT = pathlib.Path(__file__).resolve().parent.parent
NODES, CPUS_OF_A_NODE = 2, 8
CPUS = range(NODES * CPUS_OF_A_NODE)
# The CPU of the peers' interrupts and of iperf3's servers, which no pair uses.
PEER_CPU = 7
# Servers for flows, on successive ports. Sweeps use the one before them.
SERVERS = 6
# What all flows may have on the way fits into one receive ring, so that none waits for buffers (see affinity_vm.py).
WINDOW = "96K"
FIRST_PORT = 5201

# In the flags of a thread's `stat`: it belongs to the kernel (include/linux/sched.h).
PF_KTHREAD = 0x200000

Nic = collections.namedtuple("Nic", "address queues node segment")
NICS = {
    "eth0": Nic("52:54:00:00:00:10", 16, 1, "left"),
    "eth1": Nic("52:54:00:00:00:11", 16, 0, "right"),
    "peer0": Nic("52:54:00:00:00:20", 1, None, "left"),
    "peer1": Nic("52:54:00:00:00:21", 1, None, "right"),
}
NEAR = range(CPUS_OF_A_NODE, 2 * CPUS_OF_A_NODE)
# Where the guest leaves files for this machine, and its folder of scratch files.
OUT, SCRATCH = pathlib.Path("/mnt"), pathlib.Path("/tmp")
# Exists if systemd started the checks.
BY_SYSTEMD = pathlib.Path("/run/checks-by-systemd")


# --- The network ------------------------------------------------------------------------------------------------------


def ip(*words, peer=False):
    return run("ip", *(["-n", "peer"] if peer else []), *words)


def peer(*words, **options):
    return run("ip", "netns", "exec", "peer", *words, **options)


def ping(address):
    return run("busybox", "ping", "-c", "1", "-W", "1", address)


def device_irqs(name, word):
    """Interrupts of a NIC, in the order of its queues. virtio names them `virtio3-input.0` and `virtio3-output.0`."""
    device = pathlib.Path(f"/sys/class/net/{name}/device").resolve().name
    found = re.findall(rf"^ *(\d+):.* {device}-{word}\.(\d+)$", pathlib.Path("/proc/interrupts").read_text(), re.M)
    return [int(irq) for irq, queue in sorted(found, key=lambda pair: int(pair[1]))]


def prepare():
    """Names the NICs, moves the peers to their namespace, and starts iperf3's servers there."""
    by_address = {path.read_text().strip(): path.parent.name for path in pathlib.Path("/sys/class/net").glob("*/address")}
    now = {name: by_address[nic.address] for name, nic in NICS.items()}
    for old in now.values():
        ip("link", "set", old, "name", f"{old}-old")
    for name, old in now.items():
        ip("link", "set", f"{old}-old", "name", name)
    ip("netns", "add", "peer")
    for name in ("peer0", "peer1"):
        for irq in device_irqs(name, "(?:input|output)"):
            pathlib.Path(f"/proc/irq/{irq}/smp_affinity_list").write_text(str(PEER_CPU))
        ip("link", "set", name, "netns", "peer")
    ip("link", "set", "lo", "up", peer=True)


@contextlib.contextmanager
def servers():
    """iperf3's servers of the peer, new ones for each network: one whose client was killed may wait for it for ever."""
    words = ["ip", "netns", "exec", "peer", "taskset", "-c", str(PEER_CPU), "iperf3", "--server", "--port"]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    all_servers = [subprocess.Popen([*words, str(port)], **quiet) for port in range(FIRST_PORT, FIRST_PORT + SERVERS + 1)]
    try:
        until("the servers listen", lambda: len(peer("ss", "-Htln").splitlines()) > SERVERS, 30)
        yield
    finally:
        for server in all_servers:
            server.kill()
            server.wait()


@contextlib.contextmanager
def plain():
    """eth0 alone, with the address 10.0.0.2; the peer has 10.0.0.1."""
    ip("addr", "add", "10.0.0.1/24", "dev", "peer0", peer=True)
    ip("link", "set", "peer0", "up", peer=True)
    ip("addr", "add", "10.0.0.2/24", "dev", "eth0")
    ip("link", "set", "eth0", "up")
    try:
        until("the peer answers", lambda: ping("10.0.0.1"), 30)
        with servers():
            yield
    finally:
        for name, is_peer in (("eth0", False), ("peer0", True)):
            ip("addr", "flush", "dev", name, peer=is_peer)
            ip("link", "set", name, "down", peer=is_peer)


# Interface, and its address; the peer has the same with 1 at the end.
LAYERS = {"bond0": "10.1.0.2", "bond0.7": "10.7.0.2", "br0": "10.8.0.2", "mv0": "10.3.0.2"}


@contextlib.contextmanager
def layers(mode):
    """A bond of both NICs; on it a VLAN, a bridge of another VLAN, and a macvlan. The peer has the same bond and VLANs."""
    for is_peer, ports, end in ((True, ("peer0", "peer1"), 1), (False, ("eth0", "eth1"), 2)):
        here = lambda *words: ip(*words, peer=is_peer)
        options = ["xmit_hash_policy", "layer3+4"] if mode == "balance-xor" else []
        here("link", "add", "bond0", "type", "bond", "mode", mode, "miimon", "100", *options)
        for port in ports:
            here("link", "set", port, "master", "bond0")
        here("link", "set", "bond0", "up")
        for number in (7, 8):
            here("link", "add", "link", "bond0", "name", f"bond0.{number}", "type", "vlan", "id", str(number))
            here("link", "set", f"bond0.{number}", "up")
        if end == 2:
            here("link", "add", "br0", "type", "bridge", "stp_state", "0")
            here("link", "set", "bond0.8", "master", "br0")
            here("link", "add", "link", "bond0", "name", "mv0", "type", "macvlan", "mode", "bridge")
        for name, address in LAYERS.items():
            name = name if end == 2 else {"br0": "bond0.8", "mv0": "bond0"}.get(name, name)
            here("addr", "add", f"{address.rsplit('.', 1)[0]}.{end}/24", "dev", name)
            here("link", "set", name, "up")
    try:
        for address in LAYERS.values():
            until(f"the peer of {address} answers", lambda: ping(peer_of(address)), 60)
        with servers():
            yield
    finally:
        for name in ("mv0", "br0", "bond0"):
            ip("link", "del", name)
        ip("link", "del", "bond0", peer=True)


def peer_of(address):
    return address.rsplit(".", 1)[0] + ".1"


# --- What the kernel shows --------------------------------------------------------------------------------------------


def settings():
    """All settings that the command may change, and the CPUs of all threads that are not its own."""
    found = {}
    for pattern in ("/proc/irq/*/smp_affinity_list", "/sys/class/net/eth*/queues/*/?ps_*", "/sys/class/net/bond*/queues/*/?ps_*"):
        for path in pathlib.Path("/").glob(pattern[1:]):
            with contextlib.suppress(OSError):
                found[str(path)] = path.read_text()
    for name in ("eth0", "eth1"):
        for option in ("-l", "-x", "-k", "-g"):
            found[f"ethtool {option} {name}"] = run("ethtool", option, name, check=False)
    return found


def masks():
    """The CPUs that each thread of a program may use, by thread and start time. The kernel moves some of its own threads."""
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/task/[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "stat").read_text().rpartition(")")[2].split()
            if not int(words[6]) & PF_KTHREAD:
                found[path.name, words[19]] = os.sched_getaffinity(int(path.name))
    return found


def same(before, after):
    """Checks that settings are equal, of threads those that exist in both."""
    (settings_before, masks_before), (settings_after, masks_after) = before, after
    changed = [f"{key}: {text!r} became {settings_after.get(key)!r}" for key, text in settings_before.items() if settings_after.get(key) != text]
    changed += [f"thread {key[0]}: {masks_before[key]} became {masks_after[key]}" for key in masks_before.keys() & masks_after.keys()
                if masks_before[key] != masks_after[key]]
    must(not changed, "settings differ afterwards: " + "; ".join(changed[:10]))


@contextlib.contextmanager
def unchanged():
    """Checks that what runs inside leaves all settings as they were."""
    before = settings(), masks()
    yield
    same(before, (settings(), masks()))


def counts():
    """NET_RX softirqs, packets and drops of each CPU. Sources: /proc/softirqs, /proc/net/softnet_stat."""
    softirqs = re.search(r"NET_RX:(.*)", pathlib.Path("/proc/softirqs").read_text())[1].split()
    softnet = [line.split() for line in pathlib.Path("/proc/net/softnet_stat").read_text().splitlines()]
    return {cpu: (int(softirqs[cpu]), int(softnet[cpu][0], 16), int(softnet[cpu][1], 16)) for cpu in CPUS}


def receiving_cpus(name):
    """The CPU of each receive queue's interrupt."""
    return [cpus(pathlib.Path(f"/proc/irq/{irq}/smp_affinity_list").read_text()) for irq in device_irqs(name, "input")]


# --- The command ------------------------------------------------------------------------------------------------------


class Bed:
    """The command under test."""

    def __init__(self, longma):
        self.longma = longma

    def words(self, *words):
        return [str(self.longma), "affinity", *map(str, words)]

    def output_of(self, *words, timeout=300):
        return run(*self.words(*words), timeout=timeout)

    def json(self, *words, timeout=300):
        return json.loads(self.output_of(*words, "--format", "json", timeout=timeout))

    def refused(self, *words, timeout=120):
        """The errors of a command that must fail."""
        done = subprocess.run(self.words(*words), capture_output=True, text=True, timeout=timeout)
        must(done.returncode != 0, f"{' '.join(map(str, words))} succeeded: {done.stdout}")
        return done.stderr

    def sweep(self, name, server, pairs, *words):
        """The header and the runs of a sweep."""
        file = SCRATCH / "sweep.jsonl"
        file.unlink(missing_ok=True)
        pairs = [word for pair in pairs for word in ("--pair", f"{pair[0]},{pair[1]}")]
        command = ["sweep", "--interface", name, "--connect", server, "--seconds", 2, "--output", file, *pairs, *words]
        # The same command makes failed runs again, as when iperf3's first datagram is lost.
        until("the sweep", lambda: self.output_of(*command, *([] if "--repeats" in words else ["--repeats", 1])), 60)
        header, *runs = [json.loads(line) for line in file.read_text().splitlines()]
        return header, [run for run in runs if run["failure"] is None]

    @contextlib.contextmanager
    def tune(self, *words):
        """Runs the tuner; yields its process, and the list of its decisions, which grows."""
        log = SCRATCH / "tune.jsonl"
        with log.open("w") as output, (SCRATCH / "tune.errors").open("w") as errors:
            tuner = subprocess.Popen(self.words("tune", *words, "--format", "json"), stdout=output, stderr=errors)
        try:
            yield tuner, lambda: [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
        except CheckFailed as error:
            raise CheckFailed(f"{error}; the tuner said: {log.read_text()} {(SCRATCH / 'tune.errors').read_text()}") from None
        finally:
            if tuner.poll() is None:
                tuner.send_signal(signal.SIGTERM)
                tuner.wait(timeout=60)


@contextlib.contextmanager
def flows(server, count, seconds=120, rate="60M"):
    """Starts flows that this end receives, each by a program of its own; yields the programs."""
    programs = [
        subprocess.Popen(
            ["iperf3", "--client", server, "--port", str(FIRST_PORT + 1 + number), "--reverse", "--time", str(seconds), "--bitrate", rate,
             "--window", WINDOW],
            stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
        )
        for number in range(count)
    ]
    try:
        begin = [received_by(program) for program in programs]
        carries = lambda: all(received_by(program) > first + 2_000_000 for program, first in zip(programs, begin))
        until("each flow carries data", carries, 60)
        must(all(program.poll() is None for program in programs), "a flow has ended")
        yield programs
    finally:
        for program in programs:
            program.terminate()
        for program in programs:
            program.wait(timeout=30)


def received_by(program):
    """Bytes that a program has read, from files and sockets."""
    return int(re.search(r"rchar: (\d+)", pathlib.Path(f"/proc/{program.pid}/io").read_text())[1])


def share(counts, cpu):
    """The part of a CPU in counts by CPU of a result file."""
    return counts.get(str(cpu), 0) / max(sum(counts.values()), 1)


def check_route(runs, pairs):
    """Checks by the counters of each run that the flow ran where it was sent, and that no run is missing."""
    must(sorted((run["pair"]["flow"], run["pair"]["application"]) for run in runs) == sorted(pairs), f"{runs}")
    for one in runs:
        flow, kernel = one["pair"]["flow"], one["kernel"]
        # The other packets are acknowledgements, on the peer's CPU.
        packets = {cpu: count for cpu, count in kernel["packets"].items() if cpu != str(PEER_CPU)}
        must(share(packets, flow) > 0.9, f"{one['pair']}: packets by CPU: {packets}")
        must(share(kernel["queue_interrupts"], flow) > 0.9, f"{one['pair']}: interrupts by CPU: {kernel['queue_interrupts']}")


# --- Checks in the guest ----------------------------------------------------------------------------------------------


def the_guest_has_the_hardware(bed):
    must(os.cpu_count() == len(CPUS), f"{os.cpu_count()} CPUs")
    for name, nic in NICS.items():
        if nic.node is not None:
            node = int(pathlib.Path(f"/sys/class/net/{name}/device/../numa_node").read_text())
            must(node == nic.node and len(device_irqs(name, "input")) == nic.queues, f"{name}: node {node}, {device_irqs(name, 'input')}")
            must("RX flow hash indirection table" in run("ethtool", "-x", name), f"{name} has no RSS")
    places = [run("lscpu", "--parse=core,socket").splitlines()[-1 - cpu] for cpu in CPUS]
    must(len(set(places)) == len(CPUS) // 2 and {place[-1] for place in places} == {"0", "1"}, f"{places}")


def a_sweep_sends_flows_where_it_says(bed):
    with plain(), unchanged():
        findings = bed.json("check", "--interface", "eth0")
        found = {finding["subject"]: finding for finding in findings}
        must(not [one for one in findings if one["weight"] == "prevents"], f"{findings}")
        must("16 interrupts of eth0" in found["steering"]["found"] and "node 1" in found["NUMA node"]["found"], f"{found}")
        pairs = [(9, 10), (1, 2), (12, 12)]
        _, runs = bed.sweep("eth0", "10.0.0.1", pairs)
        check_route(runs, pairs)
        # With RPS, the interrupts stay and the packets move.
        _, runs = bed.sweep("eth0", "10.0.0.1", [(14, 10)], "--software")
        packets = {cpu: count for cpu, count in runs[0]["kernel"]["packets"].items() if cpu != str(PEER_CPU)}
        must(share(packets, 14) > 0.9, f"{packets}")


def advice_for_sixteen_queues_runs(bed):
    with plain():
        before = settings(), masks()
        advice = bed.json("advise", "--interface", "eth0")
        (nic,) = advice["queues"]["nics"]
        must(nic["count"] == 16 and len(nic["used"]) < 16, f"{nic}")
        at = [cpu for _, cpu in nic["used"]]
        cores = {cpu // 2 for cpu in at}
        must(set(at) <= set(NEAR) and len(cores) == len(at), f"one queue for a core of node 1: {at}")
        others = cpus(advice["queues"]["applications"])
        must(others <= set(NEAR) and not {cpu // 2 for cpu in others} & cores, f"applications on {others}, queues on {at}")
        script = [line for line in advice["commands"]["now"] if not line.startswith("taskset")]
        print("\n".join(script))
        must(any("ethtool -L" in line for line in script) and any("ethtool -X" in line for line in script), f"{script}")
        run("sh", "-e", "-c", "\n".join(script))
        must(re.search(rf"Combined:\s+{len(at)}$", run("ethtool", "-l", "eth0"), re.M), run("ethtool", "-l", "eth0"))
        table = re.findall(r"^ *\d+:([\d ]*)$", run("ethtool", "-x", "eth0").replace("\t", " "), re.M)
        must({int(word) for line in table for word in line.split()} == set(range(len(at))), f"{table}")
        must(receiving_cpus("eth0")[: len(at)] == [{cpu} for cpu in at], f"{receiving_cpus('eth0')}")
        with flows("10.0.0.1", 4):
            first = counts()
            time.sleep(3)
            grown = {cpu: counts()[cpu][1] - first[cpu][1] for cpu in CPUS if cpu != PEER_CPU}
        must(sum(grown[cpu] for cpu in at) > 0.9 * sum(grown.values()), f"packets by CPU: {grown}")
        # A second advice, on the reduced NIC, is the same.
        again = bed.json("advise", "--interface", "eth0")
        (reduced,) = again["queues"]["nics"]
        must([cpu for _, cpu in reduced["used"]] == at, f"{reduced}")
        run("ethtool", "-L", "eth0", "combined", "16")
        run("ethtool", "-X", "eth0", "default", check=False)
        run("ethtool", "-X", "eth0", "equal", "16")
        for irq, cpu in zip(device_irqs("eth0", "input"), CPUS):
            pathlib.Path(f"/proc/irq/{irq}/smp_affinity_list").write_text(str(cpu))
        same(before, (settings(), masks()))


def place_of(program):
    """The CPU on which a program last ran, and the CPUs that it may use."""
    stat = pathlib.Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()
    return int(stat[36]), os.sched_getaffinity(program.pid)


# Counts of each CPU, how often programs were seen on it, and the interrupts of each receive queue.
Observed = collections.namedtuple("Observed", "rows seen interrupts")


def queue_interrupts():
    """Interrupts of the receive queues of eth0 by number."""
    lines = dict(re.findall(r"^ *(\d+): +([\d ]+) ", pathlib.Path("/proc/interrupts").read_text(), re.M))
    return {irq: sum(map(int, lines[str(irq)].split())) for irq in device_irqs("eth0", "input")}


def observed(programs, seconds=4):
    """What happens in some seconds."""
    first, fired, seen, end = counts(), queue_interrupts(), collections.Counter(), time.monotonic() + seconds
    while time.monotonic() < end:
        seen.update(place_of(program)[0] for program in programs)
        time.sleep(0.2)
    last = counts()
    rows = {cpu: tuple(b - a for a, b in zip(first[cpu], last[cpu])) for cpu in CPUS}
    return Observed(rows, seen, {irq: count - fired[irq] for irq, count in queue_interrupts().items()})


def table(before, after):
    """Prints what `tune` did, CPU by CPU."""
    print("table: CPU | NET_RX, packets, drops before | programs before | NET_RX, packets, drops after | programs after")
    for cpu in CPUS:
        cells = []
        for one in (before, after):
            part = one.seen[cpu] / max(sum(one.seen.values()), 1)
            cells.append(f"{', '.join(map(str, one.rows[cpu]))} | {part:.0%}")
        print(f"table: {cpu} | {' | '.join(cells)}")


def tune_places_several_flows(bed):
    with plain():
        # virtio_net of Linux 6.1 sends its table to the device only now.
        run("ethtool", "-X", "eth0", "equal", str(NICS["eth0"].queues))
        with unchanged(), flows("10.0.0.1", SERVERS) as programs:
            before = observed(programs)
            after, decisions = tuned(bed, programs)
            table(before, after)
            refuted = [one for one in decisions if one["act"] == "missing" and "RSS table" in one["why"]]
            must(not refuted, f"the table is in use: {refuted}")
            named = {int(irq) for one in decisions for irq in re.findall(r" by interrupt (\d+) ", one["why"])}
            must(all(before.interrupts[irq] > 3 for irq in named), f"flows by {named}, interrupts: {before.interrupts}")


def tune_notices_an_rss_table_that_is_not_in_use(bed):
    """Without RSS, the tap device returns a flow by the queue that it was last sent by, whatever the driver's table says."""
    with plain(), unchanged(), flows("10.0.0.1", 2) as programs:
        _, decisions = tuned(bed, programs)
        must(any(one["act"] == "missing" and "RSS table of eth0" in one["why"] for one in decisions), f"{decisions}")


def tuned(bed, programs):
    """What is observed after the tuner has bound the programs to the CPUs of the NIC's node, and its decisions."""
    with bed.tune("--interface", "eth0", "--min-rate", 1) as (tuner, decisions):
        is_bound = lambda: all(len(place_of(program)[1]) < len(NEAR) for program in programs)
        begin = [received_by(program) for program in programs]
        try:
            until(f"all of {[program.pid for program in programs]} are bound", is_bound, 60)
        except CheckFailed as error:
            received = [received_by(program) - first for program, first in zip(programs, begin)]
            raise CheckFailed(f"{error}; bytes received by each meanwhile: {received}") from None
        time.sleep(6)
        after = observed(programs)
        must(tuner.poll() is None, (SCRATCH / "tune.errors").read_text())
        for one in decisions():
            print(f"decision: {one['act']}: {one['subject']}: {one.get('from')} to {one.get('to')}: {one['why']}")
        must(all(place_of(program)[1] < set(NEAR) for program in programs), f"{[place_of(program) for program in programs]}")
        rows = {cpu: row for cpu, row in after.rows.items() if cpu != PEER_CPU}
        busy = {cpu for cpu, row in rows.items() if row[1] > 0.05 * sum(row[1] for row in rows.values())}
        must(busy <= set(NEAR), f"packets on CPUs {busy}")
        return after, decisions()


def layered_interfaces_resolve_to_their_nics(bed):
    for mode in ("active-backup", "balance-xor"):
        with layers(mode), unchanged():
            for name, address in LAYERS.items() if mode == "active-backup" else (("br0", LAYERS["br0"]),):
                server = peer_of(address)
                findings = bed.json("check", "--interface", name)
                found = {finding["subject"]: finding for finding in findings}
                must(not [one for one in findings if one["weight"] == "prevents"], f"{name}: {findings}")
                must("eth0, eth1" in found["layers"]["found"], f"{name}: {found['layers']}")
                pairs = [(9, 10), (2, 4)]
                header, runs = bed.sweep(name, server, pairs)
                check_route(runs, pairs)
                advice = bed.json("advise", "--interface", name)
                nics = {nic["interface"]: {cpu // CPUS_OF_A_NODE for _, cpu in nic["used"]} for nic in advice["queues"]["nics"]}
                must(nics == {"eth0": {1}, "eth1": {0}}, f"{name}: nodes of the queues: {nics}")
                print(f"{mode}: {name}: {header['steering']['stacked']['interface']}: "
                      f"{', '.join(str(one['pair']['flow']) for one in runs)} had the packets", flush=True)
            if mode == "active-backup":
                follows_a_failover(bed)
                a_macvlan_in_a_container_is_refused(bed)
            tune_moves_the_queues_below(bed, "br0", peer_of(LAYERS["br0"]))


def follows_a_failover(bed):
    """After the active NIC has failed, flows arrive by the other one, and go where they are sent."""
    ip("link", "set", "eth0", "down")
    ip("link", "set", "peer0", "down", peer=True)
    until("the bond uses eth1", lambda: ping("10.1.0.1"), 30)
    _, runs = bed.sweep("bond0", "10.1.0.1", [(11, 12)])
    check_route(runs, [(11, 12)])
    ip("link", "set", "eth0", "up")
    ip("link", "set", "peer0", "up", peer=True)
    until("the peer answers", lambda: ping("10.1.0.1"), 30)


def a_macvlan_in_a_container_is_refused(bed):
    """In another network namespace, the NICs below a macvlan are not visible."""
    ip("netns", "add", "container")
    ip("link", "add", "link", "bond0", "name", "mv1", "type", "macvlan", "mode", "bridge")
    ip("link", "set", "mv1", "netns", "container")
    here = ("ip", "netns", "exec", "container")
    try:
        run(*here, "ip", "link", "set", "mv1", "up")
        findings = json.loads(run(*here, *bed.words("check", "--interface", "mv1", "--format", "json"), check=False))
        must([one for one in findings if one["weight"] == "prevents" and "mv1 is a macvlan" in one["found"]], f"{findings}")
        done = subprocess.run([*here, *bed.words("sweep", "--interface", "mv1", "--connect", "10.3.0.1", "--pair", "9,10")], capture_output=True, text=True, timeout=60)
        must(done.returncode != 0 and "not visible here" in done.stderr, done.stderr)
    finally:
        ip("netns", "del", "container")


def tune_moves_the_queues_below(bed, name, server):
    with unchanged(), flows(server, 2) as programs, bed.tune("--interface", name, "--min-rate", 1) as (tuner, decisions):
        is_bound = lambda program: len(place_of(program)[1]) < len(CPUS)
        until("all programs are bound", lambda: all(map(is_bound, programs)), 90)
        must(tuner.poll() is None, (SCRATCH / "tune.errors").read_text())
        for one in decisions():
            print(f"decision on {name}: {one['act']}: {one['subject']}: {one.get('from')} to {one.get('to')}: {one['why']}")
        # A second tuner on one of the NICs below is refused.
        errors = bed.refused("tune", "--interface", "eth1", "--for", 1, "--journal", SCRATCH / "other.journal")
        must("eth1" in errors, errors)


def losses_stand_beside_the_rate_and_weigh(bed):
    with plain(), unchanged():
        peer("tc", "qdisc", "add", "dev", "peer0", "root", "netem", "loss", "5%", "limit", "10000")
        _, runs = bed.sweep("eth0", "10.0.0.1", [(9, 10)])
        must(runs[0]["rate"]["retransmits"] > 0, f"{runs[0]['rate']}")
        text = bed.output_of("report", SCRATCH / "sweep.jsonl")
        must("retransmit" in text, text)
        print(text)
        _, runs = bed.sweep("eth0", "10.0.0.1", [(9, 10)], "--udp")
        must(runs[0]["rate"]["lost"] > 0.02, f"{runs[0]['rate']}")
        peer("tc", "qdisc", "del", "dev", "peer0", "root")
        # A small buffer of the socket loses datagrams where the program is late: on the CPU of the interrupts more than beside it.
        path = pathlib.Path("/proc/sys/net/core/rmem_default")
        usual = path.read_text()
        path.write_text("8192")
        try:
            pairs = [(10, 10), (10, 12), (2, 2)]
            _, runs = bed.sweep("eth0", "10.0.0.1", pairs, "--udp", "--repeats", "2")
        finally:
            path.write_text(usual)
        must(max(run["rate"]["lost"] for run in runs if run["rate"]) > 0.01, f"{runs}")
        report = bed.json("report", SCRATCH / "sweep.jsonl")
        results = report["analysis"]["pairs"]
        for one in results:
            print(f"{one['pair']['flow']},{one['pair']['application']}: {one['median_gbps']:.3f} Gb/s, {one['loss']:.1%} lost")
        choice = bed.json("advise", "--results", SCRATCH / "sweep.jsonl")["measured"]["choice"]
        weighed = lambda one: statistics.median(one["weighed_gbps"])
        must(weighed(choice) >= 0.98 * max(map(weighed, results)), f"chosen: {choice}, of {results}")


def killed_commands_are_restored_byte_for_byte(bed):
    with plain(), unchanged(), flows("10.0.0.1", 3) as programs:
        before = settings(), masks()
        with bed.tune("--interface", "eth0", "--min-rate", 1) as (tuner, decisions):
            until("something moved", lambda: [one for one in decisions() if one["act"] == "moved"], 60)
            for words in (["tune", "--interface", "eth0", "--for", 1], ["sweep", "--interface", "eth0", "--connect", "10.0.0.1", "--pair", "9,10"]):
                errors = bed.refused(*words, "--journal", SCRATCH / "other.journal")
                must("another longma, with another journal" in errors, errors)
                print(f"second {words[0]}: {errors.strip()}")
            tuner.kill()
            tuner.wait()
        must((settings(), masks()) != before, "nothing was changed")
        errors = bed.refused("tune", "--interface", "eth0", "--for", 1)
        must("restore" in errors, errors)
        bed.output_of("restore")
        same(before, (settings(), masks()))
        sweep = subprocess.Popen(
            bed.words("sweep", "--interface", "eth0", "--connect", "10.0.0.1", "--seconds", 5, "--pair", "13,10", "--output", SCRATCH / "killed.jsonl"),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        until("the sweep has moved the interrupts", lambda: {13} in receiving_cpus("eth0") and {0} not in receiving_cpus("eth0"), 30)
        sweep.kill()
        sweep.wait()
        bed.output_of("restore")
        same(before, (settings(), masks()))


def the_installed_service_restores_after_a_kill(bed):
    if not BY_SYSTEMD.exists():
        print("skipped: there is no systemd: the service was not started")
        return
    with plain(), unchanged(), flows("10.0.0.1", 2) as programs:
        print(bed.output_of("tune", "--interface", "eth0", "--min-rate", 1, "--install"))
        unit, log = "longma-affinity.service", SCRATCH / "service.log"
        extra = pathlib.Path(f"/etc/systemd/system/{unit}.d/log.conf")
        extra.parent.mkdir()
        extra.write_text(f"[Service]\nStandardOutput=append:{log}\nStandardError=append:{log}\n")
        run("systemctl", "daemon-reload")
        run("systemctl", "start", unit)
        is_bound = lambda: all(len(place_of(program)[1]) < len(CPUS) for program in programs)
        until("the service has bound the programs", is_bound, 30)
        run("systemctl", "kill", "--signal=KILL", "--kill-who=main", unit)
        until("it has restored them", lambda: all(len(place_of(program)[1]) == len(CPUS) for program in programs), 30)
        until("it has started again", is_bound, 60)
        must("NRestarts=1" in run("systemctl", "show", "--property=NRestarts", unit), run("systemctl", "show", unit))
        run("systemctl", "stop", unit)


def the_script_of_the_advice_can_be_undone(bed):
    with plain(), unchanged():
        folder = SCRATCH / "packaged"
        folder.mkdir()
        bed.output_of("advise", "--interface", "eth0", "--format", "systemd", "--to", folder)
        (script,) = [path for path in folder.iterdir() if path.suffix != ".service"]
        before = settings()
        run("sh", "-e", str(script), "start")
        must(re.search(r"Combined:\s+2$", run("ethtool", "-l", "eth0"), re.M), run("ethtool", "-l", "eth0"))
        must(settings() != before, "nothing was changed")
        run("sh", "-e", str(script), "start")
        run("sh", "-e", str(script), "stop")


def recordings_for_this_machine(bed):
    """Leaves recordings and what the commands say here, which `read_on_this_machine` compares."""
    for name, network, interface in (("plain", plain(), "eth0"), ("bond", layers("balance-xor"), "br0")):
        server = "10.0.0.1" if name == "plain" else peer_of(LAYERS["br0"])
        with network, unchanged(), flows(server, 2):
            bed.output_of("record", SCRATCH / f"{name}.tar")
            # Two observations must agree, which takes a slow machine many seconds.
            with bed.tune("--interface", interface, "--dry-run", "--min-rate", 1) as (_, decisions), contextlib.suppress(CheckFailed):
                until("it would move something", lambda: [one for one in decisions() if one["act"] == "would-move"], 60)
            (OUT / f"{name}.json").write_text(json.dumps({
                "interface": interface,
                "check": bed.json("check", "--interface", interface),
                "advise": bed.json("advise", "--interface", interface),
                "tune": decisions(),
            }))
            (OUT / f"{name}.tar").write_bytes((SCRATCH / f"{name}.tar").read_bytes())


# Those that change the RSS table come last: without `ethtool -X`, this driver's table is not in use.
STEPS = (
    the_guest_has_the_hardware,
    a_sweep_sends_flows_where_it_says,
    tune_notices_an_rss_table_that_is_not_in_use,
    layered_interfaces_resolve_to_their_nics,
    losses_stand_beside_the_rate_and_weigh,
    killed_commands_are_restored_byte_for_byte,
    the_installed_service_restores_after_a_kill,
    recordings_for_this_machine,
    the_script_of_the_advice_can_be_undone,
    advice_for_sixteen_queues_runs,
    tune_places_several_flows,
)


def inside(longma, only=None):
    """Runs the checks in the guest; returns 1 if one fails."""
    good, bad, bed = 0, 0, Bed(longma)
    prepare()
    for step in STEPS:
        begin, name = time.monotonic(), step.__name__.replace("_", " ")
        if only and only not in name:
            continue
        try:
            step(bed)
            good += 1
            print(f"{name}: ok ({time.monotonic() - begin:.1f} s)", flush=True)
        except (CheckFailed, OSError, LookupError, ValueError, subprocess.TimeoutExpired) as error:
            bad += 1
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            for log in SCRATCH.glob("*.log"):
                print(f"--- {log}\n{log.read_text()[-4000:]}", flush=True)
    print(f"affinity_vm: guest: {good} passed, {bad} failed", flush=True)
    return 1 if bad else 0


# --- Checks on this machine -------------------------------------------------------------------------------------------


def read_on_this_machine(longma, out):
    """Reads the guest's recordings on this machine; returns whether the commands say the same as there."""
    bed, good, bad = Bed(longma), 0, 0
    for path in sorted(out.glob("*.tar")):
        there = json.loads(path.with_suffix(".json").read_text())
        tree = ("--tree", path, "--interface", there["interface"])
        try:
            weights = lambda findings: {one["subject"]: one["weight"] for one in findings if one["subject"] in ("layers", "steering", "NUMA node", "queues")}
            check, advise = bed.json("check", *tree), bed.json("advise", *tree)
            must(weights(check) == weights(there["check"]), f"{check} there: {there['check']}")
            must(advise["queues"] == there["advise"]["queues"], f"{advise['queues']}; there: {there['advise']['queues']}")
            must(advise["commands"] == there["advise"]["commands"], f"{advise['commands']}; there: {there['advise']['commands']}")
            lines = bed.output_of("tune", *tree, "--dry-run", "--min-rate", 1, "--format", "json").splitlines()
            would = lambda decisions: {one["act"] for one in decisions} & {"would-move"}
            must(would(map(json.loads, lines)) == would(there["tune"]), f"{lines}; there: {there['tune']}")
            good += 1
            print(f"{path.stem}: the recording says the same here as the host", flush=True)
        except (CheckFailed, OSError, LookupError, ValueError, subprocess.TimeoutExpired) as error:
            bad += 1
            print(f"{path.stem}: {type(error).__name__}: {error}", flush=True)
    print(f"affinity_vm: here: {good} passed, {bad} failed", flush=True)
    return bad == 0
