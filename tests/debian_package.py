#!/usr/bin/env python3
"""Unpacks packages of a newer Debian release into a folder, without installing them.

Handles neither dependencies nor scripts. The tests need packages that Debian 12 lacks: LoongArch's C library (libc6-loong64-cross), a QEMU
with vector instructions (qemu-user), and musl's source. apt fetches them from this machine's mirror. Source: apt-get(8).
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class Failure(Exception):
    """An error with advice."""


def run(command, folder=None, timeout_s=300):
    """Runs a command and returns its output."""
    try:
        made = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise Failure(f"{command[0]} took over {timeout_s} s: {' '.join(map(str, command))}") from None
    if made.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))}: {made.stderr.strip()}")
    return made.stdout


def mirror():
    """The address of Debian's main archive in this machine's apt configuration."""
    for line in run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(SUITE)", "Created-By: Packages"]).splitlines():
        address, _, suite = line.partition(" ")
        if "Debian " in suite and "security" not in line and "updates" not in line:
            return address
    raise Failure("debian_package: apt has no Debian archive configured: run apt-get update on a Debian machine")


def private_apt(release):
    """apt options for private package lists of the given release, under target/."""
    state = ROOT / "target" / "apt" / release
    for folder in ("lists/partial", "cache/archives/partial"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    entry = f"[signed-by={KEYRING}] {mirror()} {release} main\n"
    (state / "sources.list").write_text(f"deb {entry}deb-src {entry}")
    settings = {
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": state / "lists",
        "Dir::Cache": state / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
    if not any((state / "lists").glob("*_Packages*")):
        run(["apt-get", *options, "update"], timeout_s=600)
    return options


def unpack(packages, folder, release="trixie", source=False):
    """Fetches packages and unpacks them into `folder`, unless that is already done."""
    stamp = folder / f".{'-'.join(packages)}"
    if stamp.exists():
        return
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise Failure(f"debian_package: {tool} is missing: {' and '.join(packages)} can only be had on a Debian machine")
    options = private_apt(release)
    loaded = folder / "packages"
    loaded.mkdir(parents=True, exist_ok=True)
    if source:
        run(["apt-get", *options, "source", "--download-only", *packages], loaded)
        for archive in loaded.glob("*.orig.tar.*"):
            if archive.suffix != ".asc":
                run(["tar", "-xf", archive, "-C", folder])
    else:
        run(["apt-get", *options, "download", *packages], loaded, 600)
        for archive in loaded.glob("*.deb"):
            run(["dpkg-deb", "-x", archive, folder])
    shutil.rmtree(loaded)
    stamp.touch()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="where to unpack to")
    parser.add_argument("packages", nargs="+")
    parser.add_argument("--release", default="trixie", help="of Debian (default trixie)")
    parser.add_argument("--source", action="store_true", help="the upstream source instead")
    options = parser.parse_args()
    try:
        unpack(options.packages, options.folder, options.release, options.source)
    except (Failure, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
