#!/usr/bin/env python3
"""Runs the commands in the book and the README and compares their output with the text.

A `console` block holds commands after `$` and their output, an `sh` block commands that must succeed, a `python` block a program. The
blocks of a chapter run one after another in a folder that looks like a clone of the repository. A comment before a block changes how it is
run:

    <!-- book: not run: REASON -->              skips the block
    <!-- book: without WORD, WORD: REASON -->   skips lines that contain one of the words
    <!-- book: numbers differ: REASON -->       ignores numbers and the spaces around them
    <!-- book: with NAME=WORD NAME=WORD -->     replaces placeholder names
"""

import argparse
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHAPTERS = sorted((ROOT / "docs" / "src").rglob("*.md")) + [ROOT / "README.md"]
RUN = ("sh", "console", "python")
NOTE = re.compile(r"<!-- book: (not run|without|numbers differ|with)\b:? ?(.*?) -->")
SECONDS = 900  # Time limit of a block: the quick form of all experiments takes 400 on a busy host.


@dataclasses.dataclass
class Block:
    """A fenced block of a chapter with the comments before it."""

    chapter: pathlib.Path
    line: int
    kind: str
    lines: list
    notes: dict

    def where(self):
        return f"{self.chapter.relative_to(ROOT)}:{self.line}"

    def typed_lines(self):
        """The lines as a reader would type them."""
        left_out = [word.strip() for word in self.notes.get("without", "").partition(":")[0].split(",") if word.strip()]
        names = dict(pair.split("=", 1) for pair in self.notes.get("with", "").split())
        lines = [line for line in self.lines if not any(word in line for word in left_out)]
        return [re.sub(r"\b[A-Z]+\b", lambda word: names.get(word[0], word[0]), line) if names else line for line in lines]


def blocks(chapter):
    """The fenced blocks of a chapter."""
    start, notes, found = None, {}, []
    for number, line in enumerate(chapter.read_text().splitlines(), 1):
        if line.startswith("```"):
            if start is None:
                start, kind, lines = number, line[3:].strip(), []
                continue
            found.append(Block(chapter, start, kind, lines, notes))
            start, notes = None, {}
        elif start is not None:
            lines.append(line)
        elif note := NOTE.fullmatch(line):
            notes[note[1]] = note[2]
        elif line.strip():
            notes = {}
    return found


# --- Running ----------------------------------------------------------------------------------------------------------


class Clone:
    """A folder like a clone, in which `./run ARGS` and `longma ARGS` run the command under test."""

    def __init__(self, folder, longma, python):
        self.folder, self.longma, self.python = pathlib.Path(folder), longma, python
        for entry in ROOT.iterdir():
            if entry.name not in ("run", "target", "results", ".git"):
                (self.folder / entry.name).symlink_to(entry)
        (self.folder / "target").mkdir()
        commands = self.folder / "target" / "commands"
        commands.mkdir()
        (commands / "longma").symlink_to(longma)
        (self.folder / "run").write_text(f'#!/bin/sh\n[ $# -gt 0 ] || exec "{ROOT}/run"\nexec "{longma}" "$@"\n')
        (self.folder / "run").chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}:/usr/local/go/bin", "COLUMNS": "80"}
        self.environment |= {"LONGMA": str(longma), "LONGMA_RESULTS": str(ROOT / "target" / "results"), "LC_ALL": "C.UTF-8"}

    def run(self, words, text):
        """Runs a command; returns its combined output and its status. Kills it and its children at the end."""
        # Use a file: background processes would keep a pipe open.
        with tempfile.TemporaryFile("w+", errors="replace") as printed:
            child = subprocess.Popen(
                words, cwd=self.folder, env=self.environment, stdin=subprocess.PIPE, stdout=printed, stderr=subprocess.STDOUT,
                text=True, start_new_session=True,
            )  # fmt: skip
            try:
                child.communicate(text, timeout=SECONDS)
            except subprocess.TimeoutExpired:
                return f"took over {SECONDS} s", 124
            finally:
                try:
                    os.killpg(child.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                child.wait()
            printed.seek(0)
            return printed.read(), child.returncode


def console(clone, block):
    """Runs a console block; returns the differences from the expected output."""
    expected, commands = "\n".join(block.lines) + "\n", []
    for line in block.typed_lines():
        if line.startswith("$ "):
            commands.append(line[2:])
    got = ""
    for command in commands:
        # As in a terminal, the shell reports a signal that ends a command. Its message is compared without line numbers.
        printed, _ = clone.run(["bash", "-c", f"TIMEFORMAT='real %3R s'\n{command}"], "")
        printed = re.sub(r"^bash: line \d+: +\d+ ([A-Z][a-z/ ]+?)(?: +\(core dumped\))? {2,}.*$", r"\1", printed, flags=re.M)
        got += f"$ {command}\n{printed}"
    if normalize(got, block) != normalize(expected, block):
        return f"expected:\n{expected}printed:\n{got}"
    return ""


def normalize(text, block):
    """Normalizes text for the comparison."""
    if "numbers differ" in block.notes:
        text = re.sub(r" *\d[\d .,e+-]*\d|\d", "#", re.sub(r"0x[0-9a-f]+", "hex", text))
        text = re.sub(r" {2,}", " ", text)  # columns are as wide as their contents
    if "  × " in text:
        # Error messages are wrapped for the terminal, but not for a pipe.
        text = re.sub(r"[\s│]+", " ", text)
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def shell(clone, block):
    printed, status = clone.run(["bash", "-e", "-o", "pipefail", "-c", "\n".join(block.typed_lines())], "")
    return f"ends with {status}:\n{printed[-3000:]}" if status else ""


def python(clone, blocks_before, block):
    """The block appended to the previous ones, whose names it may use."""
    lines = [line for earlier in [*blocks_before, block] for line in earlier.typed_lines()]
    body = "\n".join("    " + line for line in lines)
    printed, status = clone.run([clone.python, "-c", f"if __name__ == '__main__':\n{body}\n"], "")
    return f"ends with {status}:\n{printed[-3000:]}" if status else ""


def chapter_runs(chapter, options):
    """Runs all blocks of a chapter; returns each with its problem."""
    with tempfile.TemporaryDirectory() as folder:
        clone, programs = Clone(folder, options.longma, options.python), []
        for block in blocks(chapter):
            if block.kind not in RUN or "not run" in block.notes:
                continue
            begin = time.monotonic()
            if block.kind == "python":
                wrong = python(clone, programs, block)
                programs.append(block)
            else:
                wrong = (console if block.kind == "console" else shell)(clone, block)
            yield block, wrong, time.monotonic() - begin


def fence_problems(chapter):
    """Problems with the fences of a chapter."""
    for block in blocks(chapter):
        if not block.kind:
            yield f"{block.where()}: a block without a kind: say sh, console, python, or text if it is none"
        for note in ("not run", "without", "numbers differ"):
            reason = block.notes.get(note, "a reason")
            if not (reason.partition(":")[2] if note == "without" and note in block.notes else reason).strip():
                yield f"{block.where()}: `{note}` without a reason"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longma", default=f"{ROOT}/target/release/longma", type=pathlib.Path, help="the command")
    parser.add_argument("--python", default=sys.executable, help="a Python with the package and its dependencies")
    parser.add_argument("--only", default="", metavar="CHAPTER", help="only chapters whose name contains it")
    options = parser.parse_args()
    options.longma = options.longma.resolve()
    passed = failed = 0
    for chapter in CHAPTERS:
        if options.only not in str(chapter.relative_to(ROOT)):
            continue
        for wrong in fence_problems(chapter):
            print(wrong)
            failed += 1
        for block, wrong, seconds in chapter_runs(chapter, options):
            print(f"{block.where()}: {wrong or 'as expected'} ({seconds:.1f} s)", flush=True)
            passed, failed = passed + (not wrong), failed + bool(wrong)
    print(f"book: {passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
