#!/usr/bin/env python3
"""Runs guests that are dynamically linked with glibc and musl, and compares their output.

The C libraries are third-party code, so they are not committed: glibc is fetched (Debian's libc6-loong64-cross) and musl is built from
fetched source, under target/. Each program runs twice: directly, so that the emulator loads its interpreter, and through the dynamic loader
as the program. Debian's glibc uses LSX, which QEMU before 9.0 cannot run.
Source: ELF gABI (PT_INTERP); musl's Makefile for the build of libc.so.
"""

import argparse
import importlib.machinery
import importlib.util
import itertools
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import debian_package

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILT = ROOT / "target" / "dynamic"
GUESTS = ["hello", "integer_mix", "hashing", "fft", "matmul", "threads", "signals", "unix_process", "unix_copy"]
MACHINE = "-mcpu=generic_la64+d-lsx"


def guest_builder():
    """Loads guests/build as a module, for zig, the flags and the list of guests."""
    path = str(ROOT / "guests" / "build")
    loader = importlib.machinery.SourceFileLoader("guest_builder", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("guest_builder", loader))
    loader.exec_module(module)
    return module


def glibc():
    """Fetches glibc for LoongArch; returns its loader and its library folder."""
    folder = BUILT / "glibc"
    debian_package.unpack(["libc6-loong64-cross"], folder)
    libraries = folder / "usr" / "loongarch64-linux-gnu" / "lib"
    return libraries / "ld-linux-loongarch-lp64d.so.1", libraries


def musl(builder, zig):
    """Builds musl's libc.so, which is also its loader; returns it and its folder."""
    folder = BUILT / "musl"
    library = folder / "lib" / "libc.so"
    if not library.exists():
        debian_package.unpack(["musl"], folder, source=True)
        library.parent.mkdir(exist_ok=True)
        partial = library.with_name("libc.partial")
        print("dynamic: building musl's libc.so (about a minute)", file=sys.stderr)
        link_musl(builder, zig, next(folder.glob("musl-*")), partial)
        partial.rename(library)
    return library, library.parent


def link_musl(builder, zig, source, output):
    """Performs the steps of musl's configure and Makefile for loongarch64."""
    arch, made = source / "arch" / "loongarch64", source / "obj" / "include" / "bits"
    made.mkdir(parents=True, exist_ok=True)
    (source / "obj" / "src" / "internal").mkdir(parents=True, exist_ok=True)
    types = subprocess.run(
        ["sed", "-f", source / "tools" / "mkalltypes.sed", arch / "bits" / "alltypes.h.in", source / "include" / "alltypes.h.in"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    (made / "alltypes.h").write_bytes(types.stdout)
    calls = (arch / "bits" / "syscall.h.in").read_text()
    again = "".join(line.replace("__NR_", "SYS_") + "\n" for line in calls.splitlines() if "__NR_" in line)
    (made / "syscall.h").write_text(calls + again)
    version = (source / "VERSION").read_text().strip()
    (source / "obj" / "src" / "internal" / "version.h").write_text(f'#define VERSION "{version}"\n')
    target = ["-target", "loongarch64-linux-musl", MACHINE]
    runtime = compiler_runtime(builder, zig, source / "obj", target)
    flags = "-std=c99 -nostdinc -ffreestanding -frounding-math -fno-strict-aliasing -D_XOPEN_SOURCE=700 -Os".split()
    flags += "-fno-stack-protector -fno-sanitize=all -fomit-frame-pointer -fPIC -w -nostdlib -shared -s".split()
    include = "arch/loongarch64 arch/generic obj/src/internal src/include src/internal obj/include include".split()
    link = ["-Wl,-e,_dlstart", "-Wl,-Bsymbolic", "-o", output]
    builder.run([*zig, "cc", *target, *flags, *(f"-I{i}" for i in include), *link, *musl_sources(source), runtime],
                cwd=source, env=builder.zig_environment())  # fmt: skip


def compiler_runtime(builder, zig, folder, target):
    """Zig's compiler support library (quad-precision arithmetic for long double) without memcpy and similar functions. They are hidden
    symbols there and would hide musl's own from programs.
    """
    output = subprocess.run([*zig, "env"], check=True, capture_output=True, text=True, timeout=60).stdout
    library = pathlib.Path(re.search(r'lib_dir"?\s*[=:]\s*"([^"]+)"', output).group(1))
    shutil.copytree(library / "compiler_rt", folder / "compiler_rt", dirs_exist_ok=True)
    whole = (library / "compiler_rt.zig").read_text()
    less = whole.replace("if (builtin.object_format != .c) {", "if (false) {")
    if less == whole:
        raise builder.Failure("dynamic: zig's compiler_rt.zig is not as expected: use the ziglang that guests.toml names")
    (folder / "compiler_rt.zig").write_text(less)
    made = folder / "librt.a"
    builder.run([*zig, "build-lib", folder / "compiler_rt.zig", *target, "-O", "ReleaseSmall", "-fPIC", f"-femit-bin={made}"],
                env=builder.zig_environment())  # fmt: skip
    return made


def musl_sources(source):
    """All generic source files, replaced by the architecture-specific ones where they exist."""
    chosen = {}
    for file in [*source.glob("src/*/*.c"), *source.glob("src/malloc/mallocng/*.c")]:
        chosen[file.with_suffix("")] = file
    for file in source.glob("src/*/loongarch64/*.[csS]"):
        chosen[file.parent.parent / file.stem] = file
    chosen = [*chosen.values(), source / "ldso" / "dlstart.c", source / "ldso" / "dynlink.c"]
    return sorted(str(file.relative_to(source)) for file in chosen)


def compile_guest(builder, zig, name, library, loader, folder):
    """Compiles a dynamic program whose interpreter and library path are in target/."""
    output = BUILT / f"{name}-{library}"
    target = {"glibc": "loongarch64-linux-gnu.2.36", "musl": "loongarch64-linux-musl"}[library]
    link = ["-dynamic", "-s", f"-Wl,--dynamic-linker={loader}", f"-Wl,-rpath,{folder}", "-lm"]
    builder.run([*zig, "cc", "-target", target, MACHINE, *builder.FLAGS, *link, "-o", output, f"{name}.c"],
                cwd=ROOT / "guests" / "c", env=builder.zig_environment())  # fmt: skip
    return output


def verdict(command, expected, timeout_s):
    """The problem with a run, or an empty string."""
    try:
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return f"took over {timeout_s} s"
    if run.returncode != 0:
        message = run.stderr.decode(errors="replace").strip().splitlines()
        return f"ended with {run.returncode}: {message[-1] if message else ''}"
    got, want = run.stdout.decode(errors="replace").splitlines(), expected.decode().splitlines()
    differing = [f"'{g}', not '{w}'" for g, w in itertools.zip_longest(got, want, fillvalue="") if g != w]
    return f"printed {differing[0]}" if differing else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--emulator", default=f"{ROOT}/target/release/longma run", metavar="COMMAND")
    parser.add_argument("--library", choices=["glibc", "musl"], help="only this one")
    parser.add_argument("--timeout", type=int, default=60, metavar="SECONDS", help="for each run (default 60)")
    options = parser.parse_args()
    words = shlex.split(options.emulator)
    separator = ["--"] if "run" in words else []
    passed = failed = 0
    builder = guest_builder()
    try:
        zig = builder.zig()
        for library in [options.library] if options.library else ["glibc", "musl"]:
            loader, folder = glibc() if library == "glibc" else musl(builder, zig)
            for name in GUESTS:
                program = compile_guest(builder, zig, name, library, loader, folder)
                expected = (ROOT / "guests" / "expected" / f"{name}.txt").read_bytes()
                small = builder.LIST["c"][name]["small"]
                modes = {
                    "by its interpreter": [*words, program, *(separator if small else []), *small],
                    "by the loader": [*words, loader, *separator, "--library-path", folder, program, *small],
                }
                for mode, command in modes.items():
                    wrong = verdict(command, expected, options.timeout)
                    passed, failed = passed + (not wrong), failed + bool(wrong)
                    print(f"{'FAIL' if wrong else 'ok  '} {library} {name}, {mode}{': ' + wrong if wrong else ''}", flush=True)
    except (builder.Failure, debian_package.Failure, OSError) as error:
        sys.exit(str(error))
    print(f"dynamic: {passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
