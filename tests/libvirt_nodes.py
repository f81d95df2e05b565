#!/usr/bin/env python3
"""Tests `longma placement` with a real libvirt and four NUMA nodes.

Virtual CPUs and pages must be where the service placed them, and must follow when it moves a virtual machine.

The nodes are those of a software-emulated QEMU guest, which has this machine's files (read-only under an overlay) and Debian's kernel.
libvirtd, the service and the virtual machines run in it; their state is compared with the guest kernel's (numa_maps, status, cgroups) and
libvirt's. Emulated nodes have no NUMA latencies, so nothing here measures speed. Needs no privileges.
Source: the kernel's documentation of numa_maps, cpusets and overlayfs; QEMU's manual of -numa and -virtfs.
"""

import argparse
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import libvirt
from debian_package import Failure
from guest import FOLDER, Archive, boot, kernel, module
from libvirt import allowed, cgroup, cpus, must, pid_of, run, until, vcpu_threads, virsh

NEEDED = {"libvirtd": "libvirt-daemon-system", "virsh": "libvirt-clients", "qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static"}
NODES = 4
CPUS_OF_A_NODE = 2
MIB_OF_A_NODE = 768
# Distances within and between two pairs of neighbours.
NEAR, FAR = 16, 22
# In load order.
MODULES = (
    "virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "netfs", "fscache", "9pnet", "9pnet_virtio", "9p",
    "overlay",
)
# Disable automatic NUMA balancing, so that pages move only on request, and the watchdogs, which may fire on a slow machine.
WORDS = "random.trust_cpu=on numa_balancing=disable nowatchdog rcupdate.rcu_cpu_stall_suppress=1 mitigations=off"

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin:/usr/sbin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for name in {modules}; do insmod /modules/$name.ko; done
mkdir /lower /upper /host
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro files /lower
mount -t tmpfs upper /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work files /host
for name in proc sys dev; do mount --move /$name /host/$name; done
for name in run tmp dev/shm; do mkdir -p /host/$name; mount -t tmpfs guest /host/$name; done
mkdir -p /host/dev/pts
rm -f /host/usr/bin/qemu-system-i386 /host/usr/bin/qemu-system-x86_64-microvm
ln -s /proc/self/fd /host/dev/fd
ln -s /proc/self/fd/0 /host/dev/stdin
mount -t devpts pts /host/dev/pts
mount -t cgroup2 groups /host/sys/fs/cgroup
ip link set lo up
hostname nodes
echo '127.0.0.1 localhost nodes' > /host/etc/hosts
echo > /host/etc/resolv.conf
echo "guest: up after $(cut -d ' ' -f 1 /host/proc/uptime) s"
chroot /host env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root {command}
echo "guest: status $?"
poweroff -f
"""


# --- Inside: state ----------------------------------------------------------------------------------------------------


def placed(bed, name):
    """The placement of a virtual machine according to the service, and its domain."""
    vm = bed.json("show", name)
    return vm["placement"], f"longma-{vm['id']}"


def nodes_of(placement):
    return [cell["node"] for cell in placement["cells"]]


def cpus_of(node):
    """A node's CPUs according to the kernel."""
    return cpus(pathlib.Path(f"/sys/devices/system/node/node{node}/cpulist").read_text())


def guest_mib(domain, sizes):
    """Memory of a virtual machine by node in MiB, from mappings of the size of its virtual nodes."""
    pid = pid_of(domain)
    found = {}
    starts = set()
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, rights = line.split()[:2]
        first, last = (int(end, 16) for end in span.split("-"))
        # Skip executable mappings, which hold translated code.
        if rights.startswith("rw-") and (last - first) >> 20 in sizes:
            starts.add(first)
    must(starts, f"{domain} has no mapping of {sizes} MiB")
    for line in pathlib.Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        words = line.split()
        if int(words[0], 16) in starts:
            kib = next(int(word.split("=")[1]) for word in words if word.startswith("kernelpagesize_kB="))
            for node, pages in re.findall(r"\bN(\d+)=(\d+)", line):
                found[int(node)] = found.get(int(node), 0) + int(pages) * kib / 1024
    return {node: mib for node, mib in found.items() if mib >= 1}


def check_location(bed, name):
    """Checks that virtual CPUs, emulator threads, memory binding and pages of a virtual machine are where the service placed them.

    Returns its memory by node.
    """
    placement, domain = placed(bed, name)
    pid, own_cpus = pid_of(domain), []
    for cell in placement["cells"]:
        on_node = cpus_of(cell["node"])
        each = [{cpu} for cpu in cell.get("cpus", [])] or [on_node - taken(bed)] * cell["vcpus"]
        must(all(wanted <= on_node for wanted in each), f"{name}: {cell} is not on its node, which has {on_node}")
        own_cpus += each
    threads = vcpu_threads(pid)
    found = [threads[key] for key in sorted(threads)]
    must(found == own_cpus, f"{name}: its virtual CPUs may run on {found}, wanted {own_cpus}")
    pins = [cpus(line.split()[-1]) for line in virsh("vcpupin", domain).splitlines() if line.strip()]
    must(pins == own_cpus, f"{name}: libvirt pins to {pins}, wanted {own_cpus}")
    others = allowed(pid, lambda thread: thread.startswith("qemu"))
    must(others and all(not at & taken(bed) for at in others.values()), f"{name}: the emulator is on {others}, but {taken(bed)} are exclusive")
    bound = set(placement["bound"])
    mems = cgroup(pid, "cpuset.mems")
    must(mems is not None and cpus(mems) == bound, f"{name}: cpuset.mems is {mems}, wanted {bound}")
    tune = re.search(r"<numatune>.*</numatune>", virsh("dumpxml", domain), re.S)[0]
    nodeset = re.search(r"<memory mode='\w+' nodeset='([\d,-]+)'", tune)[1]
    must(cpus(nodeset) == bound, f"{name}: {tune}")
    sizes = {sum(share["mib"] for share in cell["memory"]) for cell in placement["cells"]}
    memory = guest_mib(domain, sizes)
    must(set(memory) <= bound, f"{name}: memory {memory} outside of {bound}")
    if placement["memory"] == "strict":
        for cell in placement["cells"]:
            for share in cell["memory"]:
                has = memory.get(share["node"], 0)
                must(abs(has - share["mib"]) < 1, f"{name}: {memory} MiB by node, wanted {share}: strict memory is allocated at the start")
    return memory


def taken(bed):
    """Exclusive CPUs of all virtual machines."""
    own = set()
    for vm in bed.json("list"):
        for cell in (vm["placement"] or {"cells": []})["cells"]:
            own |= set(cell.get("cpus", [])) | set(cell.get("idle", []))
    return own


def ask(bed, name, memory, *words):
    output = bed.output_of("request", name, "--memory", memory, "--patience", "240", *words)
    must("running" in output, output)


def move(bed, name, node):
    """Moves a virtual machine to a node and waits for it. An emulated host may take longer than the service waits for the answer."""
    words = [bed.longma, "placement", "rebind", name, "--nodes", str(node), "--state", bed.folder / "state"]
    errors = subprocess.run(words, capture_output=True, text=True, timeout=300).stderr.strip()

    def is_there():
        vm = bed.json("show", name)
        must(vm["state"] == "running" and nodes_of(vm["placement"]) == [node], f"it is {vm}; rebind failed with: {errors}")
        return True

    until(f"{name} is on node {node}", is_there, 240)


def boots(bed, name, mib):
    """A boot image for one virtual machine (QEMU locks it). Its boot sector writes a byte to each page between 1 MiB and `mib`, then
    loops. Source: Intel's manual, volume 3: a segment loaded in protected mode keeps its limit in real mode, so that all memory is
    reachable.
    """
    code = bytes.fromhex("fa 31c0 8ed8 0f0116") + b"%T" + bytes.fromhex("0f20c0 0c01 0f22c0 bb0800 8edb 24fe 0f22c0 66bf00001000")
    code += bytes.fromhex("67c60701 6681c700100000 6681ff") + (mib << 20).to_bytes(4, "little") + bytes.fromhex("72ea ebfe")
    table = 0x7C00 + len(code)
    code = code.replace(b"%T", table.to_bytes(2, "little"))
    code += bytes.fromhex("0f00") + (table + 6).to_bytes(4, "little") + bytes(8) + bytes.fromhex("ffff00000092cf00")
    image = bed.folder / f"{name}.img"
    image.write_bytes(code.ljust(510, b"\0") + b"\x55\xaa" + bytes((1 << 20) - 512))
    return ("--disk", str(image), "--disk-format", "raw")


# --- Inside: checks ---------------------------------------------------------------------------------------------------


def the_four_nodes_are_known(bed):
    host = bed.json("hosts")[0]
    nodes = [(node["node"], node["cpus"]) for node in host["nodes"]]
    must(nodes == [(node, CPUS_OF_A_NODE) for node in range(NODES)], f"{host}")
    distances = [[int(word) for word in pathlib.Path(f"/sys/devices/system/node/node{node}/distance").read_text().split()] for node in range(NODES)]
    must(host["distances"] == distances and distances[0] == [10, NEAR, FAR, FAR], f"{host}: the kernel has {distances}")


def strict_memory_and_an_exclusive_cpu_are_on_one_node(bed):
    ask(bed, "own", "128MiB", "--vcpus", "1", "--cpu", "exclusive")
    check_location(bed, "own")


def shared_cpus_are_those_of_the_node(bed):
    ask(bed, "range", "64MiB", "--vcpus", "2", "--cpu", "range")
    check_location(bed, "range")


def each_virtual_node_is_on_a_node_of_its_own(bed):
    ask(bed, "wide", "128MiB", "--vcpus", "2", "--virtual-nodes", "2", "--cpu", "exclusive")
    placement, _ = placed(bed, "wide")
    must(len(set(nodes_of(placement))) == 2, f"{placement}")
    check_location(bed, "wide")


def pages_move_with_a_virtual_machine(bed):
    for name in ("own", "range"):
        before, domain = placed(bed, name)
        pid, (old,) = pid_of(domain), nodes_of(before)
        memory = check_location(bed, name)
        target = next(node for node in (2, 1, 3, 0) if node != old and cpus_of(node) - taken(bed) >= cpus_of(node))
        move(bed, name, target)
        moved = check_location(bed, name)
        print(f"{name}: MiB by node: {memory} became {moved}")
        must(old in memory and old not in moved and target in moved, f"{name}: {memory} became {moved}, and was to move from {old} to {target}")
        must(pid_of(domain) == pid, f"{name} is another process")


def a_move_of_several_virtual_nodes_is_refused_with_a_reason(bed):
    before, domain = placed(bed, "wide")
    words = [bed.longma, "placement", "rebind", "wide", "--state", bed.folder / "state"]

    def is_refused():
        done = subprocess.run(words, capture_output=True, text=True, timeout=200)
        must(done.returncode != 0, f"it moved: {done}")
        # Either it fits nowhere else, or the move is undone. On a slow machine, the agent may be busy until the request times out.
        must("did not accept the order" not in done.stderr, done.stderr)
        return any(word in done.stderr for word in ("undone", "does not fit", "has not yet reported"))

    until("it is refused", is_refused, 300)
    until("it stays", lambda: (vm := bed.json("show", "wide"))["state"] == "running" and vm["placement"] == before, 240)
    check_location(bed, "wide")


def preferred_memory_comes_only_from_nodes_within_the_distance(bed):
    bed.output_of("delete", "wide", "--patience", "240")
    free = max(node["memory"][0][1] - node["memory"][0][2] for node in bed.json("hosts")[0]["nodes"])
    mib = free + 100
    words = ["--memory-policy", "preferred", "--within-distance", str(NEAR), "--virtual-nodes", "1"]
    ask(bed, "wish", f"{mib}MiB", "--vcpus", "1", *words, *boots(bed, "wish", mib - 2))
    placement, domain = placed(bed, "wish")
    home = placement["cells"][0]["node"]
    must(set(placement["bound"]) == {home, home ^ 1}, f"{placement}: nodes within {NEAR} of {home} are it and its neighbour")
    until("it has touched its memory", lambda: sum(guest_mib(domain, {mib}).values()) > mib - 8, 120)
    memory = check_location(bed, "wish")
    print(f"wish: MiB by node: {memory}, its own is {home}")
    must(memory.get(home, 0) > mib / 2, f"{memory}: node {home} must be filled first")
    bed.output_of("delete", "wish", "--patience", "240")


def a_virtual_machine_leaves_a_busy_node(bed):
    for name in ("busy", "idle"):
        ask(bed, name, "32MiB", "--vcpus", "1", "--cpu", "range", *boots(bed, name, 1))
    # Place both on one node, whose two CPUs are then busy.
    (node,) = nodes_of(placed(bed, "busy")[0])
    if nodes_of(placed(bed, "idle")[0]) != [node]:
        move(bed, "idle", node)
    where = lambda: {nodes_of(placed(bed, name)[0])[0] for name in ("busy", "idle")}
    until("the switcher moves one", lambda: len(where()) == 2 and all(vm["state"] == "running" for vm in bed.json("list")), 300)
    for name in ("busy", "idle"):
        memory = check_location(bed, name)
        must(set(memory) == set(nodes_of(placed(bed, name)[0])), f"{name}: {memory}")
        bed.output_of("delete", name, "--patience", "240")


def a_service_killed_during_a_move_leaves_one_location(bed):
    before, domain = placed(bed, "own")
    pid = pid_of(domain)
    mover = subprocess.Popen(
        [bed.longma, "placement", "rebind", "own", "--state", bed.folder / "state"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    until("it moves", lambda: bed.json("show", "own")["state"] == "moving", 60)
    bed.kill()
    mover.wait(timeout=60)
    bed.start()
    until("it runs", lambda: bed.json("show", "own")["state"] == "running", 300)
    memory = check_location(bed, "own")
    must(pid_of(domain) == pid and len(memory) == 1, f"{memory}")


def a_virtual_machine_on_an_offline_cpu_gets_another_cpu(bed):
    before, domain = placed(bed, "own")
    (cpu,) = before["cells"][0]["cpus"]
    online = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/online")
    if not online.exists():
        return
    online.write_text("0")
    until("it left the CPU", lambda: cpu not in taken(bed) and bed.json("show", "own")["state"] == "running", 300)
    until("its thread follows", lambda: check_location(bed, "own"), 120)
    online.write_text("1")


def the_audit_is_clean_and_nothing_remains(bed):
    until("the audit", lambda: "all domains match the service's records" in bed.output_of("audit"), 60)
    for name in ("own", "range"):
        bed.output_of("delete", name, "--patience", "240")
    must(virsh("list", "--all", "--name").split() == [], virsh("list", "--all"))
    must(libvirt.groups() <= bed.groups, f"{libvirt.groups() - bed.groups}")
    left = [str(path) for folder in libvirt.FOLDERS for path in pathlib.Path(folder).rglob("longma-*") if "log" not in path.parts]
    must(not left, f"{left}")
    host = bed.json("hosts")[0]
    must(host["vms"] == 0 and all(node["memory"][0][2] == 0 for node in host["nodes"]), f"{host}")


STEPS = (
    the_four_nodes_are_known,
    strict_memory_and_an_exclusive_cpu_are_on_one_node,
    shared_cpus_are_those_of_the_node,
    pages_move_with_a_virtual_machine,
    a_service_killed_during_a_move_leaves_one_location,
    a_virtual_machine_on_an_offline_cpu_gets_another_cpu,
    a_virtual_machine_leaves_a_busy_node,
    each_virtual_node_is_on_a_node_of_its_own,
    a_move_of_several_virtual_nodes_is_refused_with_a_reason,
    preferred_memory_comes_only_from_nodes_within_the_distance,
    the_audit_is_clean_and_nothing_remains,
)


# --- Outside: the guest -----------------------------------------------------------------------------------------------


def initramfs(modules, command):
    """Builds the initramfs: it mounts this machine's files and runs the command in them."""
    archive = Archive()
    for name in ("proc", "sys", "dev", "bin"):
        archive.folder(name)
    archive.file("bin/busybox", pathlib.Path(shutil.which("busybox")).read_bytes())
    archive.file("init", INIT.format(modules=" ".join(MODULES), command=command).encode())
    for name in MODULES:
        archive.file(f"modules/{name}.ko", module(modules, name), 0o644)
    return gzip.compress(archive.bytes(), 1)


def devices():
    """QEMU options for the nodes and this machine's files."""
    words = ["-virtfs", "local,path=/,mount_tag=files,security_model=none,readonly=on,multidevs=remap"]
    for node in range(NODES):
        first = node * CPUS_OF_A_NODE
        words += ["-object", f"memory-backend-ram,id=memory{node},size={MIB_OF_A_NODE}M"]
        words += ["-numa", f"node,nodeid={node},cpus={first}-{first + CPUS_OF_A_NODE - 1},memdev=memory{node}"]
    for a in range(NODES):
        for b in range(NODES):
            if a != b:
                words += ["-numa", f"dist,src={a},dst={b},val={NEAR if a // 2 == b // 2 else FAR}"]
    return words


def outside(longma, timeout_s):
    """Boots the guest, prints its output, and returns whether all checks passed."""
    image, modules = kernel()
    command = f"{sys.executable} {pathlib.Path(__file__).resolve()} --inside --longma {longma}"
    packed = FOLDER / "nodes-initramfs.gz"
    packed.write_bytes(initramfs(modules, command))
    begin = time.monotonic()
    smp = ("-smp", str(NODES * CPUS_OF_A_NODE))
    lines = boot(image, packed, timeout_s, NODES * MIB_OF_A_NODE, True, smp, devices(), WORDS)
    (FOLDER / "nodes.log").write_text("\n".join(lines) + "\n")
    print(f"libvirt_nodes: the guest took {time.monotonic() - begin:.0f} s", flush=True)
    return "guest: status 0" in lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longma", default=f"{libvirt.ROOT}/target/release/longma", type=pathlib.Path, help="the command")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds (default 1800)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        sys.exit(libvirt.inside(options.longma, STEPS, "libvirt_nodes"))
    absent = [package for command, package in NEEDED.items() if not shutil.which(command)]
    if absent:
        print(f"skipped: placement on four nodes: install {' '.join(absent)}")
        return
    try:
        if not outside(options.longma.resolve(), options.timeout):
            sys.exit("libvirt_nodes: the checks in the guest failed")
    except (Failure, OSError, subprocess.SubprocessError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
