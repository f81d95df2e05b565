"""A small QEMU guest for tests that need their own kernel: Debian's kernel, an initramfs, and the guest's console output.

null_blk.py, libvirt_nodes.py and affinity_vm.py use it. The kernel is unpacked, not installed. QEMU emulates in software by default, so that
no privileges are needed. Source: QEMU's manual; the kernel's documentation of initramfs and kbuild's of modules.dep (`depends` in .modinfo).
"""

import lzma
import os
import pathlib
import re
import shutil
import subprocess
import time

from debian_package import Failure, private_apt, run, unpack

ROOT = pathlib.Path(__file__).resolve().parent.parent
RELEASE = "bookworm"
FOLDER = ROOT / "target" / "guest"


def kernel(folder=FOLDER):
    """Unpacks Debian's kernel into `folder`; returns its image and its module folder."""
    options = private_apt(RELEASE)
    depends = run(["apt-cache", *options, "depends", "linux-image-amd64"])
    found = re.search(r"Depends: (linux-image-\S+)", depends)
    if not found:
        raise Failure("guest: Debian's archive names no kernel: apt-cache depends linux-image-amd64")
    package = found.group(1)
    unpack([package], folder, RELEASE)
    version = package.removeprefix("linux-image-")
    return folder / "boot" / f"vmlinuz-{version}", next(folder.glob(f"**/lib/modules/{version}"))


def module(folder, name):
    """The uncompressed bytes of a module."""
    found = next(folder.glob(f"**/{name}.ko*"), None)
    if found is None:
        raise Failure(f"guest: the kernel in {folder} has no module {name}")
    content = found.read_bytes()
    return lzma.decompress(content) if found.suffix == ".xz" else content


def modules_in_order(folder, names):
    """Modules by name with those that they need, in load order, uncompressed."""
    found = {}

    def add(name):
        if name in found:
            return
        content = module(folder, name) if next(folder.glob(f"**/{name}.ko*"), None) else module(folder, name.replace("_", "-"))
        depends = re.search(rb"\0depends=([^\0]*)\0", content)
        for needed in depends[1].decode().split(",") if depends else ():
            if needed:
                add(needed)
        found[name] = content

    for name in names:
        add(name)
    return found


def libraries(program):
    """The shared libraries that a program needs, including the dynamic linker."""
    found = re.findall(r"(/\S+) \(0x", run(["ldd", program]))
    return [pathlib.Path(path) for path in found]


class Archive:
    """Builds an initramfs in the kernel's "new ASCII" cpio format."""

    def __init__(self):
        self.parts = []
        self.folders = set()

    def _entry(self, name, mode, content):
        name = name.encode() + b"\0"
        fields = (len(self.parts), mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields)
        padded = head + name + b"\0" * (-(len(head) + len(name)) % 4)
        self.parts.append(padded + content + b"\0" * (-len(content) % 4))

    def folder(self, name):
        """Adds a folder and its parents."""
        for above in [*reversed(pathlib.PurePosixPath(name).parents), pathlib.PurePosixPath(name)]:
            if str(above) not in (".", "/") and str(above) not in self.folders:
                self.folders.add(str(above))
                self._entry(str(above).lstrip("/"), 0o040755, b"")

    def file(self, name, content, mode=0o755):
        """Adds a file."""
        self.folder(str(pathlib.PurePosixPath(name).parent))
        self._entry(name.lstrip("/"), 0o100000 | mode, content)

    def bytes(self):
        """The whole archive."""
        self._entry("TRAILER!!!", 0, b"")
        return b"".join(self.parts)


def kvm_works(image, timeout_s=20):
    """Whether /dev/kvm boots the kernel. Some hosts have the device, but can only run kernels that are made for them."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    archive = Archive()
    archive.file("bin/busybox", pathlib.Path(shutil.which("busybox")).read_bytes())
    archive.file("init", b"#!/bin/busybox sh\necho 'guest: up'\n/bin/busybox poweroff -f\n")
    packed = FOLDER / "probe-initramfs"
    packed.write_bytes(archive.bytes())
    try:
        return any("guest: up" in line for line in boot(image, packed, timeout_s, 256, False, accelerator="kvm"))
    except Failure:
        return False


def boot(
    image, initrd, timeout_s, memory_mib, echo, cpus=("-smp", "2"), devices=(), words="random.trust_cpu=on", accelerator="tcg", model="max",
):
    """Boots a guest with `words` on the kernel's command line and returns its output."""
    command = [
        "qemu-system-x86_64", "-machine", f"q35,accel={accelerator}", "-cpu", model, *cpus, "-m", str(memory_mib),
        "-kernel", image, "-initrd", initrd, "-append", f"console=ttyS0 quiet panic=-1 {words}",
        "-nographic", "-no-reboot", "-nic", "none", "-monitor", "none", "-serial", "stdio", *devices,
    ]
    guest = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        return listen(guest.stdout, timeout_s, echo)
    finally:
        guest.kill()
        guest.wait()


def listen(stream, timeout_s, echo):
    """Yields the guest's output lines to the end; the last ones may arrive after the guest has exited."""
    lines, end, rest = [], time.monotonic() + timeout_s, b""
    os.set_blocking(stream.fileno(), False)
    while (chunk := stream.read()) != b"":
        if time.monotonic() > end:
            raise Failure(f"guest: the guest was not done after {timeout_s} s; it said last:\n" + "\n".join(lines[-20:]))
        if chunk is None:
            time.sleep(0.05)
            continue
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            lines.append(line.decode(errors="replace").rstrip("\r"))
            if echo:
                print(lines[-1], flush=True)
    return lines
