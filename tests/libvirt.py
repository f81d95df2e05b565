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
# There is no virtlogd without a service manager. Run as root, so that files need not change owners.
CONFIGURATION = 'stdio_handler = "file"\nuser = "root"\ngroup = "root"\nremember_owner = 0\nnamespaces = []\n'
FOREIGN = """<domain type='qemu'><name>foreign-vm</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
<os><type arch='x86_64'>hvm</type></os><devices><memballoon model='none'/></devices></domain>"""

WATCHED = """#!/bin/sh
echo "$*" >> {folder}/calls
case "$*" in *" start --domain "*)
    if [ -e {folder}/take-away ]; then
        {virsh} --connect qemu:///system undefine --domain "$(cat {folder}/take-away)" && rm {folder}/take-away
    fi;;
esac
exec {virsh} "$@"
"""


class Wrong(Exception):
    """A failed check."""


def must(is_so, message):
    if not is_so:
        raise Wrong(message)


def run(*words, timeout=120, check=True):
    """The output of a command."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, env={**os.environ, "LC_ALL": "C"})
    if check and done.returncode != 0:
        raise Wrong(f"{' '.join(map(str, words))}: {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def virsh(*words, **options):
    return run("virsh", "--quiet", "--connect", "qemu:///system", *words, **options)


def until(what, is_so, seconds=90):
    """Waits until a condition holds and returns its value."""
    end, last = time.monotonic() + seconds, None
    while time.monotonic() < end:
        try:
            if value := is_so():
                return value
        except (Wrong, OSError, LookupError) as error:
            last = error
        time.sleep(0.2)
    raise Wrong(f"{what}: not within {seconds} s ({last})")


def cpus(text):
    """Parses a CPU list such as 0-2,5."""
    found = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


class House:
    """libvirtd and the service."""

    def __init__(self, longma, folder):
        self.longma, self.folder, self.service = longma, folder, None
        self.groups = groups()
        self.daemon = subprocess.Popen(["libvirtd"], stdout=(folder / "libvirtd.log").open("w"), stderr=subprocess.STDOUT)
        until("libvirtd answers", lambda: virsh("version", "--daemon"))

    def start(self):
        words = "placement serve --all-in-one --virtualization software --listen 127.0.0.1:0 --state".split()
        log, tools = (self.folder / "service.log").open("a"), self.folder / "tools"
        # Records the calls to libvirt, and can remove a domain just before it is started.
        tools.mkdir(exist_ok=True)
        (tools / "virsh").write_text(WATCHED.format(folder=self.folder, virsh=shutil.which("virsh")))
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
        # Through libvirt, which also removes their cgroups.
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


def pinned_and_bound(house):
    output = house.output_of("request", "own", "--vcpus", "1", "--memory", "128MiB", "--cpu", "exclusive", "--patience", "120")
    must("running" in output, output)
    cell = house.json("show", "own")["placement"]["cells"][0]
    own, node = set(cell["cpus"]), cell["node"]
    pin = virsh("vcpupin", "longma-1").split()
    must(cpus(pin[-1]) == own, f"libvirt: {pin}")
    tune = virsh("numatune", "longma-1")
    must("restrictive" in tune and tune.split()[-1] == str(node), tune)
    emulator = cpus(virsh("emulatorpin", "longma-1").split()[-1])
    must(not emulator & own, f"the emulator is on {emulator}, and {own} are the virtual CPU's own")
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


def shared_keep_off_what_is_anothers_own(house):
    house.output_of("request", "shared", "--vcpus", "1", "--memory", "64MiB", "--patience", "120")
    own = set(house.json("show", "own")["placement"]["cells"][0]["cpus"])
    at = vcpu_threads(pid_of("longma-2"))
    must(at and all(not where & own for where in at.values()), f"{at}: {own} are another's own")


def manual_changes_are_repaired(house):
    own = set(house.json("show", "own")["placement"]["cells"][0]["cpus"])
    others = sorted(set(os.sched_getaffinity(0)) - own)
    virsh("vcpupin", "longma-1", "0", str(others[0]), "--live")
    must(all(at != own for at in vcpu_threads(pid_of("longma-1")).values()), "the pinning could not be changed")
    until("pinned again", lambda: all(at == own for at in vcpu_threads(pid_of("longma-1")).values()))
    virsh("destroy", "longma-2")
    until("it runs again", lambda: "running" in virsh("domstate", "longma-2"))
    until("the audit", lambda: "everything is as intended" in house.output_of("audit"))


def manually_paused_undefined_or_throttled_domains_are_repaired(house):
    pid = pid_of("longma-1")
    virsh("suspend", "longma-1")
    virsh("undefine", "longma-1")
    must("longma-1" in virsh("list", "--transient", "--name").split(), "it could not be undefined")
    can_be_slowed = slowed("longma-1")
    until("it runs again", lambda: virsh("domstate", "longma-1").strip() == "running")
    until("it is kept", lambda: "longma-1" in virsh("list", "--persistent", "--name").split())
    if can_be_slowed:
        until("it has its time", lambda: virsh("schedinfo", "longma-1").split("vcpu_quota")[1].split()[1] not in ("5000",))
    else:
        print("skipped: CPU time, which libvirt cannot bound here")
    must(pid_of("longma-1") == pid, "it was made anew")
    until("the audit", lambda: "everything is as intended" in house.output_of("audit"))


def manually_restarted(house, domain, *changes):
    """Changes a domain's XML with regular expressions, each matching once, and starts it."""
    xml = virsh("dumpxml", "--inactive", "--domain", domain)
    for what, becomes in changes:
        xml, count = re.subn(what, becomes, xml, flags=re.S)
        must(count == 1, f"{what} occurs {count} times: {xml}")
    defined(house, xml)
    # In one call, so that the service does not act in between.
    virsh(f"destroy {domain}; start {domain}")


def defined(house, xml):
    file = house.folder / "by-hand.xml"
    file.write_text(xml)
    virsh("define", str(file))


def apart(domain, count, own):
    """Whether a domain has this many virtual CPUs, none of them on exclusive CPUs of another."""
    threads = vcpu_threads(pid_of(domain))
    return len(threads) == count and all(at and not at & own for at in threads.values())


def manually_added_virtual_cpus_and_memory_are_found_and_confined(house):
    own = set(house.json("show", "own")["placement"]["cells"][0]["cpus"])
    more = r"<vcpu placement='static'[^>]*>1</vcpu>"
    size = [(rf"<{word} unit='KiB'>\d+</{word}>", f"<{word} unit='KiB'>307200</{word}>") for word in ("memory", "currentMemory")]
    manually_restarted(house, "longma-2", (more, "<vcpu placement='static'>3</vcpu>"), *size)
    must(len(vcpu_threads(pid_of("longma-2"))) == 3, "it could not be given more virtual CPUs")
    for difference in ("vcpus", "size"):
        until(f"{difference} is found, with what to do", lambda difference=difference: house.finds("longma-2", difference, "longma placement stop 2"), 40)
    until("kept off another's own CPU", lambda: apart("longma-2", 3, own), 40)
    # The service looks every 2 s, and querying the guest takes seconds each time.
    time.sleep(6)
    asked = [call for call in (house.folder / "calls").read_text().splitlines() if "setvcpus --domain longma-2" in call]
    must(len(asked) == 1, f"{asked}")
    restarted(house, own)
    manually_restarted(house, "longma-2", (more, "<vcpu placement='static' current='1'>3</vcpu>"))
    virsh("setvcpus", "longma-2", "3", "--live")
    until("it is found", lambda: house.finds("longma-2", "vcpus"), 40)
    until("kept off another's own CPU", lambda: apart("longma-2", 3, own), 60)
    restarted(house, own)


def restarted(house, own):
    """Restarted by its owner; it then has the requested placement."""
    for word in ("stop", "start"):
        house.output_of(word, "shared", "--patience", "120")
    until("the audit", lambda: "everything is as intended" in house.output_of("audit"))
    must(apart("longma-2", 1, own) and "65536 KiB" in virsh("dominfo", "longma-2"), virsh("dominfo", "longma-2"))


def a_domain_with_the_same_metadata_is_found_whatever_its_name(house):
    # One name is the ID of a running domain, one is another's name with a trailing space.
    names = ("copied too", "longma-1 ", "it's \"so\" & <so>; list", "Gr\u00f6\u00dfe", "-x", "--all", virsh("domid", "longma-2").strip())
    xml = re.sub(r"<uuid>.*?</uuid>", "", virsh("dumpxml", "--inactive", "longma-1"))
    before = set(virsh("list", "--all", "--uuid").split())
    try:
        for name in names:
            defined(house, xml.replace("<name>longma-1</name>", f"<name>{escape(name)}</name>"))
        until("all are found", lambda: [found[:2] for found in sorted(house.found())] == [(name, "orphan") for name in sorted(names)], 40)
        until("all are seen", lambda: sorted(names) == sorted(house.json("hosts")[0]["foreign"]), 40)
    finally:
        for uuid in set(virsh("list", "--all", "--uuid").split()) - before:
            virsh("undefine", "--domain", uuid)
    until("the audit", lambda: "everything is as intended" in house.output_of("audit"))


def what_is_in_somebodys_metadata_is_no_domain(house):
    own = set(house.json("show", "own")["placement"]["cells"][0]["cpus"])
    inner = re.sub(r"<domain [^>]*>", "<domain>", virsh("dumpxml", "longma-1"), count=1)
    inside = f"<metadata><w:w xmlns:w='urn:w'>\n{inner}{inner}</w:w></metadata>"
    defined(house, FOREIGN.replace("foreign-vm", "zz-holds-others").replace("<vcpu>", f"{inside}<vcpu>"))
    try:
        until("it is listed", lambda: house.json("hosts")[0]["foreign"] == ["zz-holds-others"], 40)
        must(house.found() == [], f"{house.found()}")
        virsh("vcpupin", "longma-1", "0", str(min(set(os.sched_getaffinity(0)) - own)), "--live")
        until("pinned again", lambda: all(at == own for at in vcpu_threads(pid_of("longma-1")).values()), 40)
    finally:
        virsh("undefine", "zz-holds-others")


def a_start_whose_domain_is_taken_away_is_made_again(house):
    taken = house.folder / "take-away"
    taken.write_text("longma-2")
    virsh("destroy", "longma-2")
    until("it was taken away", lambda: not taken.exists())
    until("it runs again", lambda: "running" in virsh("domstate", "longma-2"))
    until("the audit", lambda: "everything is as intended" in house.output_of("audit"))


def slowed(domain):
    """Limits a domain's CPU time; returns whether that is possible."""
    try:
        virsh("schedinfo", domain, "--live", "--set", "vcpu_quota=5000")
    except Wrong:
        return False
    return True


def a_killed_service_leaves_everything_running(house):
    before = {name: pid_of(name) for name in ("longma-1", "longma-2")}
    house.kill()
    must({name: pid_of(name) for name in before} == before, "virtual machines ended with the service")
    house.start()
    until("the audit", lambda: "everything is as intended" in house.output_of("audit"))
    must({name: pid_of(name) for name in before} == before, "virtual machines were made again")


def those_of_others_are_left_alone(house):
    xml = house.folder / "foreign.xml"
    xml.write_text(FOREIGN)
    virsh("define", str(xml))
    virsh("start", "foreign-vm")
    until("it is listed", lambda: "foreign-vm" in house.output_of("hosts"))
    seen = house.json("hosts")[0]["foreign"]
    must(seen == ["foreign-vm"], f"{seen}")


def those_of_another_database_are_left_alone(house):
    before = {name: (pid_of(name), virsh("vcpupin", name)) for name in ("longma-1", "longma-2")}
    words = "placement serve --all-in-one --virtualization software --listen 127.0.0.1:0 --state".split()
    log, state = (house.folder / "other.log").open("a"), house.folder / "other"
    other = subprocess.Popen([house.longma, *words, state], stdout=log, stderr=log)

    def output_of(*words, check=True):
        return run(house.longma, "placement", *words, "--state", state, timeout=300, check=check)

    try:
        until("it sees them", lambda: {"longma-1", "longma-2"} <= set(json.loads(output_of("hosts", "--json"))[0]["foreign"]))
        output_of("request", "first", "--vcpus", "1", "--memory", "64MiB", "--patience", "60", check=False)
        failed = until("its number is taken", lambda: json.loads(output_of("show", "first", "--json"))["problem"])
        must("another database" in failed, failed)
        output_of("delete", "first", "--patience", "60")
    finally:
        other.kill()
        other.wait()
    now = {name: (pid_of(name), virsh("vcpupin", name)) for name in before}
    must(now == before, f"{before} became {now}")


def watch_shows_where_all_run(house):
    looks = json.loads(run(house.longma, "placement", "watch", "--json"))
    must({look["domain"] for look in looks} == {"longma-1", "longma-2", "foreign-vm"}, f"{looks}")
    for look in looks:
        must(look["vcpus"] == 1 and look["memory_mib"] and abs(sum(look["runs_on"].values()) - 1) < 0.01, f"{look}")


def a_template_is_taken_and_filled_in(house):
    template = house.folder / "template.xml"
    template.write_text(FOREIGN.replace("<vcpu>1</vcpu>", "<vcpu cpuset='0'>7</vcpu><title>a &amp; b</title><iothreads>2</iothreads>"))
    house.output_of("request", "mine", "--vcpus", "1", "--memory", "64MiB", "--template", template, "--patience", "120")
    xml = virsh("dumpxml", "longma-3")
    must("<title>a &amp; b</title>" in xml and ">7</vcpu>" not in xml and "<name>longma-3</name>" in xml, xml)
    own = set(house.json("show", "own")["placement"]["cells"][0]["cpus"])
    threads = allowed(pid_of("longma-3"), lambda name: name.startswith("IO iothread"))
    must(len(threads) == 2 and all(not at & own for at in threads.values()), f"threads for input and output: {threads}; {own} are another's own")


def a_manually_pinned_io_thread_is_moved_back(house):
    own = set(house.json("show", "own")["placement"]["cells"][0]["cpus"])

    def threads():
        return allowed(pid_of("longma-3"), lambda name: name.startswith("IO iothread"))

    virsh("iothreadpin", "longma-3", "1", str(min(own)), "--live")
    must(any(at & own for at in threads().values()), "it could not be pinned")
    virsh("iothreadadd", "longma-3", "9", "--live")
    until("all of them off another's own CPU", lambda: len(threads()) == 3 and all(not at & own for at in threads().values()), 40)
    until("the audit", lambda: "everything is as intended" in house.output_of("audit"))


def a_look_is_a_few_calls_whatever_their_number(house):
    calls = house.folder / "calls"
    time.sleep(5)
    calls.write_text("")
    until("it looks", lambda: calls.read_text())
    time.sleep(10)
    made = calls.read_text().splitlines()
    must(len(made) <= 4, f"{len(made)} calls for three virtual machines: {made}")


def freed_cpus_are_shared_again(house):
    own = set(house.json("show", "own")["placement"]["cells"][0]["cpus"])
    house.output_of("delete", "own", "--patience", "120")
    until("live re-pinned", lambda: all(own <= at for at in vcpu_threads(pid_of("longma-2")).values()))
    must("running" in virsh("domstate", "longma-2"), "it did not run on")


def a_thread_moved_without_libvirt_is_moved_back(house):
    allowed_cpus, pid = cpus(virsh("vcpupin", "longma-2").split()[-1]), pid_of("longma-2")
    must(len(allowed_cpus) > 1, f"it can only be moved to {allowed_cpus}")
    for task, name in tasks(pid):
        if name.startswith("CPU "):
            os.sched_setaffinity(task, {min(allowed_cpus)})
    must(all(at == {min(allowed_cpus)} for at in vcpu_threads(pid).values()), "it could not be moved")
    must(cpus(virsh("vcpupin", "longma-2").split()[-1]) == allowed_cpus, "libvirt noticed it")
    until("back where it was", lambda: all(at == allowed_cpus for at in vcpu_threads(pid).values()), 40)


def an_image_that_leads_to_another_file_is_refused(house):
    image = house.folder / "image"
    # Version 3, and a name of 4 bytes at offset 104.
    image.write_bytes(b"QFI\xfb" + (3).to_bytes(4, "big") + (104).to_bytes(8, "big") + (4).to_bytes(4, "big") + bytes(84) + b"/etc" + bytes(404))
    words = ("request", "led", "--vcpus", "1", "--memory", "64MiB", "--disk", str(image), "--disk-format", "qcow2", "--patience", "60")
    run(house.longma, "placement", *words, "--state", house.folder / "state", timeout=300, check=False)
    failed = until("it is refused", lambda: house.json("show", "led")["problem"])
    must("has a backing file" in failed, failed)
    words = ("audit", "--state", house.folder / "state")
    until("the audit", lambda: "has a backing file" in run(house.longma, "placement", *words, timeout=300, check=False))
    house.output_of("delete", "led", "--patience", "60")


def what_a_database_that_was_set_back_has_lost_runs_on(house):
    state, before = house.folder / "state", house.folder / "before"
    house.kill()
    shutil.copytree(state, before)
    house.start()
    house.output_of("request", "lost", "--vcpus", "1", "--memory", "64MiB", "--patience", "120")
    domain = f"longma-{house.json('show', 'lost')['id']}"
    pid = pid_of(domain)
    house.kill()
    shutil.rmtree(state)
    before.rename(state)
    house.start()
    words = ("request", "heir", "--vcpus", "1", "--memory", "64MiB", "--patience", "60")
    run(house.longma, "placement", *words, "--state", state, timeout=300, check=False)
    failed = until("its number is taken", lambda: house.json("show", "heir")["problem"])
    must(domain == f"longma-{house.json('show', 'heir')['id']}" and "has lost" in failed, failed)
    house.output_of("delete", "heir", "--patience", "60")
    must(pid_of(domain) == pid and "running" in virsh("domstate", domain), "it was taken for another's")
    virsh("destroy", domain)
    virsh("undefine", domain)
    until("the audit", lambda: "everything is as intended" in house.output_of("audit"))


def nothing_is_left_over(house):
    for name in ("shared", "mine"):
        house.output_of("delete", name, "--patience", "120")
    must(virsh("list", "--all", "--name").split() == ["foreign-vm"], virsh("list", "--all"))
    left = [str(path) for folder in FOLDERS for path in pathlib.Path(folder).rglob("longma-*") if "log" not in path.parts]
    must(not left, f"{left}")
    must(groups() <= house.groups, f"{groups() - house.groups}")
    must("running" in virsh("domstate", "foreign-vm"), "a foreign virtual machine was changed")
    host = house.json("hosts")[0]
    must(host["vms"] == 0 and all(node["memory"][0][2] == 0 for node in host["nodes"]), f"{host}")


STEPS = (
    pinned_and_bound,
    shared_keep_off_what_is_anothers_own,
    manual_changes_are_repaired,
    manually_paused_undefined_or_throttled_domains_are_repaired,
    manually_added_virtual_cpus_and_memory_are_found_and_confined,
    a_domain_with_the_same_metadata_is_found_whatever_its_name,
    what_is_in_somebodys_metadata_is_no_domain,
    a_start_whose_domain_is_taken_away_is_made_again,
    a_killed_service_leaves_everything_running,
    those_of_others_are_left_alone,
    those_of_another_database_are_left_alone,
    watch_shows_where_all_run,
    a_template_is_taken_and_filled_in,
    a_manually_pinned_io_thread_is_moved_back,
    a_look_is_a_few_calls_whatever_their_number,
    freed_cpus_are_shared_again,
    a_thread_moved_without_libvirt_is_moved_back,
    an_image_that_leads_to_another_file_is_refused,
    what_a_database_that_was_set_back_has_lost_runs_on,
    nothing_is_left_over,
)


def missing():
    """The reason why the test cannot run, or an empty string."""
    absent = [command for command in NEEDED if not shutil.which(command)]
    if absent:
        return f"there is no {', '.join(absent)}"
    if os.getuid() != 0:
        return "it needs root"
    if len(os.sched_getaffinity(0)) < 2:
        return "it needs two CPUs"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        return "no mount namespace can be made"
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
        good, bad, house = 0, 0, None
        try:
            house = House(longma, folder)
            house.start()
            for step in steps:
                begin, name = time.monotonic(), step.__name__.replace("_", " ")
                try:
                    step(house)
                    good += 1
                    print(f"{name}: as it should be ({time.monotonic() - begin:.1f} s)", flush=True)
                except (Wrong, OSError, LookupError, ValueError, subprocess.TimeoutExpired) as error:
                    bad += 1
                    print(f"{name}: {type(error).__name__}: {error}\n{tail(folder / 'service.log', 3000)}", flush=True)
        except (Wrong, OSError) as error:
            bad += 1
            print(error)
        finally:
            if house:
                house.stop()
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
