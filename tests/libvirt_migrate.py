#!/usr/bin/env python3
"""Tests migrations of `longma placement` between two hosts with a real libvirt each.

Each host is a set of namespaces (mounts, host name, network) with its own libvirtd, which has its own host UUID, and its own agent. The
virtual machine is emulated by QEMU. Its boot sector fills memory with random numbers and then writes a counter to a file of its host, by
which the test sees that it goes on where it was, that it never runs on both hosts, and for how long it stands still.

Needs root, Debian's libvirt-daemon-system, libvirt-clients, qemu-system-x86 and iproute2, and binutils.
Source: libvirt's virsh(1) and "Guest migration"; the PC's interrupt controller and serial port, for the boot sector.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

import libvirt
from libvirt import FOLDERS, ROOT, CheckFailed, cpus, must, run, tail, until

NEEDED = ("libvirtd", "virsh", "qemu-system-x86_64", "unshare", "nsenter", "mount", "ip", "as", "ld")
# Of the service, and of the hosts.
BRIDGE, HOSTS = "10.77.0.254", {"a": "10.77.0.1", "b": "10.77.0.2"}
# libvirtd notices a cut connection within seconds. No cgroups, since both hosts have one tree of them here.
QEMU = libvirt.CONFIGURATION + "cgroup_controllers = []\n"
DAEMON = 'listen_tls = 0\nlisten_tcp = 1\nauth_tcp = "none"\nkeepalive_interval = 1\nkeepalive_count = 2\nhost_uuid = "{uuid}"\n'
COUNTS = "/var/log/libvirt/counts"

BOOT_SECTOR = """
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
    movw %ax, %ss
    movl $0x7000, %esp
    movl $0x200000, %edi
    movl $0x200000, %ecx        # 8 MiB
    movl $1, %eax
fill:
    imull $1664525, %eax
    addl $1013904223, %eax
    stosl
    loop fill
    # The firmware has given IRQ 0, the timer, the vector 8.
    movl $tick, %eax
    movw %ax, 0x8040
    movw $8, 0x8042
    movw $0x8e00, 0x8044
    shrl $16, %eax
    movw %ax, 0x8046
    lidt idt_descriptor
    movb $0xfe, %al
    outb %al, $0x21
    movb $0xff, %al
    outb %al, $0xa1
    xorl %ebx, %ebx
    sti
count:
    hlt
    incl %ebx
    movl %ebx, %esi
    movl $8, %ecx
digit:
    roll $4, %esi
    movl %esi, %eax
    andl $15, %eax
    movb digits(%eax), %al
    call put
    loop digit
    movb $10, %al
    call put
    jmp count
put:
    movb %al, %ah
    movw $0x3fd, %dx
wait:
    inb %dx, %al
    testb $0x20, %al
    jz wait
    movb %ah, %al
    movw $0x3f8, %dx
    outb %al, %dx
    ret
tick:
    pushl %eax
    movb $0x20, %al
    outb %al, $0x20
    popl %eax
    iret
digits: .ascii "0123456789abcdef"
.balign 8
gdt: .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff
gdt_descriptor: .word 23
    .long gdt
idt_descriptor: .word 0x4f
    .long 0x8000
.org 510
.word 0xaa55
"""

# A read-only disk is safe to migrate without shared storage.
TEMPLATE = """<domain type='qemu'><name>x</name><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64'>hvm</type></os>
<features><acpi/><apic/></features><devices><controller type='usb' index='0' model='none'/><memballoon model='none'/>
<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{image}'/><target dev='vda' bus='virtio'/><readonly/></disk>
<serial type='file'><source path='{counts}' append='on'/></serial></devices></domain>"""


def boot_image(folder):
    """A disk image with the boot sector."""
    source, built, image = folder / "boot.s", folder / "boot.o", folder / "boot.img"
    source.write_text(BOOT_SECTOR)
    run("as", "--32", "-o", built, source)
    run("ld", "-m", "elf_i386", "-Ttext", "0x7c00", "-e", "0x7c00", "--oformat", "binary", "-o", image, built)
    os.truncate(image, 1 << 20)
    return image


class Host:
    """A host: namespaces, libvirtd and an agent."""

    def __init__(self, bed, name, reserved):
        self.bed, self.name, self.address, self.reserved = bed, name, HOSTS[name], reserved
        self.folder = bed.folder / name
        self.folder.mkdir()
        (self.folder / "qemu.conf").write_text(QEMU)
        (self.folder / "libvirtd.conf").write_text(DAEMON.format(uuid=f"5c1d2a00-0000-4000-8000-00000000000{ord(name) - 96}"))
        self.agent = self.daemon = None
        self.holder = subprocess.Popen(["unshare", "--mount", "--uts", "--net", "--propagation", "private", "sleep", "infinity"])
        until("the namespaces exist", lambda: os.readlink(f"/proc/{self.holder.pid}/ns/net") != os.readlink("/proc/self/ns/net"))
        for folder in FOLDERS:
            self.do("mkdir", "-p", folder)
            self.do("mount", "-t", "tmpfs", "libvirt-test", folder)
        self.do("mount", "--bind", self.folder / "qemu.conf", "/etc/libvirt/qemu.conf")
        self.do("hostname", name)
        run("ip", "link", "add", f"br-{name}", "type", "veth", "peer", "name", "eth0", "netns", str(self.holder.pid))
        run("ip", "link", "set", f"br-{name}", "master", "br0", "up")
        self.do("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            self.do("ip", "link", "set", link, "up")
        self.start_libvirtd()

    @property
    def inside(self):
        return ["nsenter", "-t", str(self.holder.pid), "-m", "-u", "-n"]

    def do(self, *words, **options):
        return run(*self.inside, *map(str, words), **options)

    def virsh(self, *words, **options):
        return self.do("virsh", "--quiet", *words, **options)

    def state(self, domain):
        return self.virsh("domstate", domain, check=False).strip()

    def start(self, log, *words):
        with (self.folder / log).open("a") as log:
            return subprocess.Popen([*self.inside, *map(str, words)], stdout=log, stderr=log)

    def start_libvirtd(self):
        words = ("--listen", "--pid-file", "/run/libvirt/libvirtd.pid", "-f", self.folder / "libvirtd.conf")
        self.daemon = self.start("libvirtd.log", "libvirtd", *words)
        until("libvirtd answers", lambda: self.virsh("version", "--daemon"))

    def start_agent(self, uri=True):
        words = ["--server", self.bed.url, "--token-file", self.folder / "token", "--name", self.name, "--virtualization", "software"]
        words += ["--reserved", self.reserved, *(["--migration-uri", f"qemu+tcp://{self.address}/system"] if uri else [])]
        self.agent = self.start("agent.log", self.bed.longma, "placement", "agent", *words)

    def kill_agent(self):
        self.agent.kill()
        self.agent.wait()

    def kill_libvirtd(self):
        self.daemon.kill()
        self.daemon.wait()

    def counts(self):
        """What the virtual machine has written on this host."""
        path = pathlib.Path(f"/proc/{self.holder.pid}/root{COUNTS}")
        return [int(line, 16) for line in path.read_text().split("\n")[:-1] if line] if path.exists() else []

    def stop(self):
        for child in (self.agent, self.daemon, self.holder):
            if child and child.poll() is None:
                child.kill()
                child.wait()


class TestBed:
    """The service, both hosts and one virtual machine."""

    def __init__(self, longma, folder):
        self.longma, self.folder, self.service, self.hosts = longma, folder, None, []
        self.url = f"http://{BRIDGE}:7420"
        run("ip", "link", "add", "br0", "type", "bridge", "forward_delay", "0")
        run("ip", "address", "add", f"{BRIDGE}/24", "dev", "br0")
        for link in ("lo", "br0"):
            run("ip", "link", "set", link, "up")
        self.start_service()
        both = sorted(os.sched_getaffinity(0))[:2]
        # Each host has another CPU for virtual machines.
        for name, reserved in zip(HOSTS, reversed(both), strict=True):
            host = Host(self, name, reserved)
            self.hosts.append(host)
            token = self.output_of("token", "add", name, "--role", "agent", "--host", name)
            (host.folder / "token").write_text(token)
            host.start_agent()
        self.a, self.b = self.hosts
        until("both hosts are up", lambda: [h["status"] for h in self.json("hosts")] == ["up", "up"])
        self.watch = Watch(self)

    def start_service(self):
        words = ["placement", "serve", "--listen", "0.0.0.0:7420", "--plain", "--state", self.folder / "state"]
        with (self.folder / "service.log").open("a") as log:
            self.service = subprocess.Popen([self.longma, *words], stdout=log, stderr=log)
        until("the service answers", lambda: self.output_of("list"))

    def output_of(self, *words, check=True):
        return run(self.longma, "placement", *map(str, words), "--state", self.folder / "state", timeout=300, check=check)

    def json(self, *words):
        return json.loads(self.output_of(*words, "--json"))

    def place(self):
        """The host of the virtual machine if it runs there, by the service."""
        vm = self.json("show", "vm")
        return vm["placement"]["host"] if vm["state"] == "running" else None

    def slowly(self, host, to):
        """Starts a migration that takes seconds. Returns its process once memory is being sent."""
        host.virsh("migrate-setspeed", "longma-1", "3")
        words = [self.longma, "placement", "migrate", "vm", "--to", to, "--state", self.folder / "state"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        until("memory is being sent", lambda: "Outgoing" in host.virsh("domjobinfo", "longma-1") and self.json("show", "vm")["state"] == "migrating", 20)
        return process

    def settled(self, *possible):
        """Waits until the virtual machine runs on one host, by everything that can be asked; returns the host."""

        def is_settled():
            place = self.place()
            must(place in possible, f"it is {self.json('show', 'vm')['state']} on {place}")
            on, off = (self.a, self.b) if place == "a" else (self.b, self.a)
            must(on.state("longma-1") == "running", f"{place}: {on.state('longma-1')}")
            must("longma-1" not in off.virsh("list", "--all", "--name").split(), f"{off.name}: something was left")
            return on

        on = until("it runs on one host", is_settled, 60)
        before = len(on.counts())
        until("it counts on", lambda: len(on.counts()) > before + 2)
        hosts = {host["name"]: host for host in self.json("hosts")}
        used = {name: (host["vms"], host["nodes"][0]["exclusive"]) for name, host in hosts.items()}
        must(used == {on.name: (1, 1), ({"a", "b"} - {on.name}).pop(): (0, 0)}, f"{used}")
        must(self.json("quota")[0]["vms"] == 1, "its quota is not counted once")
        database = self.json_of_audit()["database"]
        must(database == [], f"{database}")
        return on

    def json_of_audit(self):
        return json.loads(self.output_of("audit", "--json", check=False))

    def stop(self):
        self.watch.stop() if hasattr(self, "watch") else None
        for host in self.hosts:
            for pid in pathlib.Path(f"/proc/{host.holder.pid}/root/run/libvirt/qemu").glob("*.pid"):
                try:
                    os.kill(int(pid.read_text()), signal.SIGKILL)
                except (OSError, ValueError):
                    pass
            host.stop()
        if self.service:
            self.service.kill()
            self.service.wait()


class Watch:
    """Observes both hosts' counters: a change of the host that counts is a handover, and more of them are a second copy."""

    def __init__(self, bed):
        self.bed, self.ended, self.last = bed, threading.Event(), None
        self.handovers, self.pauses = [], []
        self.thread = threading.Thread(target=self.observe, daemon=True)
        self.thread.start()

    def observe(self):
        sizes, grown = {}, time.monotonic()
        while not self.ended.wait(0.01):
            for host in self.bed.hosts:
                try:
                    size = os.stat(f"/proc/{host.holder.pid}/root{COUNTS}").st_size
                except OSError:
                    continue
                if size > sizes.get(host.name, 0):
                    sizes[host.name], now = size, time.monotonic()
                    if self.last not in (None, host.name):
                        self.handovers.append(host.name)
                        self.pauses.append(now - grown)
                    self.last, grown = host.name, now

    def stop(self):
        self.ended.set()
        self.thread.join()


def check_pins(bed, host, placement):
    """The virtual CPU and the emulator are where the host's own CPUs are, by libvirt and by the kernel."""
    own = set(placement["cells"][0]["cpus"])
    must(host.reserved not in own, f"{own} is reserved on {host.name}")
    pin = cpus(host.virsh("vcpupin", "longma-1").split()[-1])
    emulator = cpus(host.virsh("emulatorpin", "longma-1").split()[-1])
    must(pin == own and emulator == {host.reserved}, f"{host.name}: pinned to {pin} and {emulator}, wanted {own} and {host.reserved}")
    must("restrictive" in host.virsh("numatune", "longma-1"), host.virsh("numatune", "longma-1"))
    pid = int(host.do("cat", "/run/libvirt/qemu/longma-1.pid"))
    threads = libvirt.vcpu_threads(pid)
    must(list(threads.values()) == [own], f"the kernel: {threads}, wanted {own}")


# --- Checks -----------------------------------------------------------------------------------------------------------


def a_virtual_machine_migrates_with_new_pins_and_goes_on_counting(bed):
    template = bed.folder / "template.xml"
    template.write_text(TEMPLATE.format(image=boot_image(bed.folder), counts=COUNTS))
    bed.output_of("drain", "b")
    bed.output_of("request", "vm", "--vcpus", "1", "--memory", "64MiB", "--cpu", "exclusive", "--template", template, "--patience", "60")
    bed.output_of("drain", "--undo", "b")
    check_pins(bed, bed.a, bed.json("show", "vm")["placement"])
    until("it counts", lambda: len(bed.a.counts()) > 10)
    output = bed.output_of("migrate", "vm", "--to", "b")
    must("migrated: b, node 0" in output, output)
    bed.settled("b")
    check_pins(bed, bed.b, bed.json("show", "vm")["placement"])
    last, first = bed.a.counts()[-1], bed.b.counts()[0]
    must(first == last + 1, f"it has written {last} on a and then {first} on b")
    mentions = [line for line in bed.output_of("events", "--after", "0", "--count", str(number_of_events(bed))).splitlines() if "migrat" in line and "local-admin" in line]
    must(len(mentions) == 4, f"{mentions}")
    log = bed.output_of("audit-log")
    must("/v1/vms/vm/migrate" in log, log)


def it_returns_to_a_host_chosen_by_the_service(bed):
    output = bed.output_of("migrate", "vm")
    must("migrated: a, node 0" in output, output)
    bed.settled("a")
    check_pins(bed, bed.a, bed.json("show", "vm")["placement"])


def a_refused_migration_leaves_everything_as_it_was(bed):
    for why, problem, break_it, mend in (
        ("a foreign domain has its name", "does not belong to it", lambda: define_foreign(bed.b), lambda: bed.b.virsh("undefine", "longma-1")),
        ("its image is missing", "boot.img", lambda: hide_image(bed), lambda: bed.b.do("umount", bed.folder / "boot.img")),
        ("its agent has no URI", "--migration-uri", lambda: restart_agent(bed, False), lambda: restart_agent(bed, True)),
    ):
        break_it()
        try:
            done = subprocess.run([bed.longma, "placement", "migrate", "vm", "--to", "b", "--state", bed.folder / "state"], capture_output=True, text=True)
            must(done.returncode != 0 and problem in done.stderr, f"{why}: {done}")
        finally:
            mend()
        bed.settled("a")
    must("not migrated" in bed.json("show", "vm")["problem"] or "b is not ready" in bed.json("show", "vm")["problem"], bed.json("show", "vm")["problem"])


def define_foreign(host):
    file = host.folder / "foreign.xml"
    file.write_text(libvirt.FOREIGN.replace("foreign-vm", "longma-1"))
    host.virsh("define", file)


def hide_image(bed):
    """On b, a device is in the place of the image."""
    bed.b.do("mount", "--bind", "/dev/null", bed.folder / "boot.img")


def restart_agent(bed, uri):
    bed.b.kill_agent()
    bed.b.start_agent(uri)
    time.sleep(2)


def killed(bed, what, kill, repair):
    """Breaks something in the middle of a migration from the present host, and repairs it."""
    source, target = both_hosts(bed)
    process = bed.slowly(source, target.name)
    kill(source, target)
    # Only after libvirtd could notice it.
    time.sleep(0.3)
    repair(source, target)
    output = process.communicate(timeout=120)[0]
    on = bed.settled("a", "b")
    print(f"  {what} from {source.name}: it is on {on.name}: {output.strip().splitlines()[-1][:150] if output.strip() else ''}")


def a_killed_agent_of_the_source_leaves_one_copy(bed):
    killed(bed, "the source's agent is killed", lambda source, _: source.kill_agent(), lambda source, _: source.start_agent())


def a_killed_agent_of_the_target_leaves_one_copy(bed):
    killed(bed, "the target's agent is killed", lambda _, target: target.kill_agent(), lambda _, target: target.start_agent())


def a_killed_libvirtd_of_the_source_leaves_one_copy(bed):
    killed(bed, "the source's libvirtd is killed", lambda source, _: source.kill_libvirtd(), lambda source, _: source.start_libvirtd())


def a_killed_libvirtd_of_the_target_leaves_one_copy(bed):
    killed(bed, "the target's libvirtd is killed", lambda _, target: target.kill_libvirtd(), lambda _, target: target.start_libvirtd())


def a_killed_service_leaves_one_copy(bed):
    def kill(*_):
        bed.service.kill()
        bed.service.wait()

    killed(bed, "the service is killed", kill, lambda *_: bed.start_service())


def a_cut_network_leaves_one_copy(bed):
    def cut(_, target):
        run("ip", "link", "set", f"br-{target.name}", "down")

    def mend(_, target):
        time.sleep(4)
        run("ip", "link", "set", f"br-{target.name}", "up")

    killed(bed, "the target's network is cut", cut, mend)


def both_hosts(bed):
    """The host of the virtual machine, and the other one."""
    return (bed.a, bed.b) if bed.place() == "a" else (bed.b, bed.a)


def an_aborted_migration_leaves_everything_as_it_was(bed):
    source, target = both_hosts(bed)
    process = bed.slowly(source, target.name)
    source.virsh("domjobabort", "longma-1")
    output = process.communicate(timeout=120)[0]
    must(process.returncode != 0 and "was not migrated" in output, output)
    bed.settled(source.name)


def draining_empties_a_host(bed):
    source = bed.place()
    other = "b" if source == "a" else "a"
    output = bed.output_of("drain", source, "--empty", "--patience", "60")
    must(f"virtual machine 1 (vm) is on {other}" in output and f"{source} is empty" in output, output)
    bed.settled(other)
    bed.output_of("drain", "--undo", source)


def it_has_never_run_twice(bed):
    bed.watch.stop()
    events = [json.loads(line) for line in bed.output_of("events", "--after", "0", "--count", str(number_of_events(bed)), "--json").splitlines()]
    migrated = [event for event in events if event["kind"] == "migrated"]
    # Each migration has an event on either host.
    must(len(bed.watch.handovers) == len(migrated) / 2, f"{bed.watch.handovers}, but {len(migrated) / 2} migrations")
    restarts = sum(later <= before for host in bed.hosts for before, later in zip(host.counts(), host.counts()[1:], strict=False))
    must(restarts == 0, f"it has started anew {restarts} times")
    numbers = sorted(number for host in bed.hosts for number in host.counts())
    must(len(numbers) == len(set(numbers)), "a number was written twice")
    pauses = ", ".join(f"{pause:.2f}" for pause in bed.watch.pauses)
    print(f"  {len(bed.watch.handovers)} handovers, without a counter for {pauses} s; a tick takes 0.05 s")


def it_is_stopped_and_deleted_during_a_migration(bed):
    for command, state in (("stop", "stopped"), ("delete", "deleted")):
        source, target = both_hosts(bed)
        process = bed.slowly(source, target.name)
        output = bed.output_of(command, "vm", "--patience", "100")
        process.communicate(timeout=120)
        running = [host.name for host in bed.hosts if "longma-1" in host.virsh("list", "--name").split()]
        must(state in output and not running, f"{command}: {output}; on {running}")
        held = sorted((host["vms"], host["nodes"][0]["exclusive"]) for host in bed.json("hosts"))
        must(held == ([(0, 0), (1, 1)] if command == "stop" else [(0, 0), (0, 0)]), f"{command}: {held}")
        if command == "stop":
            bed.output_of("start", "vm", "--patience", "100")


def number_of_events(bed):
    """The number of events so far."""
    with contextlib.closing(sqlite3.connect(f"file:{bed.folder}/state/placement.db?mode=ro", uri=True)) as database:
        return database.execute("SELECT count(*) FROM events").fetchone()[0]


STEPS = (
    a_virtual_machine_migrates_with_new_pins_and_goes_on_counting,
    it_returns_to_a_host_chosen_by_the_service,
    a_refused_migration_leaves_everything_as_it_was,
    a_killed_agent_of_the_source_leaves_one_copy,
    a_killed_agent_of_the_target_leaves_one_copy,
    a_killed_libvirtd_of_the_source_leaves_one_copy,
    a_killed_libvirtd_of_the_target_leaves_one_copy,
    a_killed_service_leaves_one_copy,
    a_cut_network_leaves_one_copy,
    an_aborted_migration_leaves_everything_as_it_was,
    draining_empties_a_host,
    it_has_never_run_twice,
    it_is_stopped_and_deleted_during_a_migration,
)


def missing():
    """The reason why the test cannot run, or an empty string."""
    absent = [command for command in NEEDED if not shutil.which(command)]
    if absent:
        return f"{', '.join(absent)} is missing"
    if why := libvirt.missing():
        return why
    probe = ["unshare", "--net", "--mount", "--uts", "ip", "link", "add", "br0", "type", "bridge"]
    if subprocess.run(probe, capture_output=True).returncode != 0:
        return "network namespaces or bridges are not permitted"
    return ""


def inside(longma):
    """Runs all checks in the namespaces; returns their status."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        good, bad, bed = 0, 0, None
        try:
            bed = TestBed.__new__(TestBed)
            bed.hosts, bed.service = [], None
            bed.__init__(longma, folder)
            for step in STEPS:
                begin, name = time.monotonic(), step.__name__.replace("_", " ")
                try:
                    step(bed)
                    good += 1
                    print(f"{name}: ok ({time.monotonic() - begin:.1f} s)", flush=True)
                except (CheckFailed, OSError, LookupError, ValueError, subprocess.TimeoutExpired) as error:
                    bad += 1
                    print(f"{name}: {type(error).__name__}: {error}", flush=True)
                    for host in bed.hosts:
                        print(f"--- agent of {host.name}\n{tail(host.folder / 'agent.log', 2000)}")
                    break
        except (CheckFailed, OSError) as error:
            bad += 1
            print(error)
        finally:
            if bed:
                bed.stop()
            if bad:
                for log in ("service.log", "a/libvirtd.log", "b/libvirtd.log", "a/agent.log", "b/agent.log"):
                    print(f"--- {log}\n{tail(folder / log, 6000)}")
    print(f"migration: {good} passed, {bad} failed")
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longma", default=f"{ROOT}/target/release/longma", type=pathlib.Path, help="the command")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        sys.exit(inside(options.longma))
    if why := missing():
        print(f"skipped: migration: {why}")
        return
    # All child processes die with this one.
    words = ["unshare", "--mount", "--net", "--propagation", "private", sys.executable, __file__, "--inside", "--longma"]
    sys.exit(subprocess.run([*words, str(options.longma.resolve())]).returncode)


if __name__ == "__main__":
    main()
