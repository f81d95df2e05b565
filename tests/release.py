#!/usr/bin/env python3
"""What users install: the static command in its archive, in an empty container, by `cargo install`, and in a wheel.

Builds the command with the release profile for musl, which takes minutes. The container is built and run by Debian's buildah, as the user who
runs this.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = "x86_64-unknown-linux-musl"
HELLO = ROOT / "guests/prebuilt/loongarch64/hello"
MAX_ARCHIVE_BYTES = 60 << 20

passed = 0


def good(what):
    global passed
    passed += 1
    print(f"ok: {what}", flush=True)


def fail(why):
    print(f"release: {why}\nrelease: {passed} passed, 1 failed")
    sys.exit(1)


def run(command, timeout=600, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout, **options)
    if done.returncode:
        fail(f"{' '.join(map(str, command))} failed with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def build(target_dir):
    """The static command, and how long its build took."""
    run(["rustup", "target", "add", TARGET])
    begin = time.monotonic()
    run(["cargo", "build", "--release", "--locked", "-p", "longma-cli", "--target", TARGET, "--target-dir", target_dir], timeout=3600, cwd=ROOT)
    longma = target_dir / TARGET / "release/longma"
    print(f"built {longma} in {time.monotonic() - begin:.0f} s, {longma.stat().st_size >> 20} MiB")
    headers = run(["readelf", "--program-headers", "--dynamic", longma])
    if "INTERP" in headers or "NEEDED" in headers:
        fail(f"{longma} is not static:\n{headers}")
    good("the command is static")
    return longma


def archive(longma, folder):
    """The archive, unpacked elsewhere."""
    name = f"longma-{TARGET}"
    run([ROOT / ".ci/archive", longma, name, folder])
    run(["sha256sum", "--check", f"{name}.tar.gz.sha256"], cwd=folder)
    with tempfile.TemporaryDirectory() as elsewhere:
        with tarfile.open(folder / f"{name}.tar.gz") as packed:
            packed.extractall(elsewhere, filter="data")
        unpacked = pathlib.Path(elsewhere, name)
        environment = {"PATH": "/usr/bin:/bin"}
        version = run([unpacked / "longma", "--version"], cwd=elsewhere, env=environment)
        if (said := run([unpacked / "longma", "run", HELLO], cwd=elsewhere, env=environment)) != "hello, world\n":
            fail(f"hello printed {said!r}")
        run(["bash", "-n", unpacked / "completions/longma.bash"])
        page = (unpacked / "man/longma.1").read_text()
        if ".SH" not in page or not (unpacked / "man/longma-run.1").exists():
            fail("the manual pages are incomplete")
        if "longma" not in (unpacked / "completions/longma.fish").read_text():
            fail("the completions for fish are empty")
    if (size := (folder / f"{name}.tar.gz").stat().st_size) > MAX_ARCHIVE_BYTES:
        fail(f"the archive has {size} bytes, more than {MAX_ARCHIVE_BYTES}")
    good(f"the archive of {size >> 20} MiB has the command, manual pages and completions")
    return folder / name, version


def guests(longma):
    print(run([ROOT / "tests/guests.py", "--levels", "--emulator", f"{longma} run"], timeout=1200).strip().splitlines()[-1])
    good("the static command runs every guest at every level")


def container(unpacked, version):
    """An image from scratch with the command alone."""
    if not shutil.which("buildah"):
        print("skipped: the container was not built: install buildah")
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        scratch = pathlib.Path(folder)
        shutil.copytree(unpacked, scratch / "archive")
        shutil.copy(ROOT / "Containerfile", scratch)
        buildah = ["buildah", "--root", scratch / "storage", "--runroot", scratch / "run", "--storage-driver", "vfs"]
        build = [*buildah, "build", "--isolation", "chroot", "--build-arg", "ARCHIVE=archive", "-t", "longma", "."]
        done = subprocess.run(list(map(str, build)), cwd=scratch, capture_output=True, text=True, timeout=600)
        if done.returncode:
            print(f"skipped: this host cannot build a container: {done.stderr.strip().splitlines()[-1]}")
            return
        container = run([*buildah, "from", "localhost/longma"]).strip()
        # With this isolation buildah needs neither cgroups nor limits, which podman may not set inside a container or a virtual machine.
        # It does not add the entry point.
        entry = run([*buildah, "inspect", "--format", "{{index .OCIv1.Config.Entrypoint 0}}", container]).strip()
        start = [*buildah, "run", "--isolation", "chroot", container, "--", entry]
        if (said := run([*start, "--version"])) != version:
            fail(f"in the container, --version printed {said!r}")
        run([*start, "experiment", "list"])
        if (hello := run([*start, "run", "guests:hello"])) != "hello, world\n":
            fail(f"in the container, hello printed {hello!r}")
        run([*buildah, "rm", container])
        good("an empty container with the command alone runs a shipped guest")


def cargo_install(target_dir, version):
    with tempfile.TemporaryDirectory() as folder:
        words = ["cargo", "install", "--path", "crates/cli", "--locked", "--root", folder, "--target", TARGET, "--target-dir", target_dir]
        run(words, timeout=3600, cwd=ROOT)
        if (said := run([f"{folder}/bin/longma", "--version"], cwd=folder)) != version:
            fail(f"cargo install's command prints {said!r}")
    good("cargo install --path crates/cli installs it")


def wheel(longma):
    """The package with the command inside, built by maturin from a copy and installed into a separate environment."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        # The crates that the extension is built from are found relative to it.
        for name in ("crates", "experiments", "guests"):
            (scratch / name).symlink_to(ROOT / name)
        shutil.copy(ROOT / "Cargo.toml", scratch)
        shutil.copytree(ROOT / "python", scratch / "python", ignore=shutil.ignore_patterns("target"))
        (scratch / "python/longma/bin").mkdir(exist_ok=True)
        shutil.copy(longma, scratch / "python/longma/bin/longma")
        venv = scratch / "venv"
        run([sys.executable, "-m", "venv", venv])
        build = os.environ | {"CARGO_PROFILE_RELEASE_OPT_LEVEL": "1", "CARGO_PROFILE_RELEASE_LTO": "off"}
        run([venv / "bin/pip", "wheel", "--no-deps", "-w", scratch / "wheels", scratch / "python"], timeout=3000, env=build)
        (built,) = (scratch / "wheels").glob("*.whl")
        run([venv / "bin/pip", "install", "-q", built], timeout=1200)
        program = f"from longma.command import call, command; print(command()); print(call(['run', {str(HELLO)!r}]))"
        said = run([venv / "bin/python", "-c", program], cwd=scratch, env={"PATH": "/usr/bin:/bin"})
        if not said.startswith(str(venv)) or "hello, world" not in said:
            fail(f"the package printed {said!r}")
    good(f"{built.name} installs into an empty environment and finds its own command")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target-dir", type=pathlib.Path, default=ROOT / "target", help="where cargo builds")
    options = parser.parse_args()
    longma = build(options.target_dir)
    folder = options.target_dir / "archive"
    unpacked, version = archive(longma, folder)
    guests(longma)
    container(unpacked, version)
    cargo_install(options.target_dir, version)
    wheel(longma)
    print(f"release: {passed} passed, 0 failed")


if __name__ == "__main__":
    main()
