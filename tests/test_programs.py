"""Tests programs.py: what it compares of an output, and its lists."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import programs
import roots
import sandbox


class Programs(unittest.TestCase):
    def test_only_the_kept_lines_count_without_what_varies(self):
        case = programs.Case(pathlib.Path("x.sh"), keep=r"^\[ok\].*", drop=r" \(\d+ ms\)", order="any")
        self.assertEqual(case.kept("[ok] b (3 ms)\nnoise\n[ok] a (12 ms)\n"), ["[ok] a", "[ok] b"])

    def test_missing_lines_another_status_and_the_time_limit_are_differences(self):
        reference = {"lines": ["a", "b"], "status": 0, "errors": ""}
        self.assertEqual(programs.difference(reference, dict(reference)), "")
        self.assertIn("1 lines missing", programs.difference(reference, reference | {"lines": ["a"]}))
        self.assertIn("ended with 3", programs.difference(reference, reference | {"status": 3}))
        self.assertEqual(programs.difference(reference, reference | {"status": None}), "took too long")

    def test_every_case_has_a_title_and_a_time_limit(self):
        for case in programs.cases():
            self.assertTrue(case.title, case.path)
            self.assertGreater(int(case.timeout), 0, case.path)

    def test_lock_files_name_each_package_once(self):
        for name in [*programs.ARCHITECTURES, "sources", "linux"]:
            paths = [path for path, digest in roots.locked(name) if len(digest) == 64]
            self.assertEqual(len(paths), len(set(paths)), name)
            self.assertEqual(len(paths), len(roots.locked(name)), name)

    def test_a_rule_matches_programs_of_the_machine_but_not_a_marked_qemu(self):
        fields = sandbox.rule("amd64", "/q").split(":")
        magic, mask = (bytes.fromhex(field.replace("\\x", "")) for field in fields[4:6])
        program = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00"
        matches = lambda header: all(a & m == b & m for a, b, m in zip(header, magic, mask, strict=True))
        self.assertTrue(matches(program))
        self.assertFalse(matches(program[: sandbox.MARK_AT] + b"\x01" + program[sandbox.MARK_AT + 1 :]))


if __name__ == "__main__":
    unittest.main()
