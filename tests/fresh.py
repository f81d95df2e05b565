#!/usr/bin/env python3
"""A second build does nothing: asks cargo, not a clock.

By default, builds all tests again with the settings of the caller, which has built them. With --run, clones the repository, uncommitted changes
included, into a new folder with an empty HOME, and runs `./run --version` twice there.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIMEOUT_S = 3000


def clone(folder):
    """Copies what git tracks, and new files that it does not ignore, as they are now; without git, all but build output."""
    tracked = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(tracked, capture_output=True)
    if done.returncode:
        output = shutil.ignore_patterns("target", "results", ".venv", "__pycache__")
        shutil.copytree(ROOT, folder, dirs_exist_ok=True, symlinks=True, ignore=output)
        return
    for name in map(os.fsdecode, filter(None, done.stdout.split(b"\0"))):
        # A deleted file is still tracked.
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def environment(home):
    """An empty HOME, without settings that change a build. The toolchain stays where it is."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CARGO", "RUST", "LONGMA"))}
    real = pathlib.Path.home()
    kept["HOME"] = str(home)
    kept["RUSTUP_HOME"] = os.environ.get("RUSTUP_HOME", str(real / ".rustup"))
    kept["PATH"] += f":{real}/.cargo/bin"
    return kept


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, **options)
    if done.returncode:
        sys.exit(f"fresh: {' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return done


def stale(stderr):
    """The crates that `cargo -v` did not find fresh."""
    return re.findall(r"^ *(?:Dirty|Compiling|Checking) ([\w-]+ v\S+)", stderr, re.M)


def missing_watched(target):
    """Paths that a build script of ours asks cargo to watch and that do not exist: cargo reruns such a script at every build."""
    missing = []
    for output in target.glob("*/build/longma-*/output"):
        for path in re.findall(r"^cargo:{1,2}rerun-if-changed=(.*)$", output.read_text(), re.M):
            # Relative paths are relative to the crate's folder, which the script's name does not tell.
            if path.startswith("/") and not os.path.exists(path):
                missing.append(f"{output.parent.name} watches {path}")
    return missing


def check(target):
    """What cargo says of a second build of all tests."""
    again = run(["cargo", "test", "--workspace", "--all-targets", "--locked", "--no-run", "-v"], cwd=ROOT)
    if stale(again.stderr):
        sys.exit(f"fresh: cargo test --no-run a second time did: {stale(again.stderr)}\n{again.stderr[-4000:]}")
    if missing := missing_watched(target):
        sys.exit("fresh: " + "; ".join(missing))
    if other := other_features():
        sys.exit(f"fresh: with -p longma-cli, cargo builds these again, with features that differ from the workspace's: {other}")
    return 3


def other_features():
    """Crates of the command whose features are others when the whole workspace is built, so that each build does the other's again."""
    tree = ["cargo", "tree", "--locked", "--edges", "normal,build", "--prefix", "none", "--format", "{p} {f}"]
    command, workspace = (
        {line.removesuffix(" (*)") for line in run([*tree, *of], cwd=ROOT).stdout.splitlines()} for of in (["-p", "longma-cli"], ["--workspace"])
    )
    return sorted(command - workspace)


def tour(folder, env):
    """`./run --version` twice, and then what cargo says of the same build."""
    script = str(folder / "run")
    first = run([script, "--version"], cwd=folder, env=env)
    second = run([script, "--version"], cwd=folder, env=env)
    if second.stderr or second.stdout != first.stdout:
        sys.exit(f"fresh: ./run --version a second time printed: {second.stderr}{second.stdout}")
    env = env | {"PATH": f"{env['HOME']}/.cargo/bin:{env['PATH']}"}
    # The features that `./run` builds at first.
    build = ["cargo", "build", "-v", "--profile", "quick", "--locked", "-p", "longma-cli", "--no-default-features", "--message-format", "json"]
    again = run(build, cwd=folder, env=env)
    units = [json.loads(line) for line in again.stdout.splitlines()]
    rebuilt = [unit["package_id"] for unit in units if unit.get("reason") == "compiler-artifact" and not unit["fresh"]]
    if rebuilt or stale(again.stderr):
        sys.exit(f"fresh: after ./run --version, cargo built {rebuilt or stale(again.stderr)}")
    return 3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target-dir", type=pathlib.Path, default=ROOT / "target", help="where the tests were built")
    parser.add_argument("--run", action="store_true", help="run ./run --version twice, from nothing: takes minutes")
    options = parser.parse_args()
    if not options.run:
        passed = check(options.target_dir)
    else:
        with tempfile.TemporaryDirectory(prefix="longma-fresh-") as scratch:
            folder, home = pathlib.Path(scratch, "clone"), pathlib.Path(scratch, "home")
            folder.mkdir()
            home.mkdir()
            clone(folder)
            passed = tour(folder, environment(home))
    print(f"fresh: {passed} passed, 0 failed")


if __name__ == "__main__":
    main()
