"""The programs of a SPEC CPU tree: finds them, builds them for an instruction set, and prepares their runs.

A tree has benchspec/SUITE/NNN.name with src, Spec/object.pm and data/{all,test,train,ref}/{input,output}, as SPEC's installer writes it.
"""

import concurrent.futures
import dataclasses
import hashlib
import importlib.machinery
import importlib.util
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

from children import GUESTS, ROOT, Failure

READER = ROOT / "bench" / "spec_object.pl"
# The integer programs of CPU2006, whose suites share a folder. CPU2000 has a folder for each suite.
INTEGER_2006 = {"400", "401", "403", "429", "445", "456", "458", "462", "464", "471", "473", "483"}
# Flags that SPEC's tools give each program, and portability flags that SPEC's configuration files for 64-bit Linux have.
PORTABILITY = {
    "CPU2006": "-DSPEC_CPU -DNDEBUG -DSPEC_CPU_LP64",
    "CINT2000": "-DSPEC_CPU2000_LP64",
    "CFP2000": "-DSPEC_CPU2000_LP64",
    "400.perlbench": "-DSPEC_CPU_LINUX_X64",
    "462.libquantum": "-DSPEC_CPU_LINUX",
    "481.wrf": "-DSPEC_CPU_CASE_FLAG -DSPEC_CPU_LINUX",
    "483.xalancbmk": "-DSPEC_CPU_LINUX",
}
# The programs are older than today's compilers: earlier language versions, and declarations that are now errors.
LANGUAGES = {
    "c": ["-std=gnu89", "-fcommon", "-fno-strict-aliasing", "-w"],
    "cxx": ["-std=gnu++98", "-fno-strict-aliasing", "-w"],
    "fortran": ["-std=legacy", "-w"],
}
SUFFIXES = {".c": "c", ".cc": "cxx", ".cpp": "cxx", ".cxx": "cxx", ".C": "cxx"} | dict.fromkeys([".f", ".F", ".f90", ".F90"], "fortran")
# GNU compilers are called PREFIX-gcc; Debian has them as packages gcc-PREFIX.
PREFIXES = {"loongarch64": "loongarch64-linux-gnu", "mips64el": "mips64el-linux-gnuabi64", "x86_64": "x86_64-linux-gnu"}
BUILD_LIMIT_S = 1800


@dataclasses.dataclass
class Program:
    """A program of the tree: its folder, suite, and whether it belongs to the floating-point programs."""

    name: str
    folder: pathlib.Path
    floating: bool


def programs(tree, size, only):
    """The programs of a tree in the order of their numbers."""
    suites = tree / "benchspec"
    if not suites.is_dir():
        raise Failure(f"{tree} has no folder benchspec: give the folder into which SPEC CPU was installed, the one that contains benchspec")
    folders = [p for suite in sorted(suites.iterdir()) if suite.is_dir() for p in suite.iterdir() if re.fullmatch(r"\d{3}\.\w+", p.name)]
    if not folders:
        raise Failure(f"{suites} contains no programs: expected {suites}/CPU2006/401.bzip2 or similar; install SPEC CPU with its install.sh")
    found = [program(folder) for folder in sorted(folders, key=lambda folder: folder.name)]
    wanted = [part for part in only.split(",") if part]
    for part in wanted:
        if not any(part in one.name for one in found):
            raise Failure(f"no program's name contains '{part}': there are {', '.join(one.name for one in found)}")
    # 998.specrand and 999.specrand only check the installation.
    found = [one for one in found if any(part in one.name for part in wanted) or not wanted and not one.name.endswith("specrand")]
    for one in found:
        check(one, size)
    return found


def program(folder):
    suite = folder.parent
    lists = {path.stem.lower(): path.read_text(errors="replace") for path in suite.glob("*.bset")}
    listed = {kind: any(kind in stem and re.search(rf"\b{re.escape(folder.name)}\b", text) for stem, text in lists.items()) for kind in ("int", "fp")}
    if suite.name.upper().startswith(("CINT", "CFP")):
        floating = suite.name.upper().startswith("CFP")
    elif listed["int"] != listed["fp"]:
        floating = listed["fp"]
    else:
        floating = folder.name[:3] not in INTEGER_2006
    return Program(folder.name, folder, floating)


def check(one, size):
    """Refuses a program of which a part is missing."""
    sizes = sorted(path.parent.name for path in one.folder.glob("data/*/input") if path.parent.name != "all")
    if not (one.folder / "Spec" / "object.pm").is_file():
        raise Failure(f"{one.folder}/Spec/object.pm is missing: install SPEC CPU again, or leave the program out with --only")
    if not (one.folder / "src").is_dir():
        raise Failure(f"{one.folder}/src is missing: install SPEC CPU again, or leave the program out with --only")
    if size not in sizes:
        raise Failure(f"{one.folder}/data/{size}/input is missing: give --size {' or '.join(sizes) or 'of data that are there'}, or install it")


def prepare(one, size, folder):
    """Copies the inputs of a program into a new folder; returns what object.pm says about the program."""
    if shutil.which("perl") is None:
        raise Failure("perl is missing, which reads object.pm: apt install perl")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for part in ("all", size):
        if (one.folder / "data" / part / "input").is_dir():
            shutil.copytree(one.folder / "data" / part / "input", folder, dirs_exist_ok=True)
    command = ["perl", READER, (one.folder / "Spec" / "object.pm").resolve(), size, "./program"]
    try:
        read = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=60)
    except subprocess.TimeoutExpired:
        raise Failure(f"{one.name}: its object.pm took over 60 s; leave the program out with --only") from None
    if read.returncode:
        raise Failure(f"{one.name}: cannot read its object.pm: {read.stderr.strip()}; leave the program out with --only")
    try:
        described = json.loads(read.stdout)
    except json.JSONDecodeError:
        described = None
    if not isinstance(described, dict) or "commands" not in described:
        raise Failure(f"{one.name}: its object.pm prints text or exits; leave the program out with --only")
    if not described["commands"] or not described["sources"]:
        what = "commands for size " + size if described["sources"] else "sources"
        raise Failure(f"{one.name}: its object.pm has no {what}; give another --size or leave the program out with --only")
    for given in described["commands"]:
        # As in SPEC's tools, an argument with spaces is several.
        given["args"] = shlex.split(" ".join(map(str, given["args"])))
    named = [given[part] for given in described["commands"] for part in ("input", "output", "error") if given[part]]
    for name in [*described["sources"], *named]:
        if os.path.isabs(name) or os.path.normpath(name).split(os.sep)[0] == os.pardir:
            raise Failure(f"its object.pm names {name}, outside the run's folder: leave the program out with --only")
    return described


def guests_build():
    """guests/build as a module, which installs zig and has the options for each architecture."""
    loader = importlib.machinery.SourceFileLoader("guests_build", str(GUESTS / "build"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.path.insert(0, str(GUESTS))
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


class Builder:
    """Builds programs with zig or GNU compilers."""

    def __init__(self, compiler, optimization, more, only_for):
        """`more` has flags for all programs, `only_for` those of single programs."""
        self.compiler, self.optimization, self.more, self.only_for = compiler, optimization, more, only_for
        self.guests = guests_build()
        self.zig = None

    def commands(self, architecture, languages):
        """The compiler of each language, and the version of the first."""
        if self.compiler == "zig" and "fortran" not in languages:
            try:
                self.zig = self.zig or self.guests.zig()
            except self.guests.Failure as failure:
                raise Failure(str(failure)) from None
            machine = self.guests.LOONGARCH if architecture == "loongarch64" else self.guests.TRANSLATED[architecture]
            # zig traps undefined behaviour, which these programs have.
            both = [*machine, "-fno-sanitize=undefined"]
            return {"c": [*self.zig, "cc", *both], "cxx": [*self.zig, "c++", *both]}, f"zig {self.guests.LIST['build']['ziglang']}"
        prefix = PREFIXES[architecture]
        names = {"c": f"{prefix}-gcc", "cxx": f"{prefix}-g++", "fortran": f"{prefix}-gfortran"}
        for language in sorted(languages | {"c"}):
            if shutil.which(names[language]) is None:
                package = names[language].removeprefix(f"{prefix}-")
                why = "zig has no Fortran compiler: " if self.compiler == "zig" else ""
                debian = f"{package}-{prefix.replace('_', '-')}"
                raise Failure(f"{why}{names[language]} is missing: apt install {debian}, or leave such programs out with --only")
        version = subprocess.run([names["c"], "-dumpfullversion"], capture_output=True, text=True, timeout=60).stdout.strip()
        return {language: [name] for language, name in names.items()}, f"gcc {version}"

    def flags(self, one, described, language):
        portable = [PORTABILITY.get(one.folder.parent.name, ""), PORTABILITY.get(one.name, "")]
        own = [described["flags"].get(kind) or "" for kind in ("all", language)]
        given = [*self.more, *self.only_for.get(one.name, [])]
        return [self.optimization, *LANGUAGES[language], *shlex.split(" ".join(portable + own + given))]

    def build(self, one, described, architecture, folder):
        """Builds a program, unless its sources, flags and compiler are those of the last build; returns its file and what it was built from."""
        sources = [one.folder / "src" / name for name in described["sources"]]
        compiled = [source for source in sources if source.suffix in SUFFIXES]
        for source in sources:
            if not source.is_file():
                raise Failure(f"{one.name}: {source} is missing, which object.pm names: install SPEC CPU again")
        languages = {SUFFIXES[source.suffix] for source in compiled}
        compilers, version = self.commands(architecture, languages)
        flags = {language: self.flags(one, described, language) for language in sorted(languages)}
        made_of = {"compiler": version, "flags": {k: shlex.join(v) for k, v in flags.items()}, "sources": digest_of(one.folder / "src")}
        output, stamp = folder / "program", folder / "built.json"
        if output.exists() and stamp.exists() and json.loads(stamp.read_text()) == made_of:
            return output, made_of
        folder.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        objects = [folder / f"{index}.o" for index in range(len(compiled))]
        include = [f"-I{folder_of}" for folder_of in sorted({one.folder / "src", *(source.parent for source in compiled)})]

        def compile_one(pair):
            source, target = pair
            language = SUFFIXES[source.suffix]
            self.call(one, [*compilers[language], *flags[language], *include, "-c", "-o", target, source], one.folder / "src", folder)

        # Modules of Fortran must be compiled before the files that use them, so the order of object.pm is kept.
        with concurrent.futures.ThreadPoolExecutor(1 if "fortran" in languages else os.cpu_count()) as pool:
            list(pool.map(compile_one, zip(compiled, objects, strict=True)))
        linker = next(language for language in ("cxx", "fortran", "c") if language in languages)
        self.call(one, [*compilers[linker], self.optimization, "-static", "-o", output, *objects, "-lm"], folder, folder)
        for path in objects:
            path.unlink()
        stamp.write_text(json.dumps(made_of))
        return output, made_of

    def call(self, one, command, cwd, folder):
        if str(command[0]).endswith("gfortran"):
            command = [*command, f"-J{folder}"]
        made = subprocess.run(command, cwd=cwd, env=self.guests.zig_environment(), capture_output=True, text=True, errors="replace", timeout=BUILD_LIMIT_S)
        if made.returncode:
            (folder / "errors.txt").write_text(f"{shlex.join(map(str, command))}\n{made.stderr}")
            first = next((line for line in made.stderr.splitlines() if "error" in line), made.stderr.strip()[:300])
            raise Failure(f"{one.name} does not compile: {first}\nAll errors: {folder}/errors.txt. Give missing flags with --flags {one.name}=-DNAME")


def digest_of(path):
    """The SHA-256 of a file, or of the names and contents of all files of a folder."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    whole = hashlib.sha256()
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        whole.update(f"{file.relative_to(path)}\0{digest_of(file)}\0".encode())
    return whole.hexdigest()


def expected_outputs(one, size):
    """The expected outputs of a program by file name."""
    folders = [one.folder / "data" / part / "output" for part in ("all", size)]
    return {path.relative_to(folder).as_posix(): path for folder in folders if folder.is_dir() for path in sorted(folder.rglob("*")) if path.is_file()}


def tolerance(given, size, name):
    """The tolerance for a file: object.pm has a number, or numbers by size, by file name, or by both."""
    if isinstance(given, dict):
        given = given.get(size, given)
    if isinstance(given, dict):
        given = given.get(name, given.get("default"))
    try:
        return abs(float(given))
    except (TypeError, ValueError):
        return 0.0


def differs(found, expected, absolute, relative):
    """Where an output differs from the expected one beyond the tolerances; empty if nowhere."""
    if not found.is_file():
        return "is missing"
    ours, theirs = found.read_bytes(), expected.read_bytes()
    if ours == theirs:
        return ""
    ours, theirs = (data.decode(errors="replace").splitlines() for data in (ours, theirs))
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False), 1):
        words, wanted = one.split(), other.split()
        if len(words) != len(wanted) or not all(near(a, b, absolute, relative) for a, b in zip(words, wanted, strict=True)):
            return f"differs in line {number}"
    return "" if len(ours) == len(theirs) else f"has {len(ours)} lines instead of {len(theirs)}"


def near(one, other, absolute, relative):
    if one == other:
        return True
    try:
        a, b = (float(word.replace("D", "E").replace("d", "e")) for word in (one, other))
    except ValueError:
        return False
    return math.isfinite(a) and math.isfinite(b) and abs(a - b) <= max(absolute, relative * abs(b))
