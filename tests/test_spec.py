"""Tests bench/spec on a tree of free programs with the layout of SPEC CPU. Needs a built longma, ziglang and perl.

zig builds its C library once for each architecture, which takes minutes: x86-64 is tested only if LONGMA_LONG_TESTS is set.
"""

import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
SPEC = ROOT / "bench" / "spec"
sys.path.insert(0, str(ROOT / "bench"))
import spec_tree
from children import Failure

FOLDERS = [os.environ.get("CARGO_TARGET_DIR", ROOT / "target/test"), ROOT / "target"]
BUILT = [path for folder in FOLDERS for profile in ("release", "debug") if (path := pathlib.Path(folder) / profile / "longma").exists()]
LONG = bool(os.environ.get("LONGMA_LONG_TESTS"))
# Where object.pm files state facts; the functions are those that they call.
OBJECT = """$benchnum = '{number}';
$benchname = '{name}';
$exename = '{name}';
$benchlang = 'C';
@base_exe = ($exename);
{tolerance}
@sources = qw({sources});
$need_math = 'yes';
$bench_flags = '{flags}';

sub invoke {{
    my ($me) = @_;
    my ($name, @rc);
    my $exe = $me->exe_file;
    for ($me->input_files_base) {{
        if (($name) = m/(.*)\\.in$/) {{
            my ($line) = main::read_file($_);
            push (@rc, {{ 'command' => $exe, 'args' => [split ' ', $line], 'input' => "$name.in", 'output' => "$name.out", 'error' => "$name.err" }});
        }}
    }}
    return @rc;
}}

1;
"""
# Adds the numbers of its standard input and of a file that all sizes share; in two files, in the C of 1989.
SUM = """#include <stdio.h>
long total(FILE *file);
int main() {
    FILE *shared = fopen("shared.txt", "r");
    volatile long spin;
    for (spin = 0; spin < 20000; spin++) ;
    if (!shared) return 3;
    printf("%ld\\n", total(stdin) + total(shared) + OFFSET);
    return 0;
}
"""
TOTAL = """#include <stdio.h>
long total(FILE *file) {
    long one, all = 0;
    while (fscanf(file, "%ld", &one) == 1) all += one;
    return all;
}
"""
# WebAssembly that exports `observe` and prefetches nothing.
MODULE = bytes.fromhex("0061736d01000000" "0107016003" "7e7e7f00" "03020100" "070b01076f6273657276650000" "0a040102000b")

MACHINE = """format = 1
extends = "loongson-3a5000"
name = "own"
title = "with a plug-in"
[caches.l3.prefetcher]
kind = "plugin"
module = "own.wasm"
source = "idea"
[sources.idea]
kind = "estimate"
title = "a test"
reasoning = "a test"
"""


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def stand_in(tree):
    """Writes a tree with two integer programs and one with floating point. `--size test` takes a second on a model."""
    suite = tree / "benchspec" / "CPU2006"
    write(suite / "int.bset", "901.sum 902.queens\n")
    write(suite / "fp.bset", "931.nbody\n")

    def program(name, sources, flags, inputs, outputs, tolerance=""):
        number, title = name.split(".")
        names = " ".join(source for source in sources if source.endswith(".c"))
        write(suite / name / "Spec" / "object.pm", OBJECT.format(number=number, name=title, sources=names, flags=flags, tolerance=tolerance))
        for file, text in sources.items():
            write(suite / name / "src" / file, text)
        for file, text in inputs.items():
            write(suite / name / "data" / file, text)
        for file, text in outputs.items():
            write(suite / name / "data" / "test" / "output" / file, text)
        write(suite / name / "data" / "ref" / "reftime", "ref\n9000\n")

    guest = {"guest.h": (ROOT / "guests/c/guest.h").read_text(), "longma.h": (ROOT / "guests/include/longma.h").read_text()}
    source = lambda name: (ROOT / "guests/c" / name).read_text().replace("../include/longma.h", "longma.h")
    program("901.sum", {"main.c": SUM, "total.c": TOTAL}, "-DOFFSET=1000", {"test/input/a.in": "1 2 3\n", "test/input/b.in": "4\n", "all/input/shared.txt": "10 20\n"}, {"a.out": "1036\n", "b.out": "1034\n"})
    program("902.queens", guest | {"queens.c": source("queens.c")}, "-std=gnu11", {"test/input/board.in": "6 60\n"}, {})
    program("931.nbody", guest | {"nbody.c": source("nbody.c")}, "-std=gnu11 -ffp-contract=off", {"test/input/steps.in": "2000\n"}, {}, "$reltol = 1e-4;")


class OnTree(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.tree = self.folder / "cpu2006"
        stand_in(self.tree)

    def spec(self, *more, longma=None):
        command = [SPEC, self.tree, "--work", self.folder / "work", "--longma", longma or BUILT[0], *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=900)

    def program(self, name):
        return self.tree / "benchspec" / "CPU2006" / name


@unittest.skipUnless(BUILT, "longma is not built")
class Tables(OnTree):
    SAMPLE = ["--sample", "every=50k,unit=5k"]

    def wrapped(self):
        """A longma that counts its runs, and is slow while there is a file `slow`."""
        path = self.folder / "longma"
        path.write_text(f'#!/bin/sh\nif [ "$1" = run ]; then echo x >> {self.folder}/runs; [ -e {self.folder}/slow ] && sleep 60; fi\nexec {BUILT[0]} "$@"\n')
        path.chmod(0o755)
        return path

    def test_all_tables_are_printed_and_exported_with_digests(self):
        (self.folder / "own.wasm").write_bytes(MODULE)
        machine = self.folder / "own.toml"
        machine.write_text(MACHINE)
        export = self.folder / "result.json"
        tables = "3,6,8,9" if LONG else "3,6,8"
        done = self.spec(*self.SAMPLE, "--tables", tables, "--machine", machine, "--export", export)
        self.assertEqual(done.returncode, 0, done.stderr)
        for text in (*(f"Table {table}:" for table in tables.split(",")), "901.sum", "integer, geometric mean", "floating point, geometric mean", "not SPEC results"):
            self.assertIn(text, done.stdout)
        result = json.loads(export.read_text())
        plugin = {"key": "caches.l3.prefetcher.module", "sha256": hashlib.sha256(MODULE).hexdigest(), "bytes": len(MODULE)}
        self.assertEqual([[plugin], []], [one["plugins"] for one in result["machines"]])
        self.assertEqual(result["problems"], {})
        runs = {(run["program"], run["architecture"], run["machine"]): run for run in result["runs"]}
        self.assertEqual(len(runs), 3 * (4 if LONG else 3))
        for run in runs.values():
            self.assertEqual(len(run["identity"]["executable"]), 64)
            self.assertGreater(run["figures"]["seconds"], 0)
        # 901.sum runs twice, too briefly for a sample, and has no interval. The other programs are sampled.
        self.assertEqual(len(runs["901.sum", "mips64el", str(machine)]["runs"]), 2)
        self.assertEqual(runs["901.sum", "mips64el", str(machine)]["figures"]["units"], 0)
        for architecture in ("mips64el", "x86_64") if LONG else ("mips64el",):
            queens = runs["902.queens", architecture, str(machine)]["figures"]
            self.assertGreater(queens["units"], 30)
            self.assertNotEqual(queens["instructions"], queens["source_instructions"])
        rows = {row[0]: row for row in result["tables"]["6"]["rows"]}
        latm, native = runs["902.queens", "mips64el", str(machine)]["figures"], runs["902.queens", "loongarch64", str(machine)]["figures"]
        self.assertEqual(rows["902.queens"][3], f"{100 * latm['source_instructions'] / native['instructions']:.2f}")
        self.assertEqual(rows["902.queens"][4], "-")

    def test_an_interrupted_command_continues_with_what_is_missing(self):
        longma, command = self.wrapped(), [*self.SAMPLE, "--tables", "3", "--only", "queens"]
        (self.folder / "slow").touch()
        # A shell that runs the tests in the background has them ignore the signal.
        restore = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        words = [SPEC, self.tree, "--work", self.folder / "work", "--longma", longma, *command]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=restore)
        deadline = time.monotonic() + 300
        while not (self.folder / "runs").exists() and time.monotonic() < deadline and child.poll() is None:
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=30)
        self.assertEqual(child.returncode, 130, errors)
        self.assertTrue(errors.endswith("bench/spec: stopped; run the same command again to continue\n"), errors)
        (self.folder / "slow").unlink()
        (self.folder / "runs").unlink()
        first = self.spec(*command, longma=longma)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertEqual((self.folder / "runs").read_text().count("x"), 2)
        again = self.spec(*command, longma=longma)
        self.assertEqual((again.returncode, again.stdout), (0, first.stdout))
        self.assertEqual((self.folder / "runs").read_text().count("x"), 2)

    def test_a_changed_source_runs_again_and_a_wrong_output_is_named(self):
        command = ["--tables", "3", "--only", "sum"]
        self.assertEqual(self.spec(*command).returncode, 0)
        source = self.program("901.sum") / "src" / "total.c"
        source.write_text(source.read_text().replace("all = 0", "all = 1"))
        done = self.spec(*command)
        self.assertEqual(done.returncode, 1)
        self.assertIn("901.sum, loongarch64 on loongson-3a5000: its output a.out differs in line 1", done.stderr)
        self.assertIn("901.sum", done.stdout)

    def test_a_program_that_does_not_compile_or_fails_does_not_stop_the_others(self):
        (self.program("902.queens") / "src" / "queens.c").write_text("int main() { return missing; }\n")
        (self.program("931.nbody") / "src" / "nbody.c").write_text("int main() { return 7; }\n")
        described = self.program("904.late") / "Spec" / "object.pm"
        shutil.copytree(self.program("901.sum"), self.program("904.late"))
        described.write_text(described.read_text().replace("[split ' ', $line]", "['\"']"))
        done = self.spec("--tables", "3")
        self.assertEqual(done.returncode, 1)
        self.assertIn("902.queens does not compile: ", done.stderr)
        self.assertIn("--flags 902.queens=-DNAME", done.stderr)
        self.assertIn("931.nbody, loongarch64 on loongson-3a5000: ended with status 7", done.stderr)
        self.assertIn("904.late, loongarch64 on loongson-3a5000: No closing quotation", done.stderr)
        self.assertRegex(done.stdout, r"901\.sum +\d")

    def test_all_paths_may_be_relative(self):
        self.wrapped()
        (self.folder / "own.wasm").write_bytes(MODULE)
        (self.folder / "own.toml").write_text(MACHINE)
        command = [SPEC, "cpu2006", "--work", "work", "--longma", "./longma", "--machine", "own.toml", "--older", "./own.toml", "--set", "caches.l3.prefetcher.module=own.wasm"]
        done = subprocess.run([*command, "--tables", "3", "--only", "sum"], cwd=self.folder, capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"901\.sum +\d")


class Missing(OnTree):
    """Errors for missing parts say what to do."""

    def failure(self, *more, **given):
        done = self.spec(*more, **{"longma": "/none/longma"} | given)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stderr

    def test_another_folder(self):
        self.tree = self.folder
        self.assertIn("has no folder benchspec: give the folder into which SPEC CPU was installed", self.failure())

    def test_a_tree_without_programs(self):
        shutil.rmtree(self.program("901.sum").parent)
        self.assertIn("contains no programs", self.failure())

    def test_a_program_that_does_not_exist(self):
        self.assertIn("no program's name contains 'gcc': there are 901.sum, 902.queens, 931.nbody", self.failure("--only", "gcc"))

    def test_a_size_that_does_not_exist(self):
        self.assertIn("data/train/input is missing: give --size test", self.failure("--size", "train"))

    def test_a_program_without_description(self):
        (self.program("902.queens") / "Spec" / "object.pm").unlink()
        self.assertIn("902.queens/Spec/object.pm is missing: install SPEC CPU again", self.failure())

    def test_no_longma(self):
        self.assertIn("/none/longma does not exist: run `cargo build --release -p longma-cli` or give --longma PATH", self.failure())

    def test_a_description_that_calls_other_functions(self):
        file = self.program("901.sum") / "Spec" / "object.pm"
        file.write_text(file.read_text().replace("input_files_base", "input_files_hash"))
        with self.assertRaisesRegex(Failure, "its function `invoke` calls `input_files_hash`"):
            spec_tree.prepare(spec_tree.program(self.program("901.sum")), "test", self.folder / "run")

    def prepared(self, old, new):
        file = self.program("901.sum") / "Spec" / "object.pm"
        file.write_text(OBJECT.format(number="901", name="sum", sources="main.c total.c", flags="", tolerance="").replace(old, new))
        return spec_tree.prepare(spec_tree.program(self.program("901.sum")), "test", self.folder / "run")

    def test_a_description_that_prints_or_exits(self):
        for first in ("print 'text';", "exit 0;", "print 1; exit 0;"):
            with self.assertRaisesRegex(Failure, "901.sum: its object.pm prints text or exits; leave the program out with --only"):
                self.prepared("$benchnum", f"{first}\n$benchnum")

    def test_files_outside_the_folders(self):
        for old, new, name in (('"$name.out"', '"../$name.out"', "../a.out"), ('"$name.err"', '"/$name.err"', "/a.err"), ('"$name.in"', '"x/../../in"', "x/../../in"), ("total.c", "../total.c", "../total.c")):
            with self.assertRaisesRegex(Failure, f"its object.pm names {name}, outside the run's folder"):
                self.prepared(old, new)

    def test_flags_for_a_program_that_does_not_exist(self):
        for name in ("999.none", "sum", ""):
            self.assertIn(f"--flags: there is no program '{name}': give the whole name, such as 901.sum", self.failure("--flags", f"{name}=-DX"))

    def test_fortran_without_a_compiler(self):
        builder = spec_tree.Builder("zig", "-O2", [], {})
        with unittest.mock.patch.object(spec_tree.shutil, "which", lambda name: None), self.assertRaisesRegex(Failure, "apt install gcc-loongarch64-linux-gnu"):
            builder.commands("loongarch64", {"fortran"})
        present = lambda name: None if name.endswith("gfortran") else name
        with unittest.mock.patch.object(spec_tree.shutil, "which", present), self.assertRaisesRegex(Failure, "zig has no Fortran compiler: .* apt install gfortran-loongarch64-linux-gnu"):
            builder.commands("loongarch64", {"fortran"})


class Reading(OnTree):
    def test_object_pm_gives_sources_flags_and_commands(self):
        one = spec_tree.program(self.program("901.sum"))
        read = spec_tree.prepare(one, "test", self.folder / "run")
        self.assertEqual((read["sources"], read["flags"]["all"]), (["main.c", "total.c"], "-DOFFSET=1000"))
        self.assertEqual([(given["args"], given["input"], given["output"]) for given in read["commands"]], [(["1", "2", "3"], "a.in", "a.out"), (["4"], "b.in", "b.out")])
        self.assertEqual(sorted(path.name for path in (self.folder / "run").iterdir()), ["a.in", "b.in", "shared.txt"])

    def test_arguments_with_spaces_are_split_and_numbers_are_text(self):
        file = self.program("901.sum") / "Spec" / "object.pm"
        file.write_text(file.read_text().replace("[split ' ', $line]", "['-init_t 5', 8, '-s1 -e']"))
        read = spec_tree.prepare(spec_tree.program(self.program("901.sum")), "test", self.folder / "run")
        self.assertEqual(read["commands"][0]["args"], ["-init_t", "5", "8", "-s1", "-e"])

    def test_programs_of_2006_get_the_flags_of_its_tools(self):
        builder = spec_tree.Builder("zig", "-O2", ["-DMORE"], {})
        flags = builder.flags(spec_tree.program(self.program("901.sum")), {"flags": {"all": "-DOWN", "c": None}}, "c")
        self.assertEqual([flag for flag in flags if flag.startswith("-D")], ["-DSPEC_CPU", "-DNDEBUG", "-DSPEC_CPU_LP64", "-DOWN", "-DMORE"])

    def test_suites_divide_integer_and_floating_point_programs(self):
        of = lambda path: spec_tree.program(pathlib.Path("/cpu/benchspec") / path).floating
        self.assertEqual([of("CINT2000/164.gzip"), of("CFP2000/171.swim"), of("CPU2006/429.mcf"), of("CPU2006/433.milc")], [False, True, False, True])
        self.assertEqual([one.floating for one in spec_tree.programs(self.tree, "test", "")], [False, False, True])

    def test_outputs_may_differ_within_the_tolerance(self):
        found, expected = self.folder / "found", self.folder / "expected"
        expected.write_text("energy -0.1690 after 20 steps\n")
        for text, relative, difference in (("energy -0.1691 after 20 steps\n", 1e-3, ""), ("energy -0.1691 after 20 steps\n", 1e-5, "differs in line 1"),
                                           ("energy -0.1690 before 20 steps\n", 1.0, "differs in line 1"), ("energy -0.1690 after 20 steps\nmore\n", 1.0, "has 2 lines instead of 1")):
            found.write_text(text)
            self.assertEqual(spec_tree.differs(found, expected, 0.0, relative), difference)
        self.assertEqual(spec_tree.differs(self.folder / "none", expected, 0.0, 1.0), "is missing")
        self.assertFalse(spec_tree.near("5", "inf", 0.0, 0.1))
        for given, tolerance in (({"a": "0.5", "default": "0.1"}, 0.1), ({"test": {"b": 0.3}}, 0.3), ({"test": 0.0002}, 0.0002), ({"ref": 0.2}, 0.0), (0.4, 0.4)):
            self.assertEqual(spec_tree.tolerance(given, "test", "b"), tolerance)


if __name__ == "__main__":
    unittest.main()
