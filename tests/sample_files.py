#!/usr/bin/env python3
"""Draws modules and pages for a reader: `tests/sample_files.py SEED` prints 30, `tests/sample_files.py SEED N` prints N.

A reader who knows the field, but not the project, notes each sentence that must be read twice. After one note, the whole crate or page
is revised. A third of the files are pages of the book and READMEs, the others are modules of crates.
"""

import pathlib
import random
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Pages of tables that are generated, or list names only.
TABLES = {"docs/src/SUMMARY.md", "docs/src/renamed.md", "docs/src/reference/instructions.md", "docs/src/results/published.md"}


def listed(*patterns):
    """The files that match one of the patterns, in a random order."""
    paths = sorted({path.relative_to(ROOT).as_posix() for pattern in patterns for path in ROOT.glob(pattern)} - TABLES)
    random.Random(int(sys.argv[1])).shuffle(paths)
    return paths


if __name__ == "__main__":
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 30
    pages = listed("docs/src/**/*.md", "crates/**/README.md", "*.md")[: count // 3]
    modules = listed("crates/*/src/**/*.rs", "crates/*/*/src/**/*.rs")[: count - len(pages)]
    print(*pages, *modules, sep="\n")
