"""Tests the test runners and benchmark scripts: they must detect the failures for which they exist.

Small shell scripts stand in for longma. Needs qemu-loongarch64 and ziglang.
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
    """Loads a script as a module."""
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
        """The options for an emulator that is a shell script; $1 is the program."""
        path = self.folder / "emulator"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return ["--emulator", str(path)]

    def run_script(self, command, *more):
        return subprocess.run([*command, *more], capture_output=True, text=True, timeout=600)


class Benchmark(WithStandIns):
    def test_equal_output_succeeds_and_reports_every_figure(self):
        completed = self.run_script(BENCH, *self.stand_in('exec qemu-loongarch64 "$@"'), "--only", "queens", "--format", "json")
        self.assertEqual(completed.returncode, 0, completed.stderr)
        result = json.loads(completed.stdout)
        row = result["programs"][0]
        self.assertTrue(row["same_output"])
        self.assertEqual(set(row["wall_s"]), {"longma", "qemu"})
        self.assertGreater(row["wall_s"]["qemu"], 0)

    def test_different_output_is_reported_and_fails(self):
        completed = self.run_script(BENCH, *self.stand_in("echo wrong"), "--only", "queens")
        self.assertEqual(completed.returncode, 1)
        self.assertIn("DIFFERS", completed.stdout)
        self.assertIn("queens", completed.stderr)

    def test_an_emulator_that_hangs_is_killed_and_reported(self):
        start = time.monotonic()
        completed = self.run_script(BENCH, *self.stand_in("sleep 60 & sleep 60"), "--only", "queens", "--timeout", "1")
        self.assertLess(time.monotonic() - start, 30)
        self.assertEqual(completed.returncode, 1)
        self.assertIn("timed out after 1 s", completed.stdout)

    def test_an_emulator_that_crashes_is_reported(self):
        completed = self.run_script(BENCH, *self.stand_in("kill -SEGV $$"), "--only", "queens")
        self.assertEqual(completed.returncode, 1)
        self.assertIn("longma exit -11", completed.stdout)

    def test_a_missed_goal_fails_only_with_check(self):
        slow = self.stand_in('sleep 0.2; exec qemu-loongarch64 "$@"')
        self.assertEqual(self.run_script(BENCH, *slow, "--only", "queens").returncode, 0)
        self.assertEqual(self.run_script(BENCH, *slow, "--only", "queens", "--check").returncode, 1)

    def test_a_missing_emulator_is_reported_in_one_line_with_a_remedy(self):
        completed = self.run_script(BENCH, "--longma", self.folder / "none", "--only", "queens")
        self.assertEqual(completed.returncode, 1)
        self.assertRegex(completed.stderr, r"^bench/emulation: .* is missing: cargo build .*\n$")


STATISTICS = {
    "statistics": {
        "run": {"instructions": {"value": 4000000}, "cycles": {"value": 2000000}},
        "core0": {"instructions": {"value": 4000000}, "cpi": {"base": {"value": 0.3}, "memory": {"value": 0.2}}},
    }
}
HOST = """format = 1
[cores.core]
clock = "2 GHz"
"""


class Means(unittest.TestCase):
    """The report of bench/emulation about programs that one side did not run."""

    def setUp(self):
        sys.path.insert(0, str(ROOT / "bench"))
        self.addCleanup(sys.path.remove, str(ROOT / "bench"))
        self.script = load(ROOT / "bench" / "emulation")
        row = lambda name, wall: {"name": name, "kind": "float", "wall_s": wall, "user_s": wall}
        self.rows = [row("nbody", {"longma": 1.0, "qemu": 6.0}), row("fft", {"longma": 1.0}), row("fft-lsx", {"longma": 1.0})]

    def test_a_mean_states_its_number_of_programs(self):
        group = self.script.means(self.rows)["floating point"]
        self.assertEqual((group["programs"], group["compared"], group["qemu/longma"]), (2, 1, 6.0))
        self.assertEqual(self.script.counted(group), "1 of 2")

    def test_a_program_that_was_not_compared_counts_as_missed(self):
        goals = {what: (measured, met) for what, measured, met in self.script.goals(self.rows, None, self.script.means(self.rows))}
        self.assertEqual(goals["no program slower than QEMU"], ("fft not compared", False))
        self.assertEqual(self.script.goals(self.rows[:1], None, self.script.means(self.rows[:1]))[1][1:], ("none", True))


class OnModels(WithStandIns):
    """The benchmarks of the models, with a stand-in for longma that always writes the same statistics."""

    def longma(self, script):
        """The options for a stand-in for longma, which runs `script`.

        In the script, `write_statistics` writes the statistics as longma does, and `"$@"` is the guest with its arguments.
        """
        path = self.folder / "longma"
        parse = 'while [ $# -gt 0 ]; do case $1 in --stats) shift;; --quiet) shift;; --stats-out) out=$2; shift 2;; --*) [ "$1" = -- ] && break; shift 2;; run) shift;; *) break;; esac; done'
        statistics = json.dumps(STATISTICS)
        function = "write_statistics() { if [ $out ]; then echo \"$statistics\" > $out; else echo '{\"instructions\":4000000}' >&2; fi; }"
        path.write_text(f"#!/bin/sh\n{parse}\nstatistics='{statistics}'\n{function}\n{script}\n")
        path.chmod(0o755)
        return ["--longma", str(path)]

    def bench(self, name, script, *more):
        return self.run_script([ROOT / "bench" / name, "--small", "--timeout", "20", *self.longma(script), *more])


class Simulation(OnModels):
    OPTIONS = ["--runs", "1", "--only", "queens", "--levels", "functional,out-of-order", "--json"]

    def test_speed_is_instructions_divided_by_cpu_time(self):
        completed = self.bench("simulation", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; write_statistics", *self.OPTIONS)
        self.assertEqual(completed.returncode, 0, completed.stderr)
        result = json.loads(completed.stdout)
        figures = result["speed"]["queens"]["out-of-order"]
        self.assertEqual((figures["instructions"], figures["cycles"]), (4000000, 2000000))
        busy = figures["busy_s"][0]
        self.assertGreater(busy, 0)
        self.assertAlmostEqual(figures["mips"] * busy, 4, delta=0.4)
        self.assertIn("functional", result["memory"])

    def test_a_level_that_fails_is_named_and_fails(self):
        completed = self.bench("simulation", "echo there is no such level >&2; exit 2", *self.OPTIONS)
        self.assertEqual(completed.returncode, 1)
        self.assertIn("queens functional", completed.stderr)
        self.assertIn("exit 2", completed.stdout)

    def test_a_model_that_hangs_is_killed(self):
        completed = self.bench("simulation", "sleep 60", *self.OPTIONS, "--timeout", "1", "--no-memory", "--no-start")
        self.assertEqual(completed.returncode, 1)
        self.assertIn("timed out after 1 s", completed.stdout)

    def test_a_model_without_statistics_fails(self):
        completed = self.bench("simulation", "exit 0", *self.OPTIONS, "--no-memory", "--no-start")
        self.assertEqual(completed.returncode, 1)
        self.assertIn("no statistics", completed.stdout)

    def test_a_missed_goal_fails_only_with_check(self):
        slow = 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; write_statistics'
        more = [*self.OPTIONS, "--no-memory", "--no-start"]
        self.assertEqual(self.bench("simulation", slow, *more).returncode, 0)
        completed = self.bench("simulation", slow, *more, "--check")
        self.assertEqual(completed.returncode, 1, completed.stdout)


class Validation(OnModels):
    def setUp(self):
        super().setUp()
        (self.folder / "host.toml").write_text(HOST)
        self.options = ["--machine", str(self.folder / "host.toml"), "--runs", "1", "--only", "queens", "--format", "json"]

    def test_the_error_compares_modelled_cycles_with_user_time_at_the_measured_clock(self):
        # Without --small: a kernel that samples user time at timer ticks misses a run of a millisecond.
        longma = self.longma('write_statistics; exec qemu-loongarch64 "$1" "$3" "$4"')
        completed = self.run_script([ROOT / "bench" / "validation", "--timeout", "60", *longma, *self.options])
        self.assertEqual(completed.returncode, 0, completed.stderr)
        result = json.loads(completed.stdout)
        row = result["programs"][0]
        self.assertEqual(result["host"]["clock_hz"], 2e9)
        self.assertAlmostEqual(row["model"]["stack"]["base"], 1200000)
        self.assertGreater(row["native"]["cycles"], 0)
        if not result["host"]["counters"]:
            self.assertAlmostEqual(row["native"]["cycles"], row["native"]["user_s"][0] * 2e9, delta=2e5)

    def test_a_model_with_different_output_is_not_compared(self):
        completed = self.bench("validation", 'write_statistics; echo wrong', *self.options)
        self.assertEqual(completed.returncode, 1)
        self.assertIn("other output", completed.stderr)


class Microchecks(unittest.TestCase):
    def setUp(self):
        sys.path.insert(0, str(ROOT / "bench"))
        self.addCleanup(sys.path.remove, str(ROOT / "bench"))
        self.script = load(ROOT / "bench" / "microchecks")

    def check(self, expected, measured):
        return self.script.Check("x", "m", "ns", expected, measured)

    def test_five_percent_is_the_limit_in_both_directions(self):
        verdicts = [self.check(100.0, measured).met() for measured in (95.0, 105.0, 94.9, 105.1, None)]
        self.assertEqual(verdicts, [True, True, False, False, False])

    def test_a_prediction_is_neither_met_nor_missed(self):
        self.assertIsNone(self.check(None, 100.0).met())

    def test_a_published_rate_that_is_missed_counts_as_missed(self):
        published = self.script.published_rates("loongson-3a4000", 4)
        self.assertEqual(set(published), set(self.script.KERNELS))
        self.assertIs(self.check(published["add"], 1.5 * published["add"]).met(), False)
        self.assertEqual(self.script.published_rates("loongson-3a5000", 4)["copy"], 39896)
        self.assertEqual(self.script.published_rates("hygon-8node", 4), {})

    def test_the_chase_fits_its_level_but_not_the_level_before(self):
        for inner, size in ((0, 64 << 10), (64 << 10, 256 << 10), (256 << 10, 16 << 20)):
            self.assertLessEqual(self.script.chased_bytes(inner, size), size // 2)
            self.assertGreaterEqual(self.script.chased_bytes(inner, size), 2 * inner)
        self.assertEqual(self.script.chased_bytes(16 << 20, 0), 64 << 20)

    def test_cycles_of_a_machine_file_are_cycles_of_its_core(self):
        self.assertEqual(self.script.latency_ns("40 cycles", 2.5e9), 16)
        self.assertEqual(self.script.latency_ns("140 ns", 2.5e9), 140)

    def test_levels_are_those_a_core_reaches_through_its_data_caches(self):
        cache = lambda level, kind, size, latency, then: {"level": level, "kind": kind, "size": size, "latency": latency, "next": then}
        caches = {"i": cache(1, "instruction", "8 KiB", "1 cycles", "u"), "d": cache(1, "data", "8 KiB", "2 cycles", "u"), "u": cache(2, "unified", "1 MiB", "9 ns", "memory")}
        parts = {"cores": {"c": {"clock": "1 GHz", "caches": ["i", "d"]}}, "caches": caches, "memories": {"m": {"latency": "80 ns"}}}
        self.assertEqual(self.script.levels(parts), [("d", 8192, 2.0), ("u", 1 << 20, 9.0), ("memory", 0, 80.0)])

    def test_the_audit_finds_the_table_of_instructions(self):
        import audit

        self.assertEqual(audit.table()["div.d"][1], audit.table()["div.du"][1])


class Changed(WithStandIns):
    def store(self, name, *rows, experiment="latency-hygon"):
        folder = self.folder / name
        folder.mkdir()
        (folder / f"{experiment}.quick.jsonl").write_text("".join(json.dumps({"failure": None, "key": name} | row) + "\n" for row in rows))
        return folder

    def test_points_are_matched_in_any_order_and_changed_ones_are_shown(self):
        before = self.store("before", {"numa": "bind:0", "latency": 100.0}, {"numa": "bind:1", "latency": 150.0}, {"numa": "bind:4", "latency": 7.0})
        after = self.store("after", {"numa": "bind:1", "latency": 153.0}, {"numa": "bind:0", "latency": 110.0})
        completed = self.run_script([ROOT / "bench" / "changed", before, after])
        self.assertEqual(completed.returncode, 0, completed.stderr)
        self.assertEqual(
            completed.stdout.splitlines()[2:],
            [
                "| latency-hygon.quick | latency | 2 points, 1 of them beyond 2 % |  | median +6.0 % | +2.0 to +10.0 % |",
                "|  | latency | pages on the core's own node | 100 | 110 | +10.0 % |",
            ],
        )

    def test_points_of_several_machines_are_distinguished(self):
        rows = [{"machine": machine, "size": "4 B", "latency": latency} for machine, latency in (("piii-myrinet", 20.0), ("piii-lanai9", 9.0))]
        before = self.store("before", *rows, experiment="bvia-lanai9-latency")
        after = self.store("after", *reversed(rows), experiment="bvia-lanai9-latency")
        completed = self.run_script([ROOT / "bench" / "changed", before, after])
        self.assertIn("2 points, 0 of them beyond 2 %", completed.stdout, completed.stderr)

    def test_a_failed_point_is_an_error(self):
        before = self.store("before", {"numa": "bind:0", "latency": None, "failure": "it ran out"})
        completed = self.run_script([ROOT / "bench" / "changed", before, before])
        self.assertNotEqual(completed.returncode, 0)
        self.assertIn("it ran out", completed.stderr)


class GuestRunner(WithStandIns):
    def test_a_wrong_line_is_named(self):
        completed = self.run_script(GUESTS, *self.stand_in("echo hello, word"), "--only", "hello")
        self.assertEqual(completed.returncode, 1)
        self.assertIn("line 1 is 'hello, word', not 'hello, world'", completed.stdout)

    def test_an_undetected_fault_fails(self):
        completed = self.run_script(GUESTS, *self.stand_in("exit 0"), "--only", "misbehave read-null")
        self.assertEqual(completed.returncode, 1)
        self.assertIn("not signal 11", completed.stdout)

    def test_a_signal_and_its_exit_status_in_a_shell_are_the_same(self):
        for script in ("kill -SEGV $$", "exit 139"):
            completed = self.run_script(GUESTS, *self.stand_in(script), "--only", "misbehave read-null")
            self.assertEqual(completed.returncode, 0, completed.stdout)


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

    def test_vector_instructions_are_found_exactly_where_they_are(self):
        folder = ROOT / "guests" / "prebuilt" / "loongarch64"
        self.build.check_float_and_vectors(folder / "fft", False)
        self.build.check_float_and_vectors(folder / "fft-lsx", True)
        with self.assertRaisesRegex(self.build.Failure, "unwanted vector"):
            self.build.check_float_and_vectors(folder / "fft-lasx", False)
        with self.assertRaisesRegex(self.build.Failure, "no vector"):
            self.build.check_float_and_vectors(folder / "fft", True)

    def test_soft_float_is_refused(self):
        with tempfile.TemporaryDirectory() as name:
            copy = pathlib.Path(name) / "fft"
            data = bytearray((ROOT / "guests/prebuilt/loongarch64/fft").read_bytes())
            data[0x30] = data[0x30] & ~7 | 1
            copy.write_bytes(data)
            with self.assertRaisesRegex(self.build.Failure, "not hard-float"):
                self.build.check_float_and_vectors(copy, False)

    def test_a_changed_prebuilt_program_is_detected(self):
        with tempfile.TemporaryDirectory() as name:
            copy = pathlib.Path(name) / "guests"
            shutil.copytree(ROOT / "guests", copy)
            # Link the compiler and its cached C library: rebuilding them takes minutes.
            (ROOT / "target").mkdir(exist_ok=True)
            (copy.parent / "target").symlink_to(ROOT / "target")
            victim = copy / "prebuilt" / "loongarch64" / "hello"
            data = bytearray(victim.read_bytes())
            data[-1] ^= 1
            victim.write_bytes(data)
            completed = subprocess.run([copy / "build", "--check", "--only", "hello"], capture_output=True, text=True, timeout=300)
        self.assertEqual(completed.returncode, 1)
        self.assertIn("not the same as prebuilt: loongarch64/hello", completed.stderr)


if __name__ == "__main__":
    unittest.main()
