"""Tests the tour of `./run` with a script in the place of the command, which prints tables of any width."""

import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMAND = """#!/bin/sh
case "$*" in
*FAIL*) exit 1 ;;
*timing*) printf 'cycles went to     share\\nbase  66 %%\\n\\n%-96s|\\n%-105s|\\n' 'cache   accesses' 'hottest functions' >&2 ;;
*--stats*) echo 'instructions   1 000 000' >&2 ;;
esac
"""


class Tour(unittest.TestCase):
    def tour(self, command):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / ".ci").symlink_to(ROOT / ".ci")
        (folder / "guests").symlink_to(ROOT / "guests")
        (folder / "longma").write_text(command)
        (folder / "longma").chmod(0o755)
        text = (ROOT / "run").read_text()
        self.assertIn('\nbuild "$@"\n', text)
        (folder / "run").write_text(text.replace('\nbuild "$@"\n', "\nlongma=$root/longma\n"))
        environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "dumb"}
        return subprocess.run(["bash", str(folder / "run")], capture_output=True, text=True, timeout=600, env=environment)

    def test_no_line_of_its_own_and_no_table_is_wider_than_80_columns(self):
        done = self.tour(COMMAND)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        # The folder's name is the reader's.
        self.assertEqual([line for line in lines if len(line) > 80 and not line.startswith("charts: ")], [])
        self.assertIn("base  66 %", lines)
        self.assertNotIn("\033", done.stdout)

    def test_it_ends_with_a_message_if_a_program_fails(self):
        done = self.tour(COMMAND.replace("FAIL", "timing"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("run: sort could not be simulated\n", done.stderr)


if __name__ == "__main__":
    unittest.main()
