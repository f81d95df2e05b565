"""Checks the system call tables of the other architectures against the main table."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "crates/emulator/linux/src/syscalls/table.rs"
ROW = re.compile(r"^\s*\w+\((\d+), \"(\w+)\"|^\s*(?:\w+\()?(\d+),\s*\"(\w+)\",", re.MULTILINE)


def numbers():
    """The calls of the main table: name to number."""
    found = ROW.findall(TABLE.read_text())
    return {name or other_name: int(number or other) for number, name, other, other_name in found}


class Tables(unittest.TestCase):
    def test_a_call_has_the_same_number_in_every_table(self):
        here = numbers()
        self.assertGreater(len(here), 250)
        tables = sorted((ROOT / "crates/emulator").glob("translate-*/src/calls.tsv"))
        self.assertGreaterEqual(len(tables), 2)
        for table in tables:
            lines = table.read_text().splitlines()
            rows = [line.split("\t") for line in lines if not line.startswith("#")]
            named = {name: generic for _, name, generic in rows}
            self.assertEqual(len(named), len(rows), f"{table}: a name occurs twice")
            named_here = {number: name for name, number in here.items()}
            for name, generic in named.items():
                if generic != "-":
                    self.assertEqual(named_here.get(int(generic), name), name, f"{table}: {generic}")
            # From 424 on, calls have equal numbers on all architectures.
            absent = [name for name, number in here.items() if number >= 424 and name not in named]
            self.assertEqual(absent, [], f"{table}: the main table has these calls")
            converted = (table.parent / "system.rs").read_text()
            missed = [name for name, generic in named.items() if generic == "-" and name in here and f'"{name}"' not in converted]
            self.assertEqual(missed, [], f"{table}: a call of this name exists")

    def test_numbers_in_other_files_match_the_table(self):
        here = numbers()
        for path, found in {
            "crates/runner/src/translated/calls.rs": r"const (RT_SIGRETURN|CLONE|CLONE3): u64 = (\d+);",
            "crates/emulator/translate-mips/src/system.rs": r"const (NEWFSTATAT): u64 = (\d+);",
            "crates/emulator/guest/src/elf/vdso.rs": r'"__vdso_(\w+)", (\d+),',
        }.items():
            rows = re.findall(found, (ROOT / path).read_text())
            self.assertTrue(rows, path)
            for name, number in rows:
                self.assertEqual(here[name.lower()], int(number), f"{path}: {name}")


if __name__ == "__main__":
    unittest.main()
