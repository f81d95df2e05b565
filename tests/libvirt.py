#!/usr/bin/env python3
"""Tests `longma placement` with a real libvirt: virtual machines emulated by QEMU, checked through libvirt, /proc and cgroups.

Starts a private libvirtd in a mount namespace with empty folders in place of the system's, and stops it afterwards. The system's libvirt is
not affected. Needs root, and Debian's libvirt-daemon-system, libvirt-clients and qemu-system-x86. Uses the host's NUMA topology;
libvirt_nodes.py tests several nodes. Source: libvirt's virsh(1) and cgroup documents.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
NEEDED = ("libvirtd", "virsh", "qemu-system-x86_64", "unshare", "mount")
# Folders of libvirtd that are emptied in the namespace.
FOLDERS = ("/etc/libvirt/qemu", "/run/libvirt", "/var/lib/libvirt", "/var/log/libvirt", "/var/cache/libvirt")
# Without a service manager, there is no virtlogd. QEMU runs as root, so that files need not change owners.
CONFIGURATION = 'stdio_handler = "file"\nuser = "root"\ngroup = "root"\nremember_owner = 0\nnamespaces = []\n'
FOREIGN = """<domain type='qemu'><name>foreign-vm</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
<os><type arch='x86_64'>hvm</type></os><devices><memballoon model='none'/></devices></domain>"""

RECORDING_VIRSH = """#!/bin/sh
echo "$*" >> {folder}/calls
case "$*" in *" start --domain "*)
    if [ -e {folder}/take-away ]; then
        {virsh} --connect qemu:///system undefine --domain "$(cat {folder}/take-away)" && rm {folder}/take-away
    fi;;
esac
exec {virsh} "$@"
"""


class CheckFailed(Exception):
    """A failed check."""


def must(condition, message):
    if not condition:
        raise CheckFailed(message)


def run(*words, timeout=120, check=True):
    """The output of a command."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, env={**os.environ, "LC_ALL": "C"})
    if check and done.returncode != 0:
        raise CheckFailed(f"{' '.join(map(str, words))}: {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def virsh(*words, **options):
    return run("virsh", "--quiet", "--connect", "qemu:///system", *words, **options)


def until(what, condition, seconds=90):
    """Waits until a condition holds and returns its value."""
    end, last = time.monotonic() + seconds, None
    while time.monotonic() < end:
        try:
            if value := condition():
                return value
        except (CheckFailed, OSError, LookupError) as error:
            last = error
        time.sleep(0.2)
    raise CheckFailed(f"{what}: not within {seconds} s ({last})")


def cpus(text):
    """Parses a CPU list such as 0-2,5."""
    found = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


class TestBed:
    """libvirtd and the service."""

    def __init__(self, longma, folder):
        self.longma, self.folder, self.service = longma, folder, None
        self.groups = groups()
        self.daemon = subprocess.Popen(["libvirtd"], stdout=(folder / "libvirtd.log").open("w"), stderr=subprocess.STDOUT)
        until("libvirtd answers", lambda: virsh("version", "--daemon"))

    def start(self, *options):
        words = ["placement", "serve", "--all-in-one", "--virtualization", "software", "--listen", "127.0.0.1:0", *options, "--state"]
        log, tools = (self.folder / "service.log").open("a"), self.folder / "tools"
        # This virsh records the calls to libvirt, and can undefine a domain just before it is started.
        tools.mkdir(exist_ok=True)
        (tools / "virsh").write_text(RECORDING_VIRSH.format(folder=self.folder, virsh=shutil.which("virsh")))
        (tools / "virsh").chmod(0o755)
        path = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
        self.service = subprocess.Popen([self.longma, *words, self.folder / "state"], stdout=log, stderr=log, env=path)
        until("the service answers", lambda: self.output_of("list"))

    def kill(self):
        self.service.send_signal(signal.SIGKILL)
        self.service.wait()

    def output_of(self, *words):
        return run(self.longma, "placement", *words, "--state", self.folder / "state", timeout=300)

    def json(self, *words):
        return json.loads(self.output_of(*words, "--json"))

    def found(self):
        """The audit's findings: domain to differences, with both sides."""
        output = run(self.longma, "placement", "audit", "--json", "--state", self.folder / "state", timeout=300, check=False)
        return [(f["domain"], f["what"], f["intended"], f["actual"]) for host in json.loads(output)["hosts"] for f in host["findings"]]

    def finds(self, domain, what, intended=""):
        return any(found[:2] == (domain, what) and intended in found[2] for found in self.found())

    def stop(self):
        if self.service and self.service.poll() is None:
            self.kill()
        # Stop the virtual machines through libvirt, which also removes their cgroups.
        for name in virsh("list", "--name", check=False).split():
            virsh("destroy", name, check=False)
        for child in (self.service, self.daemon):
            if child and child.poll() is None:
                child.terminate()
                try:
                    child.wait(timeout=60)
                except subprocess.TimeoutExpired:
                    child.kill()
        # Virtual machines outlive libvirtd on purpose. Kill the test's own if libvirt did not.
        for pid in pids():
            os.kill(pid, signal.SIGKILL)


def groups():
    """Control groups of longma's virtual machines."""
    return {str(path) for pattern in ("*/machine/*longma*", "machine*/*longma*") for path in pathlib.Path("/sys/fs/cgroup").glob(pattern)}


def pids():
    """Processes of the virtual machines in this namespace."""
    return [int(path.read_text()) for path in pathlib.Path("/run/libvirt/qemu").glob("*.pid") if alive(path)]


def alive(path):
    try:
        return pathlib.Path(f"/proc/{int(path.read_text())}").is_dir()
    except (OSError, ValueError):
        return False


def pid_of(domain):
    return int(pathlib.Path(f"/run/libvirt/qemu/{domain}.pid").read_text())


def tasks(pid):
    """IDs and names of a process's threads."""
    return [(int(task.name), (task / "comm").read_text().strip()) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()]


def allowed(pid, wanted):
    """The allowed CPUs of a process's threads whose names match."""
    found = {}
    for task, name in tasks(pid):
        if wanted(name):
            status = pathlib.Path(f"/proc/{pid}/task/{task}/status").read_text()
            found[name] = cpus(status.split("Cpus_allowed_list:")[1].split()[0])
    return found


def vcpu_threads(pid):
    return allowed(pid, lambda name: name.startswith("CPU "))


def cgroup(pid, file):
    """A file of the process's cpuset cgroup, if there are cpuset cgroups."""
    for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        base = "/sys/fs/cgroup/cpuset" if "cpuset" in controllers.split(",") else "/sys/fs/cgroup"
        found = pathlib.Path(base + path, file)
        if ("cpuset" in controllers or not controllers) and found.is_file() and found.read_text().strip():
            return found.read_text().strip()
    return None


# --- Checks -----------------------------------------------------------------------------------------------------------


def exclusive_cpus_are_pinned_and_memory_is_bound(bed):
    output = bed.output_of("request", "own", "--vcpus", "1", "--memory", "128MiB", "--cpu", "exclusive", "--patience", "120")
    must("running" in output, output)
    cell = bed.json("show", "own")["placement"]["cells"][0]
    own, node = set(cell["cpus"]), cell["node"]
    pin = virsh("vcpupin", "longma-1").split()
    must(cpus(pin[-1]) == own, f"libvirt: {pin}")
    tune = virsh("numatune", "longma-1")
    must("restrictive" in tune and tune.split()[-1] == str(node), tune)
    emulator = cpus(virsh("emulatorpin", "longma-1").split()[-1])
    must(not emulator & own, f"the emulator is on {emulator}, but {own} are exclusive to the virtual CPU")
    pid = pid_of("longma-1")
    threads = vcpu_threads(pid)
    must(len(threads) == 1 and all(at == own for at in threads.values()), f"the kernel: {threads}, wanted {own}")
    others = allowed(pid, lambda name: not name.startswith("CPU "))
    must(all(not at & own for name, at in others.items() if name.startswith("qemu")), f"the kernel: {others}")
    pages = 0
    for line in pathlib.Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        size = next((int(w.split("=")[1]) for w in line.split() if w.startswith("kernelpagesize_kB=")), 4)
        pages += sum(int(w.split("=")[1]) * size for w in line.split() if w.startswith(f"N{node}="))
    must(pages >= 128 * 1024, f"{pages} KiB are on node {node}: a strict virtual machine has all of its memory from the start")
    mems = cgroup(pid, "cpuset.mems")
    must(mems is None or cpus(mems) == {node}, f"cpuset.mems is {mems}")


def shared_virtual_cpus_avoid_exclusive_cpus(bed):
    bed.output_of("request", "shared", "--vcpus", "1", "--memory", "64MiB", "--patience", "120")
    own = set(bed.json("show", "own")["placement"]["cells"][0]["cpus"])
    at = vcpu_threads(pid_of("longma-2"))
    must(at and all(not where & own for where in at.values()), f"the virtual CPUs may run on {at}, but {own} are exclusive to another virtual machine")


def manual_changes_are_repaired(bed):
    own = set(bed.json("show", "own")["placement"]["cells"][0]["cpus"])
    others = sorted(set(os.sched_getaffinity(0)) - own)
    virsh("vcpupin", "longma-1", "0", str(others[0]), "--live")
    must(all(at != own for at in vcpu_threads(pid_of("longma-1")).values()), "the pinning could not be changed")
    until("pinned again", lambda: all(at == own for at in vcpu_threads(pid_of("longma-1")).values()))
    virsh("destroy", "longma-2")
    until("it runs again", lambda: "running" in virsh("domstate", "longma-2"))
    until("the audit", lambda: "all domains match the service's records" in bed.output_of("audit"))


def manually_paused_undefined_or_throttled_domains_are_repaired(bed):
    pid = pid_of("longma-1")
    virsh("suspend", "longma-1")
    virsh("undefine", "longma-1")
    must("longma-1" in virsh("list", "--transient", "--name").split(), "it could not be undefined")
    can_be_slowed = slowed("longma-1")
    until("it runs again", lambda: virsh("domstate", "longma-1").strip() == "running")
    until("it is persistent again", lambda: "longma-1" in virsh("list", "--persistent", "--name").split())
    if can_be_slowed:
        until("its CPU time is restored", lambda: virsh("schedinfo", "longma-1").split("vcpu_quota")[1].split()[1] not in ("5000",))
    else:
        print("skipped: CPU time, which libvirt cannot limit here")
    must(pid_of("longma-1") == pid, "its process was replaced")
    until("the audit", lambda: "all domains match the service's records" in bed.output_of("audit"))


def manually_restarted(bed, domain, *changes):
    """Changes a domain's XML with regular expressions, each of which must match once, and restarts the domain."""
    xml = virsh("dumpxml", "--inactive", "--domain", domain)
    for what, becomes in changes:
        xml, count = re.subn(what, becomes, xml, flags=re.S)
        must(count == 1, f"{what} occurs {count} times: {xml}")
    defined(bed, xml)
    # In one call, so that the service does not act in between.
    virsh(f"destroy {domain}; start {domain}")


def defined(bed, xml):
    file = bed.folder / "by-hand.xml"
    file.write_text(xml)
    virsh("define", str(file))


def confined(domain, count, own):
    """Whether a domain has this many virtual CPUs, none of them on exclusive CPUs of another."""
    threads = vcpu_threads(pid_of(domain))
    return len(threads) == count and all(at and not at & own for at in threads.values())


def manually_added_virtual_cpus_and_memory_are_found_and_confined(bed):
    own = set(bed.json("show", "own")["placement"]["cells"][0]["cpus"])
    more = r"<vcpu placement='static'[^>]*>1</vcpu>"
    size = [(rf"<{word} unit='KiB'>\d+</{word}>", f"<{word} unit='KiB'>307200</{word}>") for word in ("memory", "currentMemory")]
    manually_restarted(bed, "longma-2", (more, "<vcpu placement='static'>3</vcpu>"), *size)
    must(len(vcpu_threads(pid_of("longma-2"))) == 3, "it could not be given more virtual CPUs")
    for difference in ("vcpus", "size"):
        until(f"{difference} is found, with what to do", lambda difference=difference: bed.finds("longma-2", difference, "longma placement stop 2"), 40)
    until("it avoids the exclusive CPU", lambda: confined("longma-2", 3, own), 40)
    # The service observes the domains every 2 s, and a query to the guest takes seconds.
    time.sleep(6)
    queries = [call for call in (bed.folder / "calls").read_text().splitlines() if "setvcpus --domain longma-2" in call]
    must(len(queries) == 1, f"{queries}")
    restarted(bed, own)
    manually_restarted(bed, "longma-2", (more, "<vcpu placement='static' current='1'>3</vcpu>"))
    virsh("setvcpus", "longma-2", "3", "--live")
    until("it is found", lambda: bed.finds("longma-2", "vcpus"), 40)
    until("it avoids the exclusive CPU", lambda: confined("longma-2", 3, own), 60)
    restarted(bed, own)


def restarted(bed, own):
    """Restarts the domain as its owner would, and checks that it has the requested placement."""
    for word in ("stop", "start"):
        bed.output_of(word, "shared", "--patience", "120")
    until("the audit", lambda: "all domains match the service's records" in bed.output_of("audit"))
    must(confined("longma-2", 1, own) and "65536 KiB" in virsh("dominfo", "longma-2"), virsh("dominfo", "longma-2"))


def copied_metadata_is_reported_under_any_domain_name(bed):
    # One name is the ID of a running domain, one is another's name with a trailing space.
    names = ("copied too", "longma-1 ", "it's \"so\" & <so>; list", "Gr\u00f6\u00dfe", "-x", "--all", virsh("domid", "longma-2").strip())
    xml = re.sub(r"<uuid>.*?</uuid>", "", virsh("dumpxml", "--inactive", "longma-1"))
    before = set(virsh("list", "--all", "--uuid").split())
    try:
        for name in names:
            defined(bed, xml.replace("<name>longma-1</name>", f"<name>{escape(name)}</name>"))
        # The agent may also see a domain whose threads it has not pinned yet.
        until("all are found", lambda: sorted(found[0] for found in bed.found() if found[1] == "orphan") == sorted(names), 40)
        until("all are seen", lambda: sorted(names) == sorted(bed.json("hosts")[0]["foreign"]), 40)
    finally:
        for uuid in set(virsh("list", "--all", "--uuid").split()) - before:
            virsh("undefine", "--domain", uuid)
    until("the audit", lambda: "all domains match the service's records" in bed.output_of("audit"))


def domains_inside_foreign_metadata_are_ignored(bed):
    own = set(bed.json("show", "own")["placement"]["cells"][0]["cpus"])
    inner = re.sub(r"<domain [^>]*>", "<domain>", virsh("dumpxml", "longma-1"), count=1)
    inside = f"<metadata><w:w xmlns:w='urn:w'>\n{inner}{inner}</w:w></metadata>"
    defined(bed, FOREIGN.replace("foreign-vm", "zz-holds-others").replace("<vcpu>", f"{inside}<vcpu>"))
    try:
        until("it is listed", lambda: bed.json("hosts")[0]["foreign"] == ["zz-holds-others"], 40)
        must(bed.found() == [], f"{bed.found()}")
        virsh("vcpupin", "longma-1", "0", str(min(set(os.sched_getaffinity(0)) - own)), "--live")
        until("pinned again", lambda: all(at == own for at in vcpu_threads(pid_of("longma-1")).values()), 40)
    finally:
        virsh("undefine", "zz-holds-others")


def a_domain_undefined_before_its_start_is_defined_again(bed):
    taken = bed.folder / "take-away"
    taken.write_text("longma-2")
    virsh("destroy", "longma-2")
    until("it was undefined", lambda: not taken.exists())
    until("it runs again", lambda: "running" in virsh("domstate", "longma-2"))
    until("the audit", lambda: "all domains match the service's records" in bed.output_of("audit"))


def slowed(domain):
    """Limits a domain's CPU time; returns whether that is possible."""
    try:
        virsh("schedinfo", domain, "--live", "--set", "vcpu_quota=5000")
    except CheckFailed:
        return False
    return True


def a_killed_service_leaves_everything_running(bed):
    before = {name: pid_of(name) for name in ("longma-1", "longma-2")}
    bed.kill()
    must({name: pid_of(name) for name in before} == before, "virtual machines ended with the service")
    bed.start()
    until("the audit", lambda: "all domains match the service's records" in bed.output_of("audit"))
    must({name: pid_of(name) for name in before} == before, "virtual machines were restarted")


def foreign_domains_are_left_alone(bed):
    xml = bed.folder / "foreign.xml"
    xml.write_text(FOREIGN)
    virsh("define", str(xml))
    virsh("start", "foreign-vm")
    until("it is listed", lambda: bed.json("hosts")[0]["foreign"] == ["foreign-vm"])
    must("foreign-vm" in bed.output_of("hosts"), bed.output_of("hosts"))
    uses = lambda: bed.json("hosts")[0]["foreign_domains"]
    until("its memory is counted", lambda: [sum(d["memory_mib"].values()) for d in uses() if d["running"]] == [128])
    must(uses()[0]["vcpus"] == 1 and uses()[0]["cpus"] == "", f"{uses()}")


def domains_of_another_database_are_left_alone(bed):
    before = {name: (pid_of(name), virsh("vcpupin", name)) for name in ("longma-1", "longma-2")}
    words = "placement serve --all-in-one --virtualization software --listen 127.0.0.1:0 --state".split()
    log, state = (bed.folder / "other.log").open("a"), bed.folder / "other"
    other = subprocess.Popen([bed.longma, *words, state], stdout=log, stderr=log)

    def output_of(*words, check=True):
        return run(bed.longma, "placement", *words, "--state", state, timeout=300, check=check)

    try:
        until("it sees them", lambda: {"longma-1", "longma-2"} <= set(json.loads(output_of("hosts", "--json"))[0]["foreign"]))
        output_of("request", "first", "--vcpus", "1", "--memory", "64MiB", "--patience", "60", check=False)
        failed = until("the service reports that its number is taken", lambda: json.loads(output_of("show", "first", "--json"))["problem"])
        must("another database" in failed, failed)
        output_of("delete", "first", "--patience", "60")
    finally:
        other.kill()
        other.wait()
    now = {name: (pid_of(name), virsh("vcpupin", name)) for name in before}
    must(now == before, f"{before} became {now}")


def watch_shows_where_all_domains_run(bed):
    looks = json.loads(run(bed.longma, "placement", "watch", "--json"))
    must({look["domain"] for look in looks} == {"longma-1", "longma-2", "foreign-vm"}, f"{looks}")
    for look in looks:
        must(look["vcpus"] == 1 and look["memory_mib"] and abs(sum(look["runs_on"].values()) - 1) < 0.01, f"{look}")


def a_template_is_used_and_completed(bed):
    template = bed.folder / "template.xml"
    template.write_text(FOREIGN.replace("<vcpu>1</vcpu>", "<vcpu cpuset='0'>7</vcpu><title>a &amp; b</title><iothreads>2</iothreads>"))
    bed.output_of("request", "mine", "--vcpus", "1", "--memory", "64MiB", "--template", template, "--patience", "120")
    xml = virsh("dumpxml", "longma-3")
    must("<title>a &amp; b</title>" in xml and ">7</vcpu>" not in xml and "<name>longma-3</name>" in xml, xml)
    own = set(bed.json("show", "own")["placement"]["cells"][0]["cpus"])
    threads = allowed(pid_of("longma-3"), lambda name: name.startswith("IO iothread"))
    must(len(threads) == 2 and all(not at & own for at in threads.values()), f"the I/O threads may run on {threads}, but {own} are exclusive to another virtual machine")


def a_manually_pinned_io_thread_is_moved_back(bed):
    own = set(bed.json("show", "own")["placement"]["cells"][0]["cpus"])

    def threads():
        return allowed(pid_of("longma-3"), lambda name: name.startswith("IO iothread"))

    virsh("iothreadpin", "longma-3", "1", str(min(own)), "--live")
    must(any(at & own for at in threads().values()), "it could not be pinned")
    virsh("iothreadadd", "longma-3", "9", "--live")
    until("all I/O threads avoid the exclusive CPU", lambda: len(threads()) == 3 and all(not at & own for at in threads().values()), 40)
    until("the audit", lambda: "all domains match the service's records" in bed.output_of("audit"))


def an_observation_takes_few_calls_for_any_number_of_domains(bed):
    calls = bed.folder / "calls"
    time.sleep(5)
    calls.write_text("")
    until("the service observes the domains", lambda: calls.read_text())
    time.sleep(10)
    made = calls.read_text().splitlines()
    observations = sum("list --all" in call for call in made)
    must(0 < observations <= 4 and len(made) <= 2 * observations, f"{len(made)} calls for three virtual machines: {made}")


def freed_cpus_are_shared_again(bed):
    own = set(bed.json("show", "own")["placement"]["cells"][0]["cpus"])
    bed.output_of("delete", "own", "--patience", "120")
    until("its virtual CPUs may use the freed CPUs", lambda: all(own <= at for at in vcpu_threads(pid_of("longma-2")).values()))
    must("running" in virsh("domstate", "longma-2"), "it did not keep running")


def a_thread_moved_without_libvirt_is_moved_back(bed):
    allowed_cpus, pid = cpus(virsh("vcpupin", "longma-2").split()[-1]), pid_of("longma-2")
    must(len(allowed_cpus) > 1, f"it can only be moved to {allowed_cpus}")
    for task, name in tasks(pid):
        if name.startswith("CPU "):
            os.sched_setaffinity(task, {min(allowed_cpus)})
    must(all(at == {min(allowed_cpus)} for at in vcpu_threads(pid).values()), "it could not be moved")
    must(cpus(virsh("vcpupin", "longma-2").split()[-1]) == allowed_cpus, "libvirt noticed it")
    until("back where it was", lambda: all(at == allowed_cpus for at in vcpu_threads(pid).values()), 40)


def an_image_with_a_backing_file_is_refused(bed):
    image = bed.folder / "image"
    # Version 3, and a name of 4 bytes at offset 104.
    image.write_bytes(b"QFI\xfb" + (3).to_bytes(4, "big") + (104).to_bytes(8, "big") + (4).to_bytes(4, "big") + bytes(84) + b"/etc" + bytes(404))
    words = ("request", "led", "--vcpus", "1", "--memory", "64MiB", "--disk", str(image), "--disk-format", "qcow2", "--patience", "60")
    run(bed.longma, "placement", *words, "--state", bed.folder / "state", timeout=300, check=False)
    failed = until("it is refused", lambda: bed.json("show", "led")["problem"])
    must("has a backing file" in failed, failed)
    words = ("audit", "--state", bed.folder / "state")
    until("the audit", lambda: "has a backing file" in run(bed.longma, "placement", *words, timeout=300, check=False))
    bed.output_of("delete", "led", "--patience", "60")


def domains_missing_from_a_restored_database_keep_running(bed):
    state, before = bed.folder / "state", bed.folder / "before"
    bed.kill()
    shutil.copytree(state, before)
    bed.start()
    bed.output_of("request", "lost", "--vcpus", "1", "--memory", "64MiB", "--patience", "120")
    domain = f"longma-{bed.json('show', 'lost')['id']}"
    pid = pid_of(domain)
    bed.kill()
    shutil.rmtree(state)
    before.rename(state)
    # The lost domain still uses a virtual CPU of this small host.
    bed.start("--overcommit", "400")
    words = ("request", "heir", "--vcpus", "1", "--memory", "64MiB", "--patience", "60")
    answer = run(bed.longma, "placement", *words, "--state", state, timeout=300, check=False)
    must("(heir)" in answer, f"it was refused: {answer}")
    failed = until("the service reports that its number is taken", lambda: bed.json("show", "heir")["problem"])
    must(domain == f"longma-{bed.json('show', 'heir')['id']}" and "has lost" in failed, failed)
    bed.output_of("delete", "heir", "--patience", "60")
    must(pid_of(domain) == pid and "running" in virsh("domstate", domain), "it was treated as another virtual machine")
    virsh("destroy", domain)
    virsh("undefine", domain)
    until("the audit", lambda: "all domains match the service's records" in bed.output_of("audit"))


def nothing_remains_after_deletion(bed):
    for name in ("shared", "mine"):
        bed.output_of("delete", name, "--patience", "120")
    must(virsh("list", "--all", "--name").split() == ["foreign-vm"], virsh("list", "--all"))
    left = [str(path) for folder in FOLDERS for path in pathlib.Path(folder).rglob("longma-*") if "log" not in path.parts]
    must(not left, f"{left}")
    must(groups() <= bed.groups, f"{groups() - bed.groups}")
    must("running" in virsh("domstate", "foreign-vm"), "a foreign virtual machine was changed")
    host = bed.json("hosts")[0]
    must(host["vms"] == 0 and all(node["memory"][0][2] == 0 for node in host["nodes"]), f"{host}")


STEPS = (
    exclusive_cpus_are_pinned_and_memory_is_bound,
    shared_virtual_cpus_avoid_exclusive_cpus,
    manual_changes_are_repaired,
    manually_paused_undefined_or_throttled_domains_are_repaired,
    manually_added_virtual_cpus_and_memory_are_found_and_confined,
    copied_metadata_is_reported_under_any_domain_name,
    domains_inside_foreign_metadata_are_ignored,
    a_domain_undefined_before_its_start_is_defined_again,
    a_killed_service_leaves_everything_running,
    foreign_domains_are_left_alone,
    domains_of_another_database_are_left_alone,
    watch_shows_where_all_domains_run,
    a_template_is_used_and_completed,
    a_manually_pinned_io_thread_is_moved_back,
    an_observation_takes_few_calls_for_any_number_of_domains,
    freed_cpus_are_shared_again,
    a_thread_moved_without_libvirt_is_moved_back,
    an_image_with_a_backing_file_is_refused,
    domains_missing_from_a_restored_database_keep_running,
    nothing_remains_after_deletion,
)


def missing():
    """The reason why the test cannot run, or an empty string."""
    absent = [command for command in NEEDED if not shutil.which(command)]
    if absent:
        return f"{', '.join(absent)} is missing"
    if os.getuid() != 0:
        return "it needs root"
    if len(os.sched_getaffinity(0)) < 2:
        return "it needs two CPUs"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        return "mount namespaces are not permitted"
    return ""


def tail(path, characters):
    """The end of the log, if there is one."""
    return path.read_text()[-characters:] if path.exists() else ""


def inside(longma, steps, title):
    """Runs all checks in the namespace; returns their number."""
    for name in FOLDERS:
        os.makedirs(name, exist_ok=True)
        run("mount", "-t", "tmpfs", "libvirt-test", name)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "qemu.conf").write_text(CONFIGURATION)
        run("mount", "--bind", str(folder / "qemu.conf"), "/etc/libvirt/qemu.conf")
        good, bad, bed = 0, 0, None
        try:
            bed = TestBed(longma, folder)
            bed.start()
            for step in steps:
                begin, name = time.monotonic(), step.__name__.replace("_", " ")
                try:
                    step(bed)
                    good += 1
                    print(f"{name}: ok ({time.monotonic() - begin:.1f} s)", flush=True)
                except (CheckFailed, OSError, LookupError, ValueError, subprocess.TimeoutExpired) as error:
                    bad += 1
                    print(f"{name}: {type(error).__name__}: {error}\n{tail(folder / 'service.log', 3000)}", flush=True)
        except (CheckFailed, OSError) as error:
            bad += 1
            print(error)
        finally:
            if bed:
                bed.stop()
            if bad:
                for log in ("libvirtd.log", "service.log"):
                    print(f"--- {log}\n{tail(folder / log, 12000)}")
            run("umount", "/etc/libvirt/qemu.conf", check=False)
    print(f"{title}: {good} passed, {bad} failed")
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longma", default=f"{ROOT}/target/release/longma", type=pathlib.Path, help="the command")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        sys.exit(inside(options.longma, STEPS, "libvirt"))
    if why := missing():
        print(f"skipped: libvirt: {why}")
        return
    # All child processes die with this one.
    words = ["unshare", "--mount", "--propagation", "private", sys.executable, __file__, "--inside", "--longma"]
    sys.exit(subprocess.run([*words, str(options.longma.resolve())]).returncode)


if __name__ == "__main__":
    main()
