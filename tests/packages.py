#!/usr/bin/env python3
"""Runs third-party programs: Debian packages for three architectures in root folders, and esbuild from npm.

Packages are pinned by hash (tests/packages.toml), unpacked without dpkg, and cached under target/; dependencies and scripts are not
handled. Packages that are no longer available are skipped with a note. LONGMA_DEBIAN_ARCHIVE overrides the archive (default: this machine's
apt mirror, then deb.debian.org); npm's configuration selects its registry.
Source: deb(5), deb-old(5), ar(5).
"""

import argparse
import base64
import functools
import hashlib
import io
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import urllib.error
import urllib.request

import debian_package
from guests import LEVELS

ROOT = pathlib.Path(__file__).resolve().parent.parent
HERE = ROOT / "tests"
LIST = tomllib.loads((HERE / "packages.toml").read_text())
BUILT = ROOT / "target" / "packages"
# The folders that Debian has merged into /usr.
MERGED = ["bin", "sbin", "lib", "lib64"]
FETCH_TIMEOUT_S = 60
# Their names in uname.
MACHINES = {"loong64": "loongarch64", "amd64": "x86_64", "arm64": "aarch64"}


class Absent(Exception):
    """A package that is not available, with the reason."""


def archives():
    """Debian archives, the nearest first."""
    if given := os.environ.get("LONGMA_DEBIAN_ARCHIVE"):
        return [given]
    try:
        near = [debian_package.mirror()]
    except (debian_package.Failure, OSError):
        near = []
    return [*near, "http://deb.debian.org/debian"]


def fetch_package(path, digest, kept):
    """A package's bytes, by hash, from the cache or the archive."""
    if kept.exists() and hashlib.sha256(kept.read_bytes()).hexdigest() == digest:
        return kept.read_bytes()
    why = "no archive"
    for archive in archives():
        try:
            with urllib.request.urlopen(f"{archive.rstrip('/')}/{path}", timeout=FETCH_TIMEOUT_S) as answer:
                got = answer.read()
        except (urllib.error.URLError, OSError) as error:
            why = str(error)
            continue
        if hashlib.sha256(got).hexdigest() == digest:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(got)
            return got
        why = "its hash is another"
    raise Absent(f"{path.rsplit('/', 1)[-1]}: {why}")


def members(package):
    """The files in an ar archive, as (name, bytes)."""
    if not package.startswith(b"!<arch>\n"):
        raise Absent("a package is not an ar archive")
    at = 8
    while at + 60 <= len(package):
        name, size = package[at : at + 16].decode().strip().rstrip("/"), int(package[at + 48 : at + 58])
        yield name, package[at + 60 : at + 60 + size]
        at += 60 + size + size % 2


def unpack(package, folder):
    """Unpacks a package without running its scripts."""
    for name, content in members(package):
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(content)) as files:
                for entry in files:
                    first, _, rest = entry.name.removeprefix("./").partition("/")
                    if first in MERGED and rest:
                        entry.name = f"./usr/{first}/{rest}"
                    # Without owners and device files.
                    files.extract(entry, folder, set_attrs=True, filter="tar")


def debian_root(architecture, extra_list):
    """Creates a root folder with all packages of a list."""
    name = extra_list or "root"
    folder, stamp = BUILT / architecture / name, BUILT / architecture / f"{name}.stamp"
    pins = LIST["debian"][architecture] | (LIST[extra_list][architecture] if extra_list else {})
    identity = hashlib.sha256(repr(sorted(pins.items())).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == identity:
        return folder
    packages = [fetch_package(path, digest, BUILT / "debian" / path.rsplit("/", 1)[-1]) for path, digest in pins.items()]
    shutil.rmtree(folder, ignore_errors=True)
    for part in ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "tmp", "etc", "work"]:
        (folder / part).mkdir(parents=True)
    for merged in MERGED:
        (folder / merged).symlink_to(f"usr/{merged}")
    for package in packages:
        unpack(package, folder)
    (folder / "usr/bin/sh").unlink(missing_ok=True)
    (folder / "usr/bin/sh").symlink_to("bash")
    stamp.write_text(identity)
    return folder


def esbuild():
    """The esbuild program, fetched with npm."""
    pin = LIST["npm"]
    program = BUILT / "esbuild" / pin["version"] / "package" / "bin" / "esbuild"
    if program.exists():
        return program
    if shutil.which("npm") is None:
        raise Absent("npm is not installed")
    folder = program.parents[2]
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "pack", "--silent", "--ignore-scripts", "--fetch-retries=1", f"{pin['name']}@{pin['version']}"]
    try:
        made = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        raise Absent("npm took over 300 s") from None
    archives = list(folder.glob("*.tgz"))
    if made.returncode != 0 or len(archives) != 1:
        raise Absent(f"npm has no {pin['name']}@{pin['version']}: {made.stderr.strip()[-200:]}")
    got = "sha512-" + base64.b64encode(hashlib.sha512(archives[0].read_bytes()).digest()).decode()
    if got != pin["integrity"]:
        sys.exit(f"packages: {pin['name']}@{pin['version']} is not what was pinned: {got}")
    with tarfile.open(archives[0]) as files:
        files.extractall(folder, filter="data")
    return program


def verdict(command, case, timeout_s):
    """The problem with a run, or an empty string."""
    given = case.get("input", "").encode()
    try:
        run = subprocess.run(command, input=given, capture_output=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return f"took over {timeout_s} s"
    if run.returncode != case.get("status", 0):
        return f"ended with {run.returncode}: {run.stderr.decode(errors='replace')[-300:]}"
    got, want = run.stdout.decode(errors="replace"), case["output"]
    return "" if got == want else f"printed {got[:500]!r}, not {want[:500]!r}"


def debian_runs(architecture, extra_list, emulator):
    """The runs that use these packages, as (title, command, case). Of the translated ones, only the first runs at each level."""
    root = debian_root(architecture, extra_list)
    runs = {name: case for name, case in LIST["run"].items() if case.get("needs", "") == extra_list}
    for number, (name, case) in enumerate(runs.items()):
        everywhere = architecture == "loong64" or (number == 0 and not extra_list)
        for level in case.get("levels", LEVELS) if everywhere else ["translated"]:
            environment = ["--env", "PATH=/usr/bin", "--env", "LC_ALL=C", "--env", "HOME=/", "--env", "TZ=UTC0"]
            command = [*emulator, *LEVELS[level], "--root", root, *environment, f"/usr/bin/{case['program']}", "--", *case["arguments"]]
            # The output differs only in the machine name.
            expanded = case | {"output": case["output"].replace("MACHINE", MACHINES[architecture])}
            yield f"debian {architecture} {name}, {level}", command, expanded


def esbuild_runs(emulator):
    """Bundles the small program in tests/bundled."""
    program = esbuild()
    case = {"output": (HERE / "bundled" / "expected.js").read_text()}
    arguments = ["--bundle", "--minify", "--format=esm", "--target=es2020", HERE / "bundled" / "main.tsx", "--jsx=automatic",
                 "--jsx-import-source=./h", "--external:./h/*", "--log-level=error"]  # fmt: skip
    for level in LIST["npm"]["levels"]:
        yield f"esbuild, {level}", [*emulator, *LEVELS[level], program, "--", *arguments], case


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--emulator", default=f"{ROOT}/target/release/longma run", metavar="COMMAND")
    parser.add_argument("--only", metavar="PART", default="", help="only runs whose title contains PART")
    parser.add_argument("--timeout", type=int, default=120, metavar="SECONDS", help="for each run (default 120)")
    options = parser.parse_args()
    emulator = shlex.split(options.emulator)
    passed = failed = left_out = 0
    sources = {f"debian {name}": functools.partial(debian_runs, name, "") for name in LIST["debian"]}
    sources |= {f"compiler {name}": functools.partial(debian_runs, name, "compiler") for name in LIST["compiler"]}
    sources |= {"esbuild": esbuild_runs}
    for source, runs in sources.items():
        try:
            for title, command, case in runs(emulator):
                if options.only in title:
                    wrong = verdict(command, case, options.timeout)
                    passed, failed = passed + (not wrong), failed + bool(wrong)
                    print(f"{'FAIL' if wrong else 'ok  '} {title}{': ' + wrong if wrong else ''}", flush=True)
        except Absent as error:
            left_out += 1
            print(f"skipped: {source}: {error}", flush=True)
    print(f"packages: {passed} passed, {failed} failed")
    # Without a network there is nothing to run, which is not a failure.
    sys.exit(1 if failed or not (passed or left_out) else 0)


if __name__ == "__main__":
    main()
