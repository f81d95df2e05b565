"""Tests of the scripts that test and measure: they must notice what they are there to notice.

Not a test of longma: small stand-ins take its place. Needs qemu-loongarch64 and ziglang.
Run: python3 -m unittest discover -s tests
"""

import importlib.machinery
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BENCH = [ROOT / "bench" / "emulation", "--small", "--runs", "1", "--no-go", "--sides", "longma,qemu"]
GUESTS = [ROOT / "tests" / "guests.py"]


def load(path):
    """A script as a module."""
    loader = importlib.machinery.SourceFileLoader(path.name.replace(".", "_"), str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


class WithStandIns(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def stand_in(self, script):
        """An emulator that is a few lines of shell; $1 is the program."""
        path = self.folder / "emulator"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return ["--emulator", str(path)]

    def run_it(self, command, *more):
        return subprocess.run([*command, *more], capture_output=True, text=True, timeout=120)


class Benchmark(WithStandIns):
    def test_equal_output_is_a_success_with_every_figure(self):
        made = self.run_it(BENCH, *self.stand_in('exec qemu-loongarch64 "$@"'), "--only", "queens", "--format", "json")
        self.assertEqual(made.returncode, 0, made.stderr)
        result = json.loads(made.stdout)
        row = result["programs"][0]
        self.assertTrue(row["same_output"])
        self.assertEqual(set(row["wall_s"]), {"longma", "qemu"})
        self.assertGreater(row["wall_s"]["qemu"], 0)

    def test_other_output_is_reported_and_fails(self):
        made = self.run_it(BENCH, *self.stand_in("echo wrong"), "--only", "queens")
        self.assertEqual(made.returncode, 1)
        self.assertIn("DIFFERS", made.stdout)
        self.assertIn("queens", made.stderr)

    def test_an_emulator_that_hangs_is_killed_and_reported(self):
        start = time.monotonic()
        made = self.run_it(BENCH, *self.stand_in("sleep 60 & sleep 60"), "--only", "queens", "--timeout", "1")
        self.assertLess(time.monotonic() - start, 30)
        self.assertEqual(made.returncode, 1)
        self.assertIn("over 1 s", made.stdout)

    def test_an_emulator_that_crashes_is_reported(self):
        made = self.run_it(BENCH, *self.stand_in("kill -SEGV $$"), "--only", "queens")
        self.assertEqual(made.returncode, 1)
        self.assertIn("longma exit -11", made.stdout)

    def test_a_missed_promise_fails_only_when_asked(self):
        slow = self.stand_in('sleep 0.2; exec qemu-loongarch64 "$@"')
        self.assertEqual(self.run_it(BENCH, *slow, "--only", "queens").returncode, 0)
        self.assertEqual(self.run_it(BENCH, *slow, "--only", "queens", "--check").returncode, 1)

    def test_a_missing_emulator_is_one_line_that_says_what_to_do(self):
        made = self.run_it(BENCH, "--longma", self.folder / "none", "--only", "queens")
        self.assertEqual(made.returncode, 1)
        self.assertRegex(made.stderr, r"^bench/emulation: .* is missing: cargo build .*\n$")


class GuestRunner(WithStandIns):
    def test_a_wrong_line_is_named(self):
        made = self.run_it(GUESTS, *self.stand_in("echo hello, word"), "--only", "hello")
        self.assertEqual(made.returncode, 1)
        self.assertIn("line 1 is 'hello, word', not 'hello, world'", made.stdout)

    def test_a_fault_that_goes_unnoticed_fails(self):
        made = self.run_it(GUESTS, *self.stand_in("exit 0"), "--only", "misbehave read-null")
        self.assertEqual(made.returncode, 1)
        self.assertIn("not signal 11", made.stdout)

    def test_a_signal_counts_as_itself_and_as_a_shell_reports_it(self):
        for script in ("kill -SEGV $$", "exit 139"):
            made = self.run_it(GUESTS, *self.stand_in(script), "--only", "misbehave read-null")
            self.assertEqual(made.returncode, 0, made.stdout)


class GoRunner(unittest.TestCase):
    def setUp(self):
        self.go_std = load(ROOT / "tests" / "go_std.py")

    def outcome(self, ending="", **results):
        return self.go_std.Outcome(results, ending, 0.0, "")

    def test_longma_must_pass_what_qemu_passes(self):
        longma, qemu = self.outcome(A="PASS", B="FAIL"), self.outcome(A="PASS", B="PASS")
        self.assertEqual(self.go_std.not_passed(longma, qemu), {"B"})

    def test_longma_need_not_pass_what_qemu_fails(self):
        longma, qemu = self.outcome("exit 1", A="FAIL"), self.outcome("exit 1", A="FAIL")
        self.assertEqual(self.go_std.not_passed(longma, qemu), set())

    def test_a_test_that_never_ended_has_not_passed(self):
        self.assertEqual(self.go_std.not_passed(self.outcome("exit 2", A="PASS", B="LOST"), None), {"B"})

    def test_a_program_that_dies_without_a_test_has_not_passed(self):
        self.assertTrue(self.go_std.not_passed(self.outcome("exit 139"), None))


class Builder(unittest.TestCase):
    def setUp(self):
        self.build = load(ROOT / "guests" / "build")

    def test_vector_instructions_are_found_where_they_are_and_nowhere_else(self):
        folder = ROOT / "guests" / "prebuilt" / "loongarch64"
        self.build.check_float_and_vectors(folder / "fft", None)
        self.build.check_float_and_vectors(folder / "fft-lsx", "any")
        with self.assertRaisesRegex(self.build.Failure, "unwanted vector"):
            self.build.check_float_and_vectors(folder / "fft-lasx", None)
        with self.assertRaisesRegex(self.build.Failure, "no vector"):
            self.build.check_float_and_vectors(folder / "fft", "any")

    def test_soft_float_is_refused(self):
        with tempfile.TemporaryDirectory() as name:
            copy = pathlib.Path(name) / "fft"
            data = bytearray((ROOT / "guests/prebuilt/loongarch64/fft").read_bytes())
            data[0x30] = data[0x30] & ~7 | 1
            copy.write_bytes(data)
            with self.assertRaisesRegex(self.build.Failure, "not hard-float"):
                self.build.check_float_and_vectors(copy, None)

    def test_a_changed_prebuilt_program_is_noticed(self):
        with tempfile.TemporaryDirectory() as name:
            copy = pathlib.Path(name) / "guests"
            shutil.copytree(ROOT / "guests", copy)
            victim = copy / "prebuilt" / "loongarch64" / "hello"
            data = bytearray(victim.read_bytes())
            data[-1] ^= 1
            victim.write_bytes(data)
            made = subprocess.run([copy / "build", "--check", "--only", "hello"], capture_output=True, text=True, timeout=300)
        self.assertEqual(made.returncode, 1)
        self.assertIn("not the same as prebuilt: hello", made.stderr)


if __name__ == "__main__":
    unittest.main()
