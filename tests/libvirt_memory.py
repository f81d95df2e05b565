#!/usr/bin/env python3
"""Tests on a real libvirt that a host whose promised memory is all in use does not run out of memory.

The virtual machines get 1 GiB of this host, and libvirtd with QEMU runs in a memory cgroup with this limit. Virtual machines are requested
until one is refused. The boot sector of each writes to all of its memory. Needs root, a memory cgroup, binutils, and what libvirt.py needs.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import libvirt
from libvirt import FOLDERS, ROOT, CheckFailed, TestBed, must, pid_of, run, tail, until, virsh

GUEST_MIB, HOST_MIB = 160, 1024
# Defaults of --vm-overhead and --vcpu-overhead.
VM_MIB, VCPU_MIB = 48, 4
GROUPS = pathlib.Path("/sys/fs/cgroup/memory"), pathlib.Path("/sys/fs/cgroup")
LIMITS = ("memory.limit_in_bytes", "memory.max")

# Writes to each page from 1 MiB up to 1 MiB below the end, where the firmware has tables. Then runs a million jumps to the next
# instruction, whose translation takes more than the emulator's memory, and prints an F.
BOOT_SECTOR = f"""
.code16
    cli
    xorw %ax, %ax
    movw %ax, %ds
    lgdt gdt_descriptor
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmp $8, $protected
.code32
protected:
    movw $16, %ax
    movw %ax, %ds
    movw %ax, %es
    movl $0x100000, %edi
    movl ${(GUEST_MIB - 2) << 8}, %ecx
fill:
    movl %edi, (%edi)
    addl $4096, %edi
    loop fill
    movl $0x100000, %edi
    movl $0x80000, %ecx
    movl $0x00eb00eb, %eax      # Twice: jmp to the next instruction.
    rep stosl
    movb $0xb8, (%edi)          # movl $done, %eax; jmp *%eax
    movl $done, 1(%edi)
    movw $0xe0ff, 5(%edi)
    movl $0x100000, %eax
    jmp *%eax
done:
    movw $0x3f8, %dx
    movb $0x46, %al
    outb %al, %dx
stop:
    hlt
    jmp stop
.balign 8
gdt: .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff
gdt_descriptor: .word 23
    .long gdt
.org 510
.word 0xaa55
"""

TEMPLATE = """<domain type='qemu'><name>x</name><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64'>hvm</type></os>
<features><acpi/><apic/></features><devices><memballoon model='none'/>
<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{image}'/><target dev='vda' bus='virtio'/><readonly/></disk>
<serial type='file'><source path='{filled}' append='on'/></serial></devices></domain>"""


def limited_group():
    """A new memory cgroup with the limit; None if there can be none."""
    for parent in GROUPS:
        group = parent / f"longma-memory-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        for limit in LIMITS:
            if (group / limit).exists():
                (group / limit).write_text(str(HOST_MIB << 20))
                return group
        group.rmdir()
    return None


def private_mib(domain):
    """Memory of QEMU that it shares with no other process."""
    lines = pathlib.Path(f"/proc/{pid_of(domain)}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def request(bed, image, number, vcpus=1):
    """Requests a virtual machine that fills its memory; returns whether it has room."""
    template, filled = bed.folder / f"{number}.xml", pathlib.Path(f"/var/log/libvirt/filled-{number}")
    template.write_text(TEMPLATE.format(image=image, filled=filled))
    words = ["request", f"vm{number}", "--vcpus", str(vcpus), "--memory", f"{GUEST_MIB}MiB", "--template", template, "--patience", "120"]
    try:
        bed.output_of(*words)
    except CheckFailed as error:
        must("no room" in str(error), f"{error}")
        return False
    until(f"virtual machine {number} has filled its memory", lambda: filled.read_text() == "F")
    return True


def check(bed, image, group):
    must(request(bed, image, 1), "the first virtual machine has no room")
    one = private_mib("longma-1") - GUEST_MIB
    must(one <= VM_MIB + VCPU_MIB, f"the emulator takes {one:.0f} MiB beside the guest's memory")
    must(request(bed, image, 2, vcpus=2), "the second virtual machine has no room")
    two = private_mib("longma-2") - GUEST_MIB
    must(two <= VM_MIB + 2 * VCPU_MIB, f"with two virtual CPUs, the emulator takes {two:.0f} MiB beside the guest's memory")
    count = 2
    while request(bed, image, count + 1):
        count += 1
    node = bed.json("hosts")[0]["nodes"][0]["memory"][0]
    use = sum(private_mib(f"longma-{number}") for number in range(1, count + 1))
    must(count >= 4 and node[1] - node[2] < GUEST_MIB + VM_MIB + VCPU_MIB, f"{count} virtual machines fit: {node}")
    must(use <= node[2] <= node[1] <= HOST_MIB, f"{node[2]} of {node[1]} MiB are promised, {use:.0f} in use")
    running = virsh("list", "--name").split()
    must(len(running) == count, f"of {count} virtual machines, {running} are left")
    killed = next(path for path in (group / "memory.oom_control", group / "memory.events") if path.exists()).read_text()
    must("oom_kill 0" in killed, killed)
    print(f"  {count} virtual machines use {use:.0f} MiB of {node[2]} promised; the emulator {one:.0f} MiB, with two virtual CPUs {two:.0f}")


def ordinary_memory_mib():
    """The memory of the host's nodes without huge pages. /proc/meminfo may count more than its nodes have."""
    total = 0
    for node in pathlib.Path("/sys/devices/system/node").glob("node[0-9]*"):
        memory = {words[2].rstrip(":"): int(words[3]) for words in map(str.split, (node / "meminfo").read_text().splitlines())}
        huge = sum(int((kind / "nr_hugepages").read_text()) * int(kind.name.split("-")[1].removesuffix("kB")) for kind in (node / "hugepages").iterdir())
        total += memory["MemTotal"] - huge
    return total // 1024


def inside(longma):
    """Runs the test in the namespace; returns its status."""
    for name in FOLDERS:
        os.makedirs(name, exist_ok=True)
        run("mount", "-t", "tmpfs", "libvirt-test", name)
    group, bed, failure = limited_group(), None, None
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        # All of QEMU stays in libvirtd's cgroup.
        (folder / "qemu.conf").write_text(libvirt.CONFIGURATION + "cgroup_controllers = []\n")
        run("mount", "--bind", str(folder / "qemu.conf"), "/etc/libvirt/qemu.conf")
        source, built, image = folder / "boot.s", folder / "boot.o", folder / "boot.img"
        source.write_text(BOOT_SECTOR)
        run("as", "--32", "-o", built, source)
        run("ld", "-m", "elf_i386", "-Ttext", "0x7c00", "-e", "0x7c00", "--oformat", "binary", "-o", image, built)
        os.truncate(image, 1 << 20)
        try:
            bed = TestBed(longma, folder)
            (group / "cgroup.procs").write_text(str(bed.daemon.pid))
            bed.start("--overcommit", "1000", "--reserved-memory", f"{ordinary_memory_mib() - HOST_MIB}MiB")
            check(bed, image, group)
        except (CheckFailed, OSError, LookupError, ValueError, subprocess.TimeoutExpired) as error:
            failure = error
            print(f"{type(error).__name__}: {error}\n{tail(folder / 'service.log', 3000)}\n{tail(folder / 'libvirtd.log', 3000)}")
        finally:
            if bed:
                bed.stop()
            run("umount", "/etc/libvirt/qemu.conf", check=False)
            until("the cgroup is empty", lambda: not (group / "cgroup.procs").read_text())
            group.rmdir()
    print(f"memory: {0 if failure else 1} passed, {1 if failure else 0} failed")
    return 1 if failure else 0


def missing():
    """The reason why the test cannot run, or an empty string."""
    if why := libvirt.missing():
        return why
    if absent := [command for command in ("as", "ld") if not shutil.which(command)]:
        return f"{', '.join(absent)} is missing"
    if (group := limited_group()) is None:
        return "no memory cgroup can be made"
    group.rmdir()
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longma", default=f"{ROOT}/target/release/longma", type=pathlib.Path, help="the command")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        sys.exit(inside(options.longma))
    if why := missing():
        print(f"skipped: memory: {why}")
        return
    # All child processes die with this one.
    words = ["unshare", "--mount", "--propagation", "private", sys.executable, __file__, "--inside", "--longma"]
    sys.exit(subprocess.run([*words, str(options.longma.resolve())]).returncode)


if __name__ == "__main__":
    main()
