#!/usr/bin/env python3
"""Runs stress-ng, from Debian for LoongArch64, one stressor after the other, and reports failures.

Not part of the usual test stages: it takes a quarter of an hour and fetches about sixty packages in the archive's current versions
(verified by the archive's hashes). Exits with 0 only if no stressor fails except those in EXPECTED.
Source: https://github.com/ColinIanKing/stress-ng, its manual page; deb(5).
"""

import argparse
import hashlib
import lzma
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import packages

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILT = ROOT / "target" / "stress"
RELEASE = "sid"

# Stressors of calls that a user-mode emulator implements; the others (devices, modules, whole machines) test the host.
STRESSORS = """access affinity af-alg aio alarm atomic bad-altstack bitops bitonicsort branch brk bsearch bubblesort cache chdir chmod
chown clock clone close context copy-file cpu crypt cyclic daemon dekker dentry dev-shm dirdeep dirmany dnotify dup dynlib enosys env
epoll eventfd exec exit-group expmath factor fallocate fault fcntl fibsearch file-ioctl filename flock fma fork fp fp-error fpunch fractal
fstat full funccall funcret futex get getrandom goto hash hdd heapsort hsearch icache inotify insertionsort intmath io iomix itimer jpeg
judy kcmp key kill landlock link list loadavg locka lockbus lockf lockmix lockofd longjmp lsearch madvise malloc matrix mcontend membarrier
memcpy memfd memrate memthrash mergesort metamix mincore min-nanosleep misaligned mlock mmap mmapaddr mmapcow mmapfixed mmapfork mmaphuge
mmapmany mmaptorture monte-carlo mprotect mq mremap mseal msg msync msyncmany munmap mutex nanosleep nice nop null opcode open pagemove
peterson pidfd ping-sock pipe pipeherd pkey poll powmath prctl prefetch prio-inv priv-instr pseek pthread ptr-chase pty qsort race-sched
radixsort randlist readahead regex regs rename resched resources revio ring-pipe rlimit rmap rotate rseq schedmix schedpolicy seal seccomp
seek sem sem-sysv sendfile session set shellsort shm shm-sysv sigabrt sigbus sigchld sigfd sigfpe sighup sigill sigio signal signest
sigpending sigpipe sigq sigrt sigsegv sigsuspend sigtrap sigurg sigvtalrm sigxcpu sigxfsz skiplist sleep sock sockabuse sockdiag sockfd
sockmany sockpair softlockup sparsematrix spawn spinmem splice stack stackmmap str stream switch symlink sync-file syncload syscall sysinfo
sysinval tee timer timerfd timermix time-warp tlb-shootdown touch tree trig tsearch udp udp-flood umask unlink unshare urandom utime vdso
veccmp vecfp vecmath vecshuf vecwide vfork vforkmany vm vm-addr vm-rw vm-segv vm-splice vma wait waitcpu wcs xattr yield zero zlib
zombie""".split()

# Expected failures, with the reasons.
EXPECTED = {
    "vm-rw": "clone(2) with CLONE_VM, without CLONE_THREAD or CLONE_VFORK, is refused (EINVAL), as user-mode QEMU refuses it",
}

FAILED = re.compile(r"fail:|error:|terminated|longma:|panicked|memory allocation")
HARMLESS = re.compile(r"no CPUs found|failed: 0|metrics-check")


def index(archive):
    """The archive's packages by name, and the providers of virtual packages."""
    listed = BUILT / f"Packages-{RELEASE}"
    if not listed.exists():
        with urllib.request.urlopen(f"{archive}/dists/{RELEASE}/main/binary-loong64/Packages.xz", timeout=packages.FETCH_TIMEOUT_S) as answer:
            listed.write_bytes(lzma.decompress(answer.read()))
    known, provided = {}, {}
    for block in listed.read_text().split("\n\n"):
        fields = dict(re.findall(r"^(\S+): (.*)$", block, re.MULTILINE))
        if name := fields.get("Package"):
            known[name] = fields
            for other in re.findall(r"[a-z0-9.+-]+", re.sub(r"\(.*?\)", "", fields.get("Provides", ""))):
                provided.setdefault(other, name)
    return known, provided


def needed(wanted, known, provided):
    """Packages with all their dependencies."""
    found, rest = [], list(wanted)
    while rest:
        name = rest.pop()
        name = name if name in known else provided.get(name)
        if name is None or name in found:
            continue
        found.append(name)
        for field in ("Depends", "Pre-Depends"):
            # The first of several alternatives.
            rest += re.findall(r"(?:^|,)\s*([a-z0-9.+-]+)", known[name].get(field, ""))
    return sorted(found)


def unpacked_root():
    """A folder with stress-ng and its dependencies, created once."""
    root, stamp = BUILT / "root", BUILT / "root.stamp"
    if stamp.exists():
        return root
    BUILT.mkdir(parents=True, exist_ok=True)
    failures = []
    for archive in packages.archives():
        try:
            known, provided = index(archive.rstrip("/"))
            break
        except (urllib.error.URLError, OSError) as error:
            failures.append(f"{archive}: {error}")
    else:
        sys.exit(f"stress: no archive can be reached: {'; '.join(failures)}")
    for part in ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "tmp", "work"]:
        (root / part).mkdir(parents=True, exist_ok=True)
    for merged in packages.MERGED:
        if not (root / merged).is_symlink():
            (root / merged).symlink_to(f"usr/{merged}")
    for name in needed(["stress-ng", "bash", "coreutils"], known, provided):
        path, wanted = known[name]["Filename"], known[name]["SHA256"]
        try:
            packages.unpack(packages.fetch_package(path, wanted, BUILT / "debian" / path.rsplit("/", 1)[-1]), root)
        except packages.Absent as error:
            sys.exit(f"stress: {error}; remove {BUILT} to begin with the archive's present index")
    # The versions of base-files would hide the host's.
    for empty in ("proc", "sys", "dev"):
        if (root / empty).is_dir():
            (root / empty).rmdir()
    stamp.touch()
    return root


def run(emulator, root, name, options):
    """The problem with a run of a stressor, or an empty string."""
    command = [*emulator, "-L", root, root / "usr/bin/stress-ng", "--", f"--{name}", str(options.instances), "--timeout", str(options.seconds),
               "--temp-path", "/tmp", "--verify", "--no-rand-seed"]  # fmt: skip
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        output, _ = child.communicate(timeout=options.seconds * 10 + 30)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return "it did not end"
    lines = [line for line in output.decode(errors="replace").splitlines() if FAILED.search(line) and not HARMLESS.search(line)]
    # 3: the host lacks a feature that the stressor needs; 4: not implemented.
    if child.returncode in (0, 3, 4) and not any("fail:" in line or "longma:" in line for line in lines):
        return ""
    return f"status {child.returncode}: {' | '.join(lines)[:300]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--emulator", default=f"{ROOT}/target/release/longma run", metavar="COMMAND")
    parser.add_argument("--only", nargs="+", default=STRESSORS, metavar="STRESSOR", help="these (default: all of the list)")
    parser.add_argument("--seconds", type=int, default=3, help="for each (default 3)")
    parser.add_argument("--instances", type=int, default=2, help="at once (default 2)")
    options = parser.parse_args()
    emulator, root = shlex.split(options.emulator), unpacked_root()
    passed, failed, begun = 0, [], time.monotonic()
    for number, name in enumerate(options.only, 1):
        wrong = run(emulator, root, name, options)
        known = EXPECTED.get(name)
        if wrong and not known:
            failed.append(name)
        passed += not wrong
        mark = "ok   " if not wrong else "known" if known else "FAIL "
        why = f": {wrong}{f' ({known})' if known else ''}" if wrong else ""
        print(f"{number:3}/{len(options.only)} {mark} {name}{why}", flush=True)
    print(f"stress: {passed} passed, {len(failed)} failed, in {time.monotonic() - begun:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
