#!/usr/bin/env python3
"""Runs the tests of zoned devices, the published trees and the map on the kernel's null_blk in a small QEMU guest.

The same tests run on Longma's emulated devices, so this shows that the emulated devices follow the kernel's rules. Fetches Debian's kernel
(unpacked, not installed), packs a busybox, the test binaries and the longma command into an initramfs, boots it under QEMU's software
emulation and reports the results. Source: the kernel's documentation of null_blk.
"""

import argparse
import gzip
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time

from debian_package import Failure, run
from guest import ROOT, Archive, boot, kernel, libraries, module

MODULES = ("configfs", "null_blk")

# null_blk attributes of the devices, sizes in MiB. A device's memory grows as it is written.
COMMON = {"blocksize": 4096, "memory_backed": 1, "zoned": 1, "irqmode": 0, "queue_mode": 2, "submit_queues": 1}
DEVICES = {
    "small": {"size": 40, "zone_size": 2, "zone_capacity": 1, "zone_nr_conv": 2, "zone_max_open": 8, "zone_max_active": 10},
    "unlimited": {"size": 64, "zone_size": 4, "zone_nr_conv": 1},
    "large": {"size": 2048, "zone_size": 32, "zone_nr_conv": 2, "zone_max_open": 14, "zone_max_active": 14},
}

# The test binaries, and the devices on which they run.
TESTS = {"zone_rules": ("small", "unlimited"), "store_devices": ("small",)}

# The workloads of the ZB+-tree paper: on the published trees, which count reads and writes, then on the durable map with the longma
# command. Standard error of the command, which has its progress bar, is shown only if the command fails.
TREES = "LONGMA_ZONED_PAIRS=4000 /programs/store_devices published_trees --nocapture"
WORKLOADS = ("W1", "W2", "W3", "W4", "W5")
BENCH = "/programs/longma zoned bench /dev/nullb0 --force --workload {name} --records 20000 --operations 20000 --value-bytes 8"
CHECK = "/programs/longma zoned check /dev/nullb0"
ERRORS_IF_FAILED = "2>/tmp/errors || { cat /tmp/errors; false; }"

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
ip link set lo up 2>/dev/null
cd /tmp
insmod /modules/configfs.ko
insmod /modules/null_blk.ko nr_devices=0
mount -t configfs config /sys/kernel/config
echo "guest: up after $(cut -d ' ' -f 1 /proc/uptime) s"
{steps}
echo "guest: done"
poweroff -f
"""

STEP = """mkdir /sys/kernel/config/nullb/nullb0
for attribute in {attributes}; do
    echo ${{attribute#*=}} > /sys/kernel/config/nullb/nullb0/${{attribute%=*}}
done
echo 1 > /sys/kernel/config/nullb/nullb0/power
echo none > /sys/block/nullb0/queue/scheduler
echo "guest: starting {name}"
export LONGMA_ZONED_DEVICE=/dev/nullb0
{{ {command}; }}
echo "guest: status $? of {name}"
echo 0 > /sys/kernel/config/nullb/nullb0/power
rmdir /sys/kernel/config/nullb/nullb0
"""


def test_binaries():
    """Builds the test binaries; returns their paths by name."""
    options = [part for test in TESTS for part in ("--test", test)]
    command = ["cargo", "test", "--workspace", "--locked", *options, "--no-run", "--message-format", "json"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=1800)
    if built.returncode != 0:
        raise Failure("null_blk: the test binaries do not build: " + " ".join(command))
    messages = (json.loads(line) for line in built.stdout.splitlines() if line.startswith("{"))
    programs = (m for m in messages if m.get("executable") and m["profile"]["test"])
    return {m["target"]["name"]: pathlib.Path(m["executable"]) for m in programs}


def stripped(program):
    """The program without debugging information, because the guest has little memory."""
    if shutil.which("strip") is None:
        return program.read_bytes()
    smaller = ROOT / "target" / "null_blk" / f"{program.name}.stripped"
    run(["strip", "-o", smaller, program])
    return smaller.read_bytes()


def initramfs(modules, programs, steps, busybox):
    """Builds the initramfs with everything the guest runs."""
    archive = Archive()
    for folder in ("proc", "sys", "dev", "tmp", "bin"):
        archive.folder(folder)
    archive.file("bin/busybox", busybox.read_bytes())
    archive.file("init", INIT.replace("{steps}", "\n".join(steps)).encode())
    for name in MODULES:
        archive.file(f"modules/{name}.ko", module(modules, name), 0o644)
    needed = {}
    for name, program in programs.items():
        archive.file(f"programs/{name}", stripped(program))
        needed.update((str(path), path) for path in libraries(program))
    for name, path in sorted(needed.items()):
        archive.file(name, path.read_bytes())
    return gzip.compress(archive.bytes(), 1)


def tables(lines):
    """Prints the results of the workloads: the counts of the published trees, and one table with all phases of the map."""
    # The test prints the counts on an emulated device first, then those on null_blk.
    trees = [line for line in lines if re.match(r"W\d \d+ pairs: ", line)]
    print("\n".join(trees[-len(WORKLOADS):]))
    heads = [line for line in lines if line.startswith("PHASE ")]
    if heads:
        print(heads[0])
        print("\n".join(line for line in lines if re.match(r"(load|W\d) +\d+ +[\d.]+ ", line)))


def report(lines, names):
    """Prints the result of each step; returns whether all passed."""
    text = "\n".join(lines)
    status = {name: int(code) for code, name in re.findall(r"^guest: status (\d+) of (.+)$", text, re.M)}
    good = True
    for name in names:
        code = status.get(name)
        good &= code == 0
        outcome = {None: "did not finish", 0: "ok"}.get(code, f"failed with status {code}")
        print(f"null_blk: {name}: {outcome}")
    passed = sum(int(n) for n in re.findall(r"^test result: .*? (\d+) passed", text, re.M))
    failed = sum(int(n) for n in re.findall(r"^test result: .*? (\d+) failed", text, re.M))
    print(f"null_blk: {passed} passed, {failed} failed")
    return good and "guest: done" in lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longma", type=pathlib.Path, help="the longma command, for the workloads; without it they are skipped")
    parser.add_argument("--echo", action="store_true", help="show the guest's output")
    parser.add_argument("--timeout", type=int, default=600, help="seconds (default 600)")
    parser.add_argument("--memory", type=int, default=2048, help="the guest's memory, MiB (default 2048)")
    options = parser.parse_args()
    try:
        for tool, package in (("qemu-system-x86_64", "qemu-system-x86"), ("busybox", "busybox-static")):
            if shutil.which(tool) is None:
                raise Failure(f"null_blk: {tool} is missing: install Debian's package {package}")
        folder = ROOT / "target" / "null_blk"
        folder.mkdir(parents=True, exist_ok=True)
        image, modules = kernel()
        binaries = test_binaries()
        programs, steps, names = {}, [], []

        def step(name, device, command):
            names.append(name)
            attributes = " ".join(f"{key}={value}" for key, value in {**COMMON, **DEVICES[device]}.items())
            steps.append(STEP.format(name=name, attributes=attributes, command=command))

        for test, devices in TESTS.items():
            programs[test] = binaries[test]
            for device in devices:
                step(f"{test} on {device}", device, f"/programs/{test} --test-threads=1")
        step("published trees on large", "large", TREES)
        if options.longma:
            programs["longma"] = options.longma
            for name in WORKLOADS:
                step(f"workload {name}", "large", f"{{ {BENCH.format(name=name)} && {CHECK}; }} {ERRORS_IF_FAILED}")
        packed = folder / "initramfs.gz"
        packed.write_bytes(initramfs(modules, programs, steps, pathlib.Path(shutil.which("busybox"))))
        begin = time.monotonic()
        lines = boot(image, packed, options.timeout, options.memory, options.echo)
        (folder / "guest.log").write_text("\n".join(lines) + "\n")
        good = report(lines, names)
        tables(lines)
        print(f"null_blk: the guest took {time.monotonic() - begin:.0f} s; its output is in {folder / 'guest.log'}")
    except (Failure, OSError, subprocess.SubprocessError) as error:
        sys.exit(str(error))
    if not good:
        print("\n".join(lines[-60:]))
        sys.exit(1)


if __name__ == "__main__":
    main()
