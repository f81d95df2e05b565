#!/usr/bin/env python3
"""Boots Debian's kernel for loong64 to a busybox shell on Longma's machine, and on QEMU if it is named.

With four cores, with a disk and a script that types on the console, with a network, with a shared folder, from a checkpoint, and under gdb, too. The packages are pinned by hash; Debian's unstable replaces versions, so that a package that is gone is replaced by the newest of its name.
The initial RAM disk is made here, without privileges. Source: Linux, Documentation/arch/loongarch/booting.rst, initramfs' buffer format.
"""

import argparse
import contextlib
import gzip
import hashlib
import http.server
import io
import json
import lzma
import os
import pathlib
import re
import resource
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
import urllib.error
import urllib.request

import gdb
from guest import Archive
from packages import BUILT, ROOT, Absent, archives, fetch_package, members, unpack

KERNEL = "pool/main/l/linux/linux-binary-7.2.13+deb14-loong64_7.2.13-1_loong64.deb"
MODULES = "pool/main/l/linux/linux-modules-7.2.13+deb14-loong64_7.2.13-1_loong64.deb"
BUSYBOX = "pool/main/b/busybox/busybox-static_1.38.0-3+b1_loong64.deb"
PINS = {
    KERNEL: "8168c963730b5b4cbb631e20bcb77e80d704312a02c42471cdb28c171a15b411",
    MODULES: "5693f048c2f043db020416cb984455902748004dd39e3c4671615a08df19e00b",
    BUSYBOX: "d5dc29174cd393bd100b958e2965fa18a63be5581177d076fa1e599a1703a957",
}
# The newest of the name if a pin is gone.
NAMES = {KERNEL: r"linux-binary-[\d.]+\S*-loong64", MODULES: r"linux-modules-[\d.]+\S*-loong64", BUSYBOX: r"busybox-static"}
INDEX = "dists/unstable/main/binary-loong64/Packages.xz"

# Debian's kernel looks for a keyboard controller at addresses where these machines have nothing.
WORDS = "console=ttyS0,115200 rdinit=/init initcall_blacklist=i8042_init"
TOOLS = ["sh", "mount", "uname", "cat", "sleep", "ls", "wc", "nproc", "sha256sum", "seq", "poweroff", "insmod", "dd", "sync", "devmem"]
INIT = """#!/bin/sh
mount -t devtmpfs dev /dev
echo "machine: $(uname -m)"
echo "processors: $(nproc)"
echo "processes: $(seq 1 20 | while read n; do sh -c "echo $n" & done | wc -l)"
echo "digest: $(seq 1 20000 | sha256sum)"
echo "timer: $(sleep 1; echo slept)"
poweroff -f
"""
EXPECTED = [
    "machine: loongarch64",
    "processors: {cores}",
    "processes: 20",
    "digest: f6351f5ead9a700e34275480b3856ea738122a7c57bdeb744a631251c069587a  -",
    "timer: slept",
]
DISK_BYTES = 1 << 20
TEXT = b"written by the guest\n".ljust(512, b"\0")
# The register of the exit status is at 0x100e001d.
STATUS = 42
SCRIPT = f"""# The prompt of the shell that is the first process.
limit 60
expect ~ #
send mount -t devtmpfs dev /dev; insmod /virtio_blk.ko; echo loaded: $?\\n
expect loaded: 0
send sha256sum < /dev/vda\\n
expect {{before}}
send echo written by the guest | dd of=/dev/vda bs=512 conv=sync seek=3; sync\\n
expect 1+0 records out
send dd if=/dev/vda of=/copy bs=64k iflag=direct; sha256sum < /copy\\n
expect {{after}}
send devmem 0x100e001d 8 {STATUS}; poweroff -f\\n
expect Power down
"""
# Drivers, in the order in which they are loaded.
NETWORK_MODULES = ["failover", "net_failover", "virtio_net"]
NETWORK_TOOLS = ["ip", "udhcpc", "wget", "ping", "nc"]
LEASED = """#!/bin/busybox sh
[ "$1" = bound ] && ip addr add $ip/$mask dev $interface && ip route add default via $router
exit 0
"""
PAGE = hashlib.shake_256(b"page").digest(300_000)
NETWORK_SCRIPT = """limit 120
expect ~ #
send for m in failover net_failover virtio_net; do insmod /$m.ko || echo missing; done; ip link set eth0 up; echo link: $?\\n
expect link: 0
send udhcpc -n -q -i eth0 -s /leased; ip addr show eth0\\n
expect inet 10.0.2.15/24
send ping -c 1 10.0.2.2\\n
expect 1 packets received
send wget -q -O - http://10.0.2.2:{port}/ | sha256sum\\n
expect {digest}
send wget -q -O - http://10.0.2.2:{closed}/ || echo refused: $?\\n
expect refused: 1
send echo from the guest | nc -l -p 22; poweroff -f\\n
expect Power down
"""
# Drivers of a shared folder, in the order in which they are loaded.
SHARE_MODULES = ["netfs", "9pnet", "9pnet_virtio", "9p"]
SHARE_TOOLS = ["ln", "mkdir", "mkfifo", "mv", "rm", "cp", "cmp", "find", "sort", "stat", "chmod", "seq"]
SHARED = hashlib.shake_256(b"shared").digest(300_000)
# A shell's script in one folder, whose result another, read-only folder cannot take.
IN_GUEST = """cd /mnt
sha256sum < data | cut -c 1-64
cat up 2>&1 && echo followed || echo kept inside
mkdir made && seq 1 10000 > made/numbers && mv made/numbers made/moved && chmod 640 made/moved
cp data copy && cmp data copy && ln copy again && rm copy
ln -s /etc/passwd out 2>&1 && echo made || echo no link is made
mkfifo pipe 2>&1 && echo made || echo no pipe is made
find . | sort
(echo x > /ro/data) 2> /dev/null && echo written || echo read only
"""
SHARE_SCRIPT = """limit 120
expect ~ #
send for m in netfs 9pnet 9pnet_virtio 9p; do insmod /$m.ko || echo missing; done; mkdir /mnt /ro; echo loaded: $?\\n
expect loaded: 0
send mount -t 9p -o trans=virtio,version=9p2000.L share /mnt && mount -t 9p -o trans=virtio,ro docs /ro; echo mounted: $?\\n
expect mounted: 0
send sh /script > /mnt/said 2>&1; poweroff -f\\n
expect Power down
"""
SAID = """{digest}
cat: can't open 'up': No such file or directory
kept inside
ln: out: Operation not permitted
no link is made
mkfifo: pipe: Operation not permitted
no pipe is made
.
./again
./data
./fifo
./made
./made/moved
./said
./up
read only
"""
PREPARED_SCRIPT = f"""limit 120
expect shared is at /mnt/shared
expect ~ #
send (uname -m; nproc) >> /mnt/shared/from-the-guest; ping -c 1 10.0.2.2\\n
expect 1 packets received
send exit {STATUS}\\n
expect Power down
"""
# The kernel says at which address a function is, and then stops there under gdb.
SYMBOL = "sys_sysinfo"
SYMBOL_INIT = f"""#!/bin/busybox sh
mount -t proc proc /proc
echo "symbol: $(grep ' {SYMBOL}$' /proc/kallsyms)"
free > /dev/null
echo "after: free"
poweroff -f
"""
# Bytes through a pipe are the region of interest. What is written to the register of marks begins (3) warming, (1) counting, and (2) ends it.
REGION_INIT = """#!/bin/busybox sh
mount -t devtmpfs dev /dev
devmem 0x100e001f 8 3
dd if=/dev/zero bs=4k count=50 2> /dev/null | cat > /dev/null
devmem 0x100e001f 8 1
dd if=/dev/zero bs=4k count=500 2> /dev/null | cat > /dev/null
devmem 0x100e001f 8 2
echo "after: region"
poweroff -f
"""
# Functions of the kernel that such a region calls.
REGION_FUNCTIONS = {"anon_pipe_write", "anon_pipe_read", "pipe_write", "pipe_read", "vfs_write", "vfs_read", "handle_syscall", "do_syscall", "handle_mm_fault"}
TIMEOUT_S = 600
CORES = [1, 4]


def newest(pattern):
    """The path and the hash of the newest package whose name matches."""
    for archive in archives():
        try:
            with urllib.request.urlopen(f"{archive.rstrip('/')}/{INDEX}", timeout=60) as answer:
                text = lzma.decompress(answer.read()).decode()
        except (urllib.error.URLError, OSError):
            continue
        found = [part for part in text.split("\n\n") if re.match(rf"Package: {pattern}\n", part)]
        if found:
            field = lambda name: re.search(rf"^{name}: (\S+)", found[-1], re.M).group(1)
            return field("Filename"), field("SHA256")
    raise Absent(f"no archive has {pattern}")


def package(path):
    """The bytes of a pinned package, or of the newest of its name."""
    try:
        return fetch_package(path, PINS[path], BUILT / "debian" / path.rsplit("/", 1)[-1])
    except Absent as gone:
        path, wanted = newest(NAMES[path])
        print(f"system_boot: {gone}; uses {path.rsplit('/', 1)[-1]}", flush=True)
        return fetch_package(path, wanted, BUILT / "debian" / path.rsplit("/", 1)[-1])


def prepare(folder):
    """Unpacks kernel and busybox, and makes the RAM disk; returns both files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in (KERNEL, BUSYBOX):
        unpack(package(path), folder)
    archive = Archive()
    for name in ("dev", "bin"):
        archive.folder(name)
    archive.file("bin/busybox", next(folder.glob("usr/bin/busybox")).read_bytes())
    for tool in TOOLS:
        archive.file(f"bin/{tool}", f'#!/bin/busybox sh\nexec /bin/busybox {tool} "$@"\n'.encode())
    archive.file("init", INIT.replace("#!/bin/sh", "#!/bin/busybox sh", 1).encode())
    initrd = folder / "initrd.cpio.gz"
    initrd.write_bytes(gzip.compress(archive.bytes(), mtime=0))
    return next(folder.glob("usr/lib/modules/*/vmlinuz")), initrd


def modules(names):
    """The drivers with these names. The package is large, so that the files are kept."""
    kept = {name: BUILT / "debian" / f"{name}.ko" for name in names}
    if not all(file.exists() for file in kept.values()):
        content = next(bytes for name, bytes in members(package(MODULES)) if name.startswith("data.tar"))
        with tarfile.open(fileobj=io.BytesIO(content), mode="r|*") as tar:
            for file in tar:
                name = pathlib.Path(file.name).name.removesuffix(".ko.xz")
                if name in kept and file.isfile():
                    kept[name].write_bytes(lzma.decompress(tar.extractfile(file).read()))
    missing = [name for name, file in kept.items() if not file.exists()]
    if missing:
        raise Absent(f"the package of modules has no {', '.join(missing)}")
    return {name: file.read_bytes() for name, file in kept.items()}


def ram_disk(folder, name, files, tools=()):
    """Makes a RAM disk of busybox and these files."""
    archive = Archive()
    for made in ("dev", "bin", "proc"):
        archive.folder(made)
    archive.file("bin/busybox", next(folder.glob("usr/bin/busybox")).read_bytes())
    for tool in [*TOOLS, *tools]:
        archive.file(f"bin/{tool}", f'#!/bin/busybox sh\nexec /bin/busybox {tool} "$@"\n'.encode())
    for path, content in files.items():
        archive.file(path, content)
    disk = folder / name
    disk.write_bytes(gzip.compress(archive.bytes(), mtime=0))
    return disk


def raw(content):
    """A raw image."""
    return content


def qcow2(content):
    """A qcow2 image with clusters in reverse order. Source: QEMU, docs/interop/qcow2.rst."""
    cluster = 1 << 16
    count = len(content) // cluster
    # Header, table of reference counts, a block of them, level 1 table, level 2 table, data.
    header = struct.pack(">4sIQIIQIIQQIIQQQQII", b"QFI\xfb", 3, 0, 0, 16, len(content), 0, 1, 3 * cluster, cluster, 1, 0, 0, 0, 0, 0, 4, 104)
    data = [content[n * cluster : (n + 1) * cluster] for n in range(count)]
    entries = [(5 + count - 1 - n) * cluster | 1 << 63 for n in range(count)]
    tables = [header, struct.pack(">Q", 2 * cluster), struct.pack(f">{5 + count}H", *[1] * (5 + count)), struct.pack(">Q", 4 * cluster | 1 << 63)]
    tables.append(struct.pack(f">{count}Q", *entries))
    return b"".join(part.ljust(cluster, b"\0") for part in tables) + b"".join(reversed(data))


def converse(command, kernel, folder):
    """The same with a disk of each format; returns whether all of it is right."""
    return all([converse_with(command, kernel, folder, image) for image in (raw, qcow2)])


def converse_with(command, kernel, folder, image):
    """A script loads the driver, reads and writes a disk, and ends with a status; returns whether all of it is right."""
    initrd = ram_disk(folder, "disk.cpio.gz", {"virtio_blk.ko": modules(["virtio_blk"])["virtio_blk"]})
    disk, script = folder / ("disk.img" if image is raw else "disk.qcow2"), folder / "script"
    content = hashlib.shake_256(b"disk").digest(DISK_BYTES)
    disk.write_bytes(image(content))
    changed = content[: 3 * 512] + TEXT + content[4 * 512 :]
    digests = {"before": hashlib.sha256(content).hexdigest(), "after": hashlib.sha256(changed).hexdigest()}
    script.write_text(SCRIPT.format(**digests))
    words = WORDS.replace("rdinit=/init", "rdinit=/bin/sh")
    files = ["--kernel", kernel, "--initrd", initrd, "--append", words, "--disk", disk, "--script", script]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    made = subprocess.run([*command, *files], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S)
    used_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    right = made.returncode == STATUS and disk.read_bytes() == image(content)
    print(f"{'ok  ' if right else 'FAIL'} longma, {image.__name__} disk and script: {used_s:.1f} s of processor time", flush=True)
    if not right:
        print(f"status {made.returncode}, the image {'is' if disk.read_bytes() == image(content) else 'is not'} unchanged")
        print("\n".join(made.stdout.decode(errors="replace").splitlines()[-30:]))
    return right


class Page(http.server.BaseHTTPRequestHandler):
    """Answers each request with the same page."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_):
        pass


def free_port():
    """A port at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def read_forward(port, child):
    """What the guest sends to a connection at the forwarded port. Until it listens, connections end without data."""
    end = time.monotonic() + TIMEOUT_S
    while child.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
            if received := connection.makefile("rb").read():
                return received
        time.sleep(0.2)
    return b""


def network(command, kernel, folder):
    """The guest gets an address, reaches the gateway and the host's server, and is reached; returns whether all of it is right."""
    files = {f"{name}.ko": content for name, content in modules(NETWORK_MODULES).items()}
    initrd = ram_disk(folder, "network.cpio.gz", {**files, "leased": LEASED.encode()}, NETWORK_TOOLS)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    forwarded, script = free_port(), folder / "network-script"
    script.write_text(
        NETWORK_SCRIPT.format(port=server.server_address[1], closed=free_port(), digest=hashlib.sha256(PAGE).hexdigest())
    )
    words = ["--append", WORDS.replace("rdinit=/init", "rdinit=/bin/sh"), "--script", script]
    net = f"user,loopback,forward=tcp:127.0.0.1:{forwarded}-:22"
    child = subprocess.Popen(
        [*command, "--kernel", kernel, "--initrd", initrd, "--net", net, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    received = []
    reader = threading.Thread(target=lambda: received.append(read_forward(forwarded, child)))
    reader.start()
    try:
        output, _ = child.communicate(timeout=TIMEOUT_S)
    finally:
        child.kill()
        server.shutdown()
    reader.join(timeout=60)
    right = child.returncode == 0 and received == [b"from the guest\n"]
    print(f"{'ok  ' if right else 'FAIL'} longma, network", flush=True)
    if not right:
        print(f"status {child.returncode}, received {received}")
        print("\n".join(output.decode(errors="replace").splitlines()[-30:]))
    return right


def share(command, kernel, folder):
    """The guest uses a folder, and does not get out of it; returns whether all of it is right."""
    files = {f"{name}.ko": content for name, content in modules(SHARE_MODULES).items()}
    initrd = ram_disk(folder, "share.cpio.gz", {**files, "script": IN_GUEST.encode()}, [*SHARE_TOOLS, "cut"])
    shared, script = folder / "shared", folder / "share-script"
    shared.mkdir()
    (folder / "secret").write_text("a secret\n")
    (shared / "data").write_bytes(SHARED)
    (shared / "up").symlink_to("../secret")
    os.mkfifo(shared / "fifo")
    script.write_text(SHARE_SCRIPT)
    words = ["--append", WORDS.replace("rdinit=/init", "rdinit=/bin/sh"), "--script", script]
    shares = ["--share", shared, "--share", f"{shared},ro,tag=docs"]
    made = subprocess.run(
        [*command, "--kernel", kernel, "--initrd", initrd, *shares, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S,
    )
    said = (shared / "said").read_text() if (shared / "said").exists() else ""
    moved = shared / "made" / "moved"
    right = (
        made.returncode == 0
        and said == SAID.format(digest=hashlib.sha256(SHARED).hexdigest())
        and moved.read_text() == "".join(f"{n}\n" for n in range(1, 10001))
        and moved.stat().st_mode & 0o777 == 0o640
        and (shared / "again").read_bytes() == SHARED
        and (shared / "data").read_bytes() == SHARED
    )
    print(f"{'ok  ' if right else 'FAIL'} longma, shared folder", flush=True)
    if not right:
        print(f"status {made.returncode}; the guest said in the folder:\n{said}")
        print("\n".join(made.stdout.decode(errors="replace").splitlines()[-30:]))
    return right


class Mirror(http.server.SimpleHTTPRequestHandler):
    """Debian's archive, with the packages that are here."""

    def translate_path(self, path):
        return str(BUILT / "debian" / path.rsplit("/", 1)[-1])

    def log_message(self, *_):
        pass


def prepared(command, kernel, folder):
    """`longma boot debian` makes its image once, mounts a folder, and ends with the shell's status; returns whether all is right."""
    if any(not (BUILT / "debian" / path.rsplit("/", 1)[-1]).exists() for path in PINS):
        raise Absent("the pinned packages are gone: longma boot debian is not tried")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    mirror = f"http://127.0.0.1:{server.server_address[1]}/debian"
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "LONGMA_DEBIAN_ARCHIVE": mirror}
    shared, script = folder / "prepared", folder / "prepared-script"
    shared.mkdir()
    script.write_text(PREPARED_SCRIPT)
    words = [*command, "debian", "--share", f"{shared},tag=shared", "--net", "user", "--cores", "2", "--script", script]
    run = lambda *more: subprocess.run(
        [*words, *more], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S
    )
    try:
        refused = run("--offline")
        made = [run(), run("--offline")]
    finally:
        server.shutdown()
    right = (
        refused.returncode == 1
        and b"run `longma boot debian` once without --offline" in refused.stdout
        and all(it.returncode == STATUS and b"eth0 has an address" in it.stdout for it in made)
        and (shared / "from-the-guest").read_text() == "loongarch64\n2\n" * 2
    )
    print(f"{'ok  ' if right else 'FAIL'} longma boot debian", flush=True)
    if not right:
        for it in (refused, *made):
            print(f"status {it.returncode}\n" + "\n".join(it.stdout.decode(errors="replace").splitlines()[-15:]))
    return right


def debug(command, kernel, folder):
    """gdb stops the kernel at a function, steps, reads memory and CSRs, and lets it go; returns whether all of it is right."""
    initrd = ram_disk(folder, "symbol.cpio.gz", {"init": SYMBOL_INIT.encode()}, ["free", "grep"])
    words = [*command, "--kernel", kernel, "--initrd", initrd, "--cores", "2", "--append", f"{WORDS} nokaslr"]
    plain = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S)
    found = re.search(rb"symbol: ([0-9a-f]{16})", plain.stdout)
    if not found:
        print(f"FAIL longma, gdb: the kernel says no address of {SYMBOL}")
        print("\n".join(plain.stdout.decode(errors="replace").splitlines()[-30:]))
        return False
    address = int(found.group(1), 16)
    known = gdb.find_gdb("Loongarch64")
    child = subprocess.Popen([*words, "--gdb", "0"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        place = child.stderr.readline().decode().split()[-1]
        stop = [f"break *{address:#x}", "continue", "info threads", "print/x $pc", "print/x $CRMD & 3", "x/2i $pc", "stepi", "print/x $pc"]
        printed = gdb.run_gdb(known, ["set architecture Loongarch64", f"target remote {place}", *stop, "delete", "detach"])
        output, _ = child.communicate(timeout=TIMEOUT_S)
    finally:
        child.kill()
    wanted = rf"Breakpoint 1, [\s\S]*Thread 1\.2 [\s\S]* = {address:#x}\s+\$2 = 0x0\s+=> {address:#x}[\s\S]*\$3 = {address + 4:#x}"
    right = re.search(wanted, printed) and child.returncode == 0 and output == plain.stdout
    print(f"{'ok  ' if right else 'FAIL'} longma, gdb", flush=True)
    if not right:
        print(f"status {child.returncode}, the output {'is' if output == plain.stdout else 'is not'} that without gdb\n{printed}")
        print("\n".join(output.decode(errors="replace").splitlines()[-30:]))
    return bool(right)


def profile(command, kernel, folder):
    """A region of interest runs through the models, the rest does not; two runs count the same. Returns whether all of it is right."""
    initrd = ram_disk(folder, "region.cpio.gz", {"init": REGION_INIT.encode()})
    results, right = [], True
    for level, number in (("cache", 0), ("timing", 0), ("timing", 1)):
        out = folder / f"region-{level}-{number}.json"
        words = ["--kernel", kernel, "--initrd", initrd, "--append", WORDS, "--level", level, "--roi", "--stats-out", out]
        made = subprocess.run([*command, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=TIMEOUT_S)
        if made.returncode != 0 or b"after: region" not in made.stdout:
            print(f"status {made.returncode}, {made.stderr.decode(errors='replace')}")
            print("\n".join(made.stdout.decode(errors="replace").splitlines()[-30:]))
            right = False
            break
        results.append(out.read_bytes())
        result = json.loads(results[-1])
        groups = (("user", "instructions"), ("kernel", "instructions"), ("exceptions", "system_calls"))
        count = {f"{group}.{name}": result["statistics"][group][name]["value"] for group, name in groups}
        hottest = {function["function"] for function in result["functions"][:60]}
        if not hottest & REGION_FUNCTIONS or min(count.values()) < 1000:
            print(f"{level}: {count}, {sorted(hottest)}")
            right = False
    if right and results[1] != results[2]:
        print("two runs at level timing differ")
        right = False
    print(f"{'ok  ' if right else 'FAIL'} longma, region of interest", flush=True)
    return right


def checkpoint(command, kernel, folder):
    """A machine that was saved at its first mark and restored counts what one that went on does; returns whether all of it is right."""
    saved, expected = folder / "saved", (folder / "region-timing-0.json").read_bytes()
    words = ["--kernel", kernel, "--initrd", folder / "region.cpio.gz", "--append", WORDS, "--checkpoint", saved]
    run = lambda *more: subprocess.run([*command, *more], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=TIMEOUT_S)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    made = [run(*words)]
    results = []
    for number in range(2):
        out = folder / f"restored-{number}.json"
        made.append(run("--restore", saved, "--level", "timing", "--roi", "--stats-out", out))
        results.append(out.read_bytes() if out.exists() else b"")
    used_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    right = (
        all(it.returncode == 0 for it in made)
        and b"after: region" not in made[0].stdout
        and all(b"after: region" in it.stdout for it in made[1:])
        and all(result == expected for result in results)
    )
    print(f"{'ok  ' if right else 'FAIL'} longma, checkpoint: {used_s:.1f} s of processor time", flush=True)
    if not right:
        print(f"restored runs count {['the same' if result == expected else 'something else' for result in results]}")
        for it in made:
            print(f"status {it.returncode}, {it.stderr.decode(errors='replace')[-2000:]}")
            print("\n".join(it.stdout.decode(errors="replace").splitlines()[-10:]))
    return right


def raw_image(kernel):
    """The image inside an EFI zboot file, which QEMU 10 does not unpack. Source: zboot-header.S."""
    content = kernel.read_bytes()
    start, length = (int.from_bytes(content[at : at + 4], "little") for at in (8, 12))
    image = kernel.with_name("vmlinux.efi")
    image.write_bytes(subprocess.run(["zstd", "-dc"], input=content[start : start + length], stdout=subprocess.PIPE, timeout=60).stdout)
    return image


def boot(title, cores, command):
    """Boots and prints what the guest said; returns whether that is right."""
    expected = [line.format(cores=cores) for line in EXPECTED]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    try:
        made = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S)
        output = made.stdout
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
    used_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    lines = output.decode(errors="replace").replace("\r", "").splitlines()
    said = [line for line in lines if line.split(":")[0] in {line.split(":")[0] for line in expected}]
    right = said == expected and any("reboot: Power down" in line for line in lines)
    print(f"{'ok  ' if right else 'FAIL'} {title}: {used_s:.1f} s of processor time", flush=True)
    if not right:
        print("\n".join(lines[-30:]))
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    program = "longma boot"
    parser.add_argument("--boot", default=program, metavar="COMMAND", help=f"boots a kernel (default: {program})")
    parser.add_argument("--qemu", metavar="COMMAND", help="qemu-system-loongarch64, to compare with")
    options = parser.parse_args()
    try:
        kernel, initrd = prepare(ROOT / "target" / "system_boot")
    except Absent as error:
        # Without a network there is nothing to boot, which is not a failure.
        print(f"skipped: {error}")
        return 0
    files = ["--kernel", kernel, "--initrd", initrd, "--append", WORDS]
    runs = [boot(f"longma, cores: {n}", n, [*shlex.split(options.boot), "--cores", str(n), *files]) for n in CORES]
    # `checkpoint` compares with a result of `profile`.
    for check in (converse, network, share, prepared, debug, profile, checkpoint):
        try:
            runs.append(check(shlex.split(options.boot), kernel, initrd.parent))
        except Absent as error:
            print(f"left out: {error}")
    if options.qemu:
        files = ["-kernel", raw_image(kernel), "-initrd", initrd, "-append", WORDS]
        for cores in CORES:
            machine = ["-M", "virt", "-cpu", "la464", "-smp", str(cores), "-m", "1G", "-nographic"]
            runs.append(boot(f"qemu, cores: {cores}", cores, [*shlex.split(options.qemu), *machine, *files]))
    print(f"system_boot: {runs.count(True)} passed, {runs.count(False)} failed")
    return 0 if all(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
