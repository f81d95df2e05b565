#!/usr/bin/env python3
"""Boots Debian's kernel for loong64 to a busybox shell on Longma's machine, and on QEMU if it is named.

With four cores, and with a disk and a script that types on the console, too. The packages are pinned by hash; Debian's unstable replaces versions, so that a package that is gone is replaced by the newest of its name.
The initial RAM disk is made here, without privileges. Source: Linux, Documentation/arch/loongarch/booting.rst, initramfs' buffer format.
"""

import argparse
import gzip
import hashlib
import io
import lzma
import pathlib
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request

from guest import Archive
from packages import BUILT, ROOT, Absent, archives, fetched, members, unpack

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
        return fetched(path, PINS[path], BUILT / "debian" / path.rsplit("/", 1)[-1])
    except Absent as gone:
        path, wanted = newest(NAMES[path])
        print(f"system_boot: {gone}; uses {path.rsplit('/', 1)[-1]}", flush=True)
        return fetched(path, wanted, BUILT / "debian" / path.rsplit("/", 1)[-1])


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


def block_module():
    """The driver of virtio disks. The package is large, so that the file is kept."""
    kept = BUILT / "debian" / "virtio_blk.ko"
    if not kept.exists():
        content = next(bytes for name, bytes in members(package(MODULES)) if name.startswith("data.tar"))
        with tarfile.open(fileobj=io.BytesIO(content), mode="r|*") as tar:
            found = next((tar.extractfile(file).read() for file in tar if file.name.endswith("/virtio_blk.ko.xz")), None)
        if found is None:
            raise Absent("the package of modules has no virtio_blk.ko.xz")
        kept.write_bytes(lzma.decompress(found))
    return kept.read_bytes()


def converse(command, kernel, folder):
    """A script loads the driver, reads and writes a disk, and ends with a status; returns whether all of it is right."""
    archive = Archive()
    for name in ("dev", "bin"):
        archive.folder(name)
    archive.file("bin/busybox", next(folder.glob("usr/bin/busybox")).read_bytes())
    for tool in TOOLS:
        archive.file(f"bin/{tool}", f'#!/bin/busybox sh\nexec /bin/busybox {tool} "$@"\n'.encode())
    archive.file("virtio_blk.ko", block_module())
    initrd, disk, script = folder / "disk.cpio.gz", folder / "disk.img", folder / "script"
    initrd.write_bytes(gzip.compress(archive.bytes(), mtime=0))
    content = hashlib.shake_256(b"disk").digest(DISK_BYTES)
    disk.write_bytes(content)
    changed = content[: 3 * 512] + TEXT + content[4 * 512 :]
    digests = {"before": hashlib.sha256(content).hexdigest(), "after": hashlib.sha256(changed).hexdigest()}
    script.write_text(SCRIPT.format(**digests))
    words = WORDS.replace("rdinit=/init", "rdinit=/bin/sh")
    files = ["--kernel", kernel, "--initrd", initrd, "--append", words, "--disk", disk, "--script", script]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    made = subprocess.run([*command, *files], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S)
    used_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    right = made.returncode == STATUS and disk.read_bytes() == content
    print(f"{'ok  ' if right else 'FAIL'} longma, disk and script: {used_s:.1f} s of processor time", flush=True)
    if not right:
        print(f"status {made.returncode}, the image {'is' if disk.read_bytes() == content else 'is not'} unchanged")
        print("\n".join(made.stdout.decode(errors="replace").splitlines()[-30:]))
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
    try:
        runs.append(converse(shlex.split(options.boot), kernel, initrd.parent))
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
