"""Runs a command in namespaces of its own, with a root folder that is thrown away, and measures its processor time.

A user namespace has its own binfmt_misc since Linux 6.7: programs of a root run under QEMU there, whatever the host has registered.
Sources: user_namespaces(7), mount_namespaces(7), pid_namespaces(7), the kernel's admin-guide/binfmt-misc.rst.
"""

import ctypes
import dataclasses
import fcntl
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC = 0x20000, 0x10000000, 0x20000000, 0x40000000, 0x8000000
PR_SET_PDEATHSIG = 1
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
# e_machine of the ELF header.
MACHINES = {"amd64": 62, "arm64": 183, "mips64el": 8, "loong64": 258}
ENV = {"PATH": "/usr/sbin:/usr/bin", "LC_ALL": "C.UTF-8", "HOME": "/root", "TZ": "UTC0", "TMPDIR": "/tmp"}
# The users that programs drop their rights to.
IDS = 65536

# The padding of the ELF header. QEMU's own file gets a mark there, so that the rule for x86-64 programs does not also match QEMU.
MARK_AT = 15


@dataclasses.dataclass
class Ended:
    """How a run ended: a status as in a shell, None after the time limit; its output; seconds."""

    status: int | None
    output: str
    errors: str
    cpu_s: float
    wall_s: float
    peak_kib: int


def marked(qemu, folder):
    """A copy of QEMU that its own rule does not match."""
    copy = folder / qemu.name
    if not copy.exists():
        content = bytearray(qemu.read_bytes())
        content[MARK_AT] = 1
        copy.write_bytes(content)
        copy.chmod(0o755)
    return copy


def rule(architecture, interpreter):
    """A line for binfmt_misc: 64-bit little-endian programs of this machine, opened now so that it works in another root."""
    magic = bytes([0x7F, *b"ELF", 2, 1, 1, *[0] * 9, 0, 0, *struct.pack("<H", MACHINES[architecture])])
    mask = bytes([*[255] * 7, 0, *[255] * 8, 0, 0, 255, 255])
    escaped = ["".join(f"\\x{byte:02x}" for byte in part) for part in (magic, mask)]
    return f":longma-qemu:M::{escaped[0]}:{escaped[1]}:{interpreter}:FP"


def loopback_up():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def call(function, *arguments):
    """A function of the C library; an error is an OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, function)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{function}: {os.strerror(error)}")


def mount(source, target, kind, flags=0, data=""):
    call("mount", str(source).encode(), str(target).encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())


MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18


def enter(root, scratch, layers, qemu_rule):
    """Mounts a writable view of the root folder, in new namespaces. Returns where it is."""
    loopback_up()
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("none", scratch, "tmpfs", 0, "mode=755")
    for name in ("upper", "work", "root"):
        os.mkdir(f"{scratch}/{name}")
    view = f"{scratch}/root"
    lower = ":".join(str(folder) for folder in [*layers, root])
    mount("overlay", view, "overlay", 0, f"lowerdir={lower},upperdir={scratch}/upper,workdir={scratch}/work")
    for name, mode in (("tmp", 0o1777), ("proc", 0o755), ("dev", 0o755), ("scratch", 0o777), ("run", 0o755), ("root", 0o700)):
        os.makedirs(f"{view}/{name}", exist_ok=True)
        os.chmod(f"{view}/{name}", mode)
    mount("/dev", f"{view}/dev", "", MS_BIND | MS_REC)
    mount("proc", f"{view}/proc", "proc")
    if qemu_rule:
        mount("none", "/proc/sys/fs/binfmt_misc", "binfmt_misc")
        with open("/proc/sys/fs/binfmt_misc/register", "w") as register:
            register.write(qemu_rule)
    return view


def first_process(prepare, root, scratch, layers, qemu_rule, outputs):
    """Process 1 of the namespace: becomes the command."""
    try:
        view = enter(root, scratch, layers, qemu_rule)
        command, chroot = prepare(view)
        for number, path in enumerate(outputs, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        # Signals that Python ignores.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if chroot:
            os.chroot(view)
            os.chdir("/scratch")
        child = os.fork()
        if child == 0:
            os.execve(command[0], [str(word) for word in command], ENV)
        # Orphans become children of process 1; all that they used counts.
        status = 0
        while True:
            ended, how = os.wait()
            if ended == child:
                status = os.waitstatus_to_exitcode(how)
                break
        os._exit(status if status >= 0 else 128 - status)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(125)


def run(root, prepare, timeout_s, layers=(), qemu_rule=""):
    """Runs what `prepare(view of the root)` returns: a command, and whether the kernel changes the root for it."""
    scratch = tempfile.mkdtemp(prefix="longma-program-")
    outputs = [f"{scratch}.out", f"{scratch}.err"]
    unshared, mapped, first = os.pipe(), os.pipe(), os.pipe()
    start = time.monotonic()
    middle = os.fork()
    if middle == 0:
        try:
            os.setsid()
            call("unshare", CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC)
            os.write(unshared[1], b"x")
            os.read(mapped[0], 1)
            os.setgid(0)
            os.setuid(0)
            # A change of user clears it.
            call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
            inner = os.fork()
            if inner == 0:
                call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
                first_process(prepare, root, scratch, layers, qemu_rule, outputs)
            os.write(first[1], struct.pack("i", inner))
            how = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
            os._exit(how if how >= 0 else 128 - how)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(125)
    for end in (unshared[1], mapped[0], first[1]):
        os.close(end)
    in_time = True
    try:
        if os.read(unshared[0], 1):
            for kind in ("uid_map", "gid_map"):
                with open(f"/proc/{middle}/{kind}", "w") as map_file:
                    map_file.write(f"0 0 {IDS}")
        os.write(mapped[1], b"x")
        os.close(mapped[1])
        told = os.read(first[0], 4)
        while True:
            ended, how, used = os.wait4(middle, os.WNOHANG)
            if ended:
                break
            if time.monotonic() - start > timeout_s and in_time:
                in_time = False
                # All processes of a namespace end with its first.
                os.kill(struct.unpack("i", told)[0] if told else middle, signal.SIGKILL)
            time.sleep(0.02)
    finally:
        for end in (unshared[0], first[0]):
            os.close(end)
    texts = []
    for path in outputs:
        try:
            with open(path, errors="replace") as file:
                texts.append(file.read())
            os.unlink(path)
        except OSError:
            texts.append("")
    shutil.rmtree(scratch, ignore_errors=True)
    status = os.waitstatus_to_exitcode(how) if in_time else None
    return Ended(status, *texts, used.ru_utime + used.ru_stime, time.monotonic() - start, used.ru_maxrss)
