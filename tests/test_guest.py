"""Tests guest.py: reading a guest's output to its last line."""

import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from debian_package import Failure
from guest import listen


def output_of(script, timeout_s=10):
    """The output lines of a shell, which may leave background processes that still write."""
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as shell:
        return listen(shell.stdout, timeout_s, echo=False)


class Listening(unittest.TestCase):
    def test_output_after_the_end_of_the_guest_is_read(self):
        self.assertEqual(output_of("echo first; (sleep 0.3; echo last) &"), ["first", "last"])

    def test_lines_are_complete_and_without_carriage_returns(self):
        self.assertEqual(output_of("printf 'a'; sleep 0.2; printf 'b\\r\\nc\\n'"), ["ab", "c"])

    def test_waiting_for_a_guest_has_a_time_limit(self):
        with self.assertRaisesRegex(Failure, "not done after 0.2 s.*\\n.*hello"):
            output_of("echo hello; sleep 2", timeout_s=0.2)


if __name__ == "__main__":
    unittest.main()
