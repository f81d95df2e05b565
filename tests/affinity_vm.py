#!/usr/bin/env python3
"""Tests `longma affinity` on a virtual machine with 16 CPUs, 2 sockets, 2 NUMA nodes and NICs with 16 queues.

The guest has Debian's kernel, with bonding, VLANs, bridges, macvlans and netem, and this machine's files (read-only under an overlay). Its
NICs are virtio-net with multi-queue and RSS: `eth0` on node 1 and `eth1` on node 0, each with 16 receive interrupts (MSI-X). Their peers,
two NICs with one queue, are moved to a network namespace of the guest. Taps and bridges join them in a network namespace of this machine. So
all flows are real, and all settings are those of a real kernel; affinity_vm_steps.py has the checks. With KVM or software emulation, whose
throughput means nothing. Needs root, or a kernel with user namespaces, and /dev/net/tun.

Source: QEMU's manual (-netdev tap, pxb-pcie, -numa); the kernel's documentation of tuntap, bonding and overlayfs.
"""

import argparse
import gzip
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time

import affinity_vm_steps as steps
from debian_package import Failure, run
from guest import FOLDER, Archive, boot, kernel, kvm_works, modules_in_order

NEEDED = {
    "qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "iperf3": "iperf3", "ethtool": "ethtool", "ip": "iproute2", "tc": "iproute2",
}
MIB_OF_A_NODE = 1024
MODULES = (
    "virtio_pci", "9p", "9pnet_virtio", "overlay", "virtio_net", "bonding", "8021q", "bridge", "macvlan", "sch_netem", "tcp_diag", "udp_diag",
)
# Without watchdogs, which may fire on a slow machine. The kernel accounts for the time of softirqs only if it trusts the time stamp counter.
WORDS = "random.trust_cpu=on tsc=reliable nowatchdog rcupdate.rcu_cpu_stall_suppress=1 mitigations=off"
SYSTEMD = "/lib/systemd/systemd"

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for name in {modules}; do
    case $name in bonding) options=max_bonds=0 ;; *) options= ;; esac
    insmod /modules/$name.ko $options
done
mkdir /lower /upper /host
mount -t 9p -o trans=virtio,version=9p2000.L,msize=500000,cache=loose,ro files /lower
mount -t tmpfs upper /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work files /host
for name in run tmp dev/shm mnt etc/systemd/system usr/lib/systemd/system-generators; do
    mkdir -p /host/$name
    mount -t tmpfs guest /host/$name
done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=500000 out /host/mnt
for name in proc sys dev; do mount --move /$name /host/$name; done
mkdir -p /host/dev/pts /host/dev/shm
ln -s /proc/self/fd /host/dev/fd
mount -t devpts pts /host/dev/pts
mount -t tmpfs shared /host/dev/shm
ip link set lo up
hostname affinity
echo "guest: up after $(cut -d ' ' -f 1 /host/proc/uptime) s"
cat > /host/tmp/checks <<'END'
#!/bin/sh
cd /
export PATH={path} HOME=/root
{command} < /dev/null > /dev/ttyS0 2>&1
echo "guest: status $?" > /dev/ttyS0
sync
echo o > /proc/sysrq-trigger
sleep 60
END
chmod 755 /host/tmp/checks
if [ -x /host{systemd} ]; then
    cat > /host/etc/systemd/system/checks.service <<'END'
[Unit]
DefaultDependencies=no
[Service]
Type=exec
ExecStart=/tmp/checks
END
    touch /host/run/checks-by-systemd
    exec chroot /host /usr/bin/env -i PATH={path} container=qemu {systemd} --unit=checks.service --log-target=null --show-status=no
fi
mount -t cgroup2 groups /host/sys/fs/cgroup
exec chroot /host /tmp/checks
"""


def initramfs(modules, command):
    """Builds the initramfs: it mounts this machine's files, and starts the checks in them, by systemd if there is one."""
    archive = Archive()
    for name in ("proc", "sys", "dev", "bin"):
        archive.folder(name)
    archive.file("bin/busybox", pathlib.Path(shutil.which("busybox")).read_bytes())
    contents = modules_in_order(modules, MODULES)
    # The directory of this Python comes last: it may have other versions of the tools.
    path = f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{pathlib.Path(sys.executable).parent}"
    archive.file("init", INIT.format(modules=" ".join(contents), command=command, path=path, systemd=SYSTEMD).encode())
    for name, content in contents.items():
        archive.file(f"modules/{name}.ko", content, 0o644)
    return gzip.compress(archive.bytes(), 1)


def network():
    """Makes the taps and bridges in this network namespace."""
    for segment in {nic.segment for nic in steps.NICS.values()}:
        run(["ip", "link", "add", segment, "type", "bridge", "stp_state", "0"])
        run(["ip", "link", "set", segment, "up"])
    for name, nic in steps.NICS.items():
        several = ["multi_queue"] if nic.queues > 1 else []
        run(["ip", "tuntap", "add", "name", f"tap-{name}", "mode", "tap", "vnet_hdr", *several])
        run(["ip", "link", "set", f"tap-{name}", "master", nic.segment, "up"])


def devices(out):
    """QEMU's options for nodes, NICs, this machine's files, and the folder `out`, which the guest may write to."""
    words = []
    for node in range(steps.NODES):
        first = node * steps.CPUS_OF_A_NODE
        words += ["-object", f"memory-backend-ram,id=memory{node},size={MIB_OF_A_NODE}M"]
        words += ["-numa", f"node,nodeid={node},cpus={first}-{first + steps.CPUS_OF_A_NODE - 1},memdev=memory{node}"]
        words += ["-device", f"pxb-pcie,id=host{node},bus_nr={64 * (node + 1)},numa_node={node},bus=pcie.0"]
        words += ["-device", f"pcie-root-port,id=port{node},bus=host{node},chassis={node + 1},slot={node + 1}"]
    for name, nic in steps.NICS.items():
        device = f"virtio-net-pci,netdev={name},mac={nic.address},romfile=,speed=10000,duplex=full"
        backend = f"tap,id={name},ifname=tap-{name},script=no,downscript=no,vhost=off"
        if nic.queues > 1:
            backend += f",queues={nic.queues}"
            # An interrupt for each receive and transmit queue, for changes, and for the control queue.
            # Long rings: with RSS, QEMU 7.2 never reads a tap queue again whose packet had to wait for buffers of another queue.
            device += f",mq=on,rss=on,hash=on,rx_queue_size=1024,vectors={2 * nic.queues + 2}"
        words += ["-netdev", backend, "-device", f"{device},bus={'pcie.0' if nic.node is None else f'port{nic.node}'}"]
    for tag, options in (("files", "path=/,security_model=none,readonly=on,multidevs=remap"), ("out", f"path={out},security_model=none")):
        words += ["-fsdev", f"local,id={tag},{options}", "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag},bus=pcie.0"]
    return words


def accelerator(image):
    """QEMU's accelerator, and a processor model on which the guest sees hardware threads and a last-level cache for each socket."""
    is_amd = "AuthenticAMD" in pathlib.Path("/proc/cpuinfo").read_text()
    if kvm_works(image):
        return "kvm", "max,topoext=on" if is_amd else "max"
    # An emulated processor of AMD has no hardware threads.
    return "tcg", "max,vendor=GenuineIntel"


def outside(options):
    """Boots the guest in this network namespace; returns whether all checks passed there and here."""
    image, modules = kernel()
    out = FOLDER / "affinity"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    only = f" --only {shlex.quote(options.only)}" if options.only else ""
    command = f"{sys.executable} {pathlib.Path(__file__).resolve()} --inside --longma {options.longma}{only}"
    packed = FOLDER / "affinity-initramfs.gz"
    packed.write_bytes(initramfs(modules, command))
    how, model = accelerator(image)
    network()
    begin = time.monotonic()
    count = steps.NODES * steps.CPUS_OF_A_NODE
    smp = ("-smp", f"{count},sockets={steps.NODES},cores={steps.CPUS_OF_A_NODE // 2},threads=2")
    memory = steps.NODES * MIB_OF_A_NODE
    lines = boot(image, packed, options.timeout, memory, True, smp, devices(out), WORDS, how, model)
    (FOLDER / "affinity.log").write_text("\n".join(lines) + "\n")
    print(f"affinity_vm: the guest took {time.monotonic() - begin:.0f} s with {'KVM' if how == 'kvm' else 'software emulation'}", flush=True)
    good = "guest: status 0" in lines
    return steps.read_on_this_machine(options.longma, out) and good


def isolated():
    """Starts this program again in a network namespace of its own, as root of a user namespace if necessary."""
    users = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    words = ["unshare", "--net", *users]
    if subprocess.run([*words, "sh", "-c", ": <> /dev/net/tun && ip link add x type bridge"], capture_output=True).returncode != 0:
        print("skipped: affinity on 16 CPUs: this needs /dev/net/tun, and network namespaces with bridges")
        return
    os.execvp("unshare", [*words, sys.executable, __file__, "--isolated", *sys.argv[1:]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longma", default=f"{steps.ROOT}/target/release/longma", type=pathlib.Path, help="the command")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds (default 1800)")
    parser.add_argument("--only", metavar="WORD", help="only the checks with this word in their names")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--isolated", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.longma = options.longma.resolve()
    if options.inside:
        sys.exit(steps.inside(options.longma, options.only))
    absent = sorted({package for command, package in NEEDED.items() if not shutil.which(command)})
    if absent:
        print(f"skipped: affinity on 16 CPUs: install {' '.join(absent)}")
        return
    try:
        if not options.isolated:
            # The archive cannot be reached from the other network namespace.
            kernel()
            return isolated()
        if not outside(options):
            sys.exit("affinity_vm: checks failed")
    except (Failure, OSError, subprocess.SubprocessError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
