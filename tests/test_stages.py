"""Tests what `./test` reports of a stage (passed, failed, skipped, or no tests), and that no process of a stage outlives it.

A script takes the place of the stages.
"""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import tomllib
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
STAGES = {
    "fine": "echo 'guests: 3 passed, 0 failed'",
    "quiet": "true",
    "python": "echo 'Ran 5 tests in 0.1s'; echo OK",
    "skips": "echo 'Ran 5 tests in 0.1s'; echo 'OK (skipped=2)'",
    "none": "echo 'Ran 0 tests in 0.0s'; echo OK",
    "skipped": "echo 'Ran 1 test in 0.0s'; echo 'OK (skipped=1)'",
    "half": "echo 'Ran 6 tests in 0.1s'; echo 'FAILED (failures=1, errors=1)'; false",
    "chatty": "echo 'warning: 1000 passed by'; echo 'test result: ok. 2 passed; 0 failed; 0 ignored'",
    "nextest": "echo '     Summary [   1.200s] 7 tests run: 7 passed (1 slow), 2 skipped'; echo 'test result: ok. 2 passed; 0 failed'",
    "hangs": "echo '     TIMEOUT [ 600.000s] longma-x::y z'; echo '     Summary [ 600.200s] 9 tests run: 6 passed, 2 failed, 1 timed out, 0 skipped'; false",
    "waits": "until [ -e slow.ended ]; do sleep 0.1; done",
    "left": "touch left; until [ -e right ]; do sleep 0.1; done",
    "right": "touch right; until [ -e left ]; do sleep 0.1; done",
    "without": "echo 'skipped: there is no such tool'",
    # Longer than any busy host needs to kill it.
    "slow": "sh -c 'echo $$ >pid; exec sleep 3600' | cat",
}


class Stages(unittest.TestCase):
    def stage(self, name, limit=600):
        """The script's output for a stage, and whether it continued."""
        return self.script(f"run_stage {name}", limit)

    def script(self, runs, limit=600, keep_going="", limits=""):
        """The output of `runs`, commands that may call the functions of `test`. `limits` are those of single stages."""
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        cases = "\n".join(f"{case}) {does};;" for case, does in STAGES.items())
        (self.folder / "test").write_text(f"#!/bin/bash\ncd '{self.folder}' || exit\ncase $2 in\n{cases}\nesac\n")
        (self.folder / "test").chmod(0o755)
        text = (ROOT / "test").read_text()
        functions = text[text.index("# count WORD FILE") : text.index('if [ "${1:-}" = --stage ]')]
        script = f"set -uo pipefail\nroot='{self.folder}' logs='{self.folder}' passed=0 failed=0 limit={limit} lines=() notes=() lanes=() ending= keep_going={keep_going}\ndeclare -A limits=({limits})\n"
        script += "advice() { echo none; }\n" + functions + f"\n{runs}\nsummary\necho continued\n"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=600)
        return done.stdout

    def assert_slow_is_killed(self):
        """The process is gone, or its new parent is about to take its status."""
        path = pathlib.Path("/proc", (self.folder / "pid").read_text().strip(), "stat")
        try:
            self.assertEqual(path.read_text().rpartition(")")[2].split()[0], "Z")
        except (FileNotFoundError, ProcessLookupError):
            pass

    def test_passed_tests_are_counted(self):
        for name, count in [("fine", 3), ("quiet", 1), ("python", 5), ("skips", 3), ("chatty", 2), ("nextest", 9)]:
            output = self.stage(name)
            self.assertIn(f"\n{count} passed, 0 failed\ncontinued", output, name)

    def test_a_failure_ends_the_run_and_is_counted(self):
        output = self.stage("half")
        self.assertIn("\n4 passed, 2 failed\n", output)
        self.assertNotIn("continued", output)

    def test_all_stages_run_and_the_failed_are_counted_with_keep_going(self):
        output = self.script("start_lane half fine; run_stage half; run_stage fine; report_lanes", keep_going="yes")
        self.assertIn("\n14 passed, 4 failed\ncontinued", output)

    def test_a_test_that_hangs_is_counted_and_named(self):
        output = self.stage("hangs")
        self.assertIn("\n6 passed, 3 failed\n", output)
        self.assertIn("TIMEOUT [ 600.000s] longma-x::y z\n", output.split("FAILED after")[1])

    def test_tests_can_be_interrupted_when_a_shell_started_them_in_the_background(self):
        """Such a shell has SIGINT and SIGQUIT ignored, and so would every program that a test starts."""
        script = 'trap "" INT QUIT; exec "$0" --stage signals'
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(ROOT / ".ci", f"{folder}/.ci")
            test = (ROOT / "test").read_text()
            stage = "stage_signals() { grep SigIgn /proc/self/status; }\n"
            pathlib.Path(folder, "test").write_text(test.replace("cd \"$root\" || exit 1\n", stage + "cd \"$root\" || exit 1\n"))
            pathlib.Path(folder, "test").chmod(0o755)
            environment = {name: value for name, value in os.environ.items() if name != "LONGMA_TEST_SIGNALS"}
            output = subprocess.run(["bash", "-c", script, f"{folder}/test"], capture_output=True, text=True, timeout=60, env=environment)
        self.assertEqual(int(output.stdout.split()[1], 16) & 0b110, 0, output)

    def test_the_tests_of_changed_crates_are_those_of_the_whole_build(self):
        """With -p, cargo builds the dependencies again, with fewer features."""
        stages = (ROOT / ".ci/stages.sh").read_text()
        crate_tests = re.search(r"^crate_tests\(\) \{.*?^\}", stages, re.M | re.S)[0]
        for crates, filters in (("", []), ("core lab", ["-E", "package(=longma-core) or package(=longma-lab) or none()"])):
            script = f"cargo() {{ printf '%s\\n' \"$@\"; }}\n{crate_tests}\ncrate_tests {crates}"
            output = subprocess.run(["bash", "-uc", script], capture_output=True, text=True, timeout=20).stdout
            self.assertEqual(output.splitlines(), ["nextest", "run", "--workspace", "--locked", "--no-tests=pass", *filters])

    def test_the_log_of_a_script_that_is_killed_ends_with_its_last_line(self):
        self.assertIn("\nexport PYTHONUNBUFFERED=1\n", (ROOT / "test").read_text())

    def test_a_stage_whose_tests_did_not_run_fails(self):
        for name in ("none", "skipped"):
            output = self.stage(name)
            self.assertIn("none of its tests ran", output)
            self.assertIn("\n0 passed, 1 failed\n", output)

    def test_a_skipped_stage_does_not_count_as_passed(self):
        self.assertIn("note: without: skipped: there is no such tool\n0 passed, 0 failed\ncontinued", self.stage("without"))

    def test_no_process_outlives_a_stage_over_its_time_limit(self):
        output = self.stage("slow", limit=2)
        self.assertIn("took over 2 s", output)
        self.assert_slow_is_killed()

    def test_the_lanes_are_reported_in_order_and_counted(self):
        output = self.script("start_lane fine python; start_lane chatty; run_stage quiet; report_lanes")
        self.assertEqual(re.findall(r"^(\w+) +ok ", output, re.M), ["quiet", "fine", "python", "chatty"] * 2)
        self.assertIn("\n11 passed, 0 failed\ncontinued", output)

    def test_lanes_run_beside_each_other(self):
        output = self.script("start_lane left; start_lane right; run_stage quiet; report_lanes")
        self.assertIn("\n3 passed, 0 failed\ncontinued", output)

    def test_a_failure_in_a_lane_ends_the_run(self):
        output = self.script("start_lane half fine; run_stage quiet; report_lanes")
        self.assertIn("\n5 passed, 2 failed\n", output)
        self.assertNotIn("continued", output)
        self.assertFalse((self.folder / "fine.ended").exists())

    def test_only_a_stage_over_its_time_limit_is_killed(self):
        output = self.script("start_lane slow; run_stage waits; report_lanes", limits="[slow]=2 [waits]=500")
        self.assertRegex(output, r"waits +ok")
        self.assertIn("slow took over 2 s", output)
        self.assert_slow_is_killed()

    def test_the_lanes_are_killed_with_the_run(self):
        output = self.script("start_lane slow; until [ -s $root/pid ]; do sleep 0.1; done; run_stage half; report_lanes")
        self.assertNotIn("continued", output)
        self.assert_slow_is_killed()


class Consistency(unittest.TestCase):
    """The stages that other files name."""

    def array(self, name):
        text = (ROOT / "test").read_text() + (ROOT / ".ci/stages.sh").read_text()
        return re.search(rf"^{name}=\((.*?)\)", text, re.M)[1].split()

    def test_every_push_runs_every_stage(self):
        workflow = (ROOT / ".github/workflows/test.yml").read_text()
        run = [name for words in re.findall(r"^          - ([a-z_ ]+)$", workflow, re.M) for name in words.split()]
        known = {*self.array("stages"), *self.array("long_stages")}
        self.assertEqual(set(self.array("stages")) - set(run), set(), "stages that no push runs")
        self.assertEqual(set(run) - known, set(), "there are no such stages")

    def test_the_lanes_consist_of_stages_after_the_build(self):
        stages = self.array("stages")
        lanes = [*self.array("first_lane"), *self.array("second_lane")]
        self.assertEqual(set(lanes) - set(stages[stages.index("build") + 1 :]), set())
        self.assertEqual(len(lanes), len(set(lanes)), "a stage is in two lanes")

    def test_every_stage_has_a_function_and_a_row_in_the_readme(self):
        stages = {*self.array("stages"), *self.array("long_stages"), "quick"}
        functions = set(re.findall(r"^stage_(\w+)\(\)", (ROOT / ".ci/stages.sh").read_text(), re.M))
        rows = set(re.findall(r"^\| `(\w+)`", (ROOT / "tests/README.md").read_text(), re.M))
        self.assertEqual((functions, rows), (stages, stages))

    def test_every_workspace_is_formatted_and_linted(self):
        others = {path.parent.relative_to(ROOT).as_posix() for place in ("*", "bench/*") for path in ROOT.glob(f"{place}/Cargo.toml")}
        members = set(tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"])
        self.assertEqual(set(self.array("standalone")), others - members)


if __name__ == "__main__":
    unittest.main()
