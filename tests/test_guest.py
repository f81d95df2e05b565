"""Tests guest.py: reading a guest's output to its last line."""

import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from debian_package import Failure
from guest import listen


def said_by(script, timeout_s=10):
    """The output lines of a shell, which may leave background processes that still write."""
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as shell:
        return listen(shell.stdout, timeout_s, echo=False)


class Listening(unittest.TestCase):
    def test_what_comes_after_the_end_of_the_guest_is_heard(self):
        self.assertEqual(said_by("echo first; (sleep 0.3; echo last) &"), ["first", "last"])

    def test_lines_come_whole_and_without_carriage_returns(self):
        self.assertEqual(said_by("printf 'a'; sleep 0.2; printf 'b\\r\\nc\\n'"), ["ab", "c"])

    def test_a_guest_that_does_not_end_is_not_waited_for(self):
        with self.assertRaisesRegex(Failure, "not done after 0.2 s.*\\n.*hello"):
            said_by("echo hello; sleep 2", timeout_s=0.2)


if __name__ == "__main__":
    unittest.main()
