#!/usr/bin/env python3
"""Checks that the compiled sample plug-ins in C are what their sources give with the guests' zig, and that those in Rust compile.

Other versions of the Rust compiler give other modules, so these are not compared.
"""

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "crates/model/plugin/samples"
ZIG = ["cc", "-target", "wasm32-freestanding", "-mcpu=mvp", "-O2", "-nostdlib", "-Wl,--no-entry", "-Wl,--strip-all"]
RUST = ["--edition", "2024", "--target", "wasm32-unknown-unknown", "--crate-type", "cdylib", "-O", "-C", "panic=abort", "-C", "strip=symbols"]


def guests_build():
    """Loads guests/build as a module, for zig."""
    loader = importlib.machinery.SourceFileLoader("guests_build", str(ROOT / "guests/build"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def has_rust_target():
    printed = subprocess.run(["rustc", "--print", "target-libdir", "--target", "wasm32-unknown-unknown"], capture_output=True, text=True, timeout=60)
    return printed.returncode == 0 and pathlib.Path(printed.stdout.strip()).is_dir()


def main():
    builder = guests_build()
    passed = 0
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "compiled.wasm"
        for source in sorted(SAMPLES.glob("*.c")):
            environment = builder.zig_environment()
            subprocess.run([*builder.zig(), *ZIG, "-o", output, source.name], cwd=SAMPLES, env=environment, check=True, timeout=300)
            if output.read_bytes() != source.with_suffix(".wasm").read_bytes():
                sys.exit(f"plugin_samples: {source.name} gives another module: compile it as docs/src/reference/plug-ins.md says and commit the module")
            passed += 1
        if not has_rust_target():
            print("skipped: the sample in Rust: rustup target add wasm32-unknown-unknown")
        else:
            for source in sorted(SAMPLES.glob("*.rs")):
                subprocess.run(["rustc", *RUST, "-o", output, source.name], cwd=SAMPLES, check=True, timeout=300)
                passed += 1
    print(f"plugin_samples: {passed} passed, 0 failed")


if __name__ == "__main__":
    main()
