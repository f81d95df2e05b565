"""Checks that the files, folders, crates, modules and items that the documentation names in backticks exist.

It reads the headers of modules (`//!`), the README of each crate and group of crates, and the pages of PAGES.
"""

import functools
import os
import pathlib
import re
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import house

PAGES = ["README.md", "CONTRIBUTING.md", "docs/src/introduction.md"]
# A path of a file or folder, a path of Rust items, and a single name.
FILE = re.compile(r"[\w.-]+(/[\w.-]+)+/?|[\w.-]+/|[\w-]+\.(rs|py|toml|md|tsv|c|h|sh|yml|sql|html|s|S)")
ITEMS = re.compile(r"\w+(::\w+)+(\(\))?")
NAME = re.compile(r"[a-z][a-z0-9_]*(\(\))?|longma-[a-z0-9-]+")
# A placeholder, as in `machines/NAME.toml`.
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b")
# What is not in the repository: other programs with their names, files that a command writes, and names to avoid.
FOREIGN = {"e_machine", "helpers", "ib_send_bw", "ib_send_lat", "ibv_reg_mr", "ixgbe_set_rx_drop_en", "libvipl", "report.html", "rps_cpus", "ucx_perftest"}
# Words of these folders are known to all crates: instructions and system calls.
KNOWN_TO_ALL = ["crates/isa/loongarch", "crates/emulator/linux/src/syscalls"]
SKIPPED = {"target", ".git", ".venv", "results", "node_modules", "__pycache__"}


class House:
    """The names in a checkout."""

    def __init__(self, root):
        self.root = root
        self.paths = set()
        for folder, below, files in os.walk(root):
            below[:] = [name for name in below if name not in SKIPPED]
            inside = pathlib.Path(folder).relative_to(root)
            self.paths |= {str(inside / name) for name in [*below, *files]}
        self.crates = house.crates(root)
        self.stems = {pathlib.Path(path).stem for path in self.paths}
        self.packages = {f"longma-{name}" for name in self.crates} | {crate.library for crate in self.crates.values()}
        self.crate_of = {crate.library: crate for crate in self.crates.values()}

    @functools.cache
    def words(self, folder):
        """All words of a folder's code and data, without comments, documentation and prose, and the names of its files."""
        words = set()
        for path in (self.root / folder).rglob("*"):
            parts = path.relative_to(self.root).parts
            if SKIPPED & set(parts):
                continue
            words |= set(re.findall(r"\w+", path.name)) | {path.stem}
            if path.is_file() and path.suffix in (".rs", ".toml", ".tsv", ".c", ".h", ".sql", ".py", ".s", ".html", ".js"):
                text = re.sub(r"^\s*(//|# ).*$", "", path.read_text(errors="replace"), flags=re.M)
                words |= set(re.findall(r"\w+", text))
        return words

    def crate_folder(self, path):
        """The folder of the crate that a file belongs to; None outside of crates."""
        for folder in path.parents:
            if (self.root / folder / "Cargo.toml").exists() and folder != pathlib.Path("."):
                return folder
        return None

    def has_file(self, name, at):
        """Whether a path exists, from the root or with its beginning left out. Sources are searched in the crate of the file `at`,
        where the ending `.rs` may be left out."""
        name = name.removeprefix("./").rstrip("/")
        crate = self.crate_folder(at)
        if name in self.paths:
            return True
        ends = lambda path: path.endswith(f"/{name}") or path.endswith(f"/{name}.rs")
        if crate and any(ends(path) for path in self.paths if path.startswith(f"{crate}/")):
            return True
        is_source = name.endswith(".rs")
        return not (crate and is_source) and any(path.endswith(f"/{name}") for path in self.paths)

    def has_items(self, name, at):
        """Whether each part of a Rust path is a word of the crate that the path or the file belongs to."""
        first, *rest = name.removesuffix("()").split("::")
        if first in self.crate_of:
            folder = self.crate_of[first].folder.relative_to(self.root)
        else:
            folder, rest = self.crate_folder(at) or pathlib.Path("."), [first, *rest]
        return all(part in self.words(folder) or part in ("crate", "super", "self") for part in rest)

    def exists(self, name, at):
        """Whether a name in backticks in the file `at` exists, or is not a name that is checked."""
        if name in FOREIGN or PLACEHOLDER.search(name):
            return True
        if ITEMS.fullmatch(name):
            return self.has_items(name, at)
        if FILE.fullmatch(name):
            return self.has_file(name, at)
        if NAME.fullmatch(name):
            if name.startswith(("longma-", "longma_")):
                return name in self.packages
            name = name.removesuffix("()")
            folders = [self.crate_folder(at) or pathlib.Path("."), *KNOWN_TO_ALL]
            return name in self.stems or any(name in self.words(folder) for folder in folders)
        return True

    def texts(self):
        """The checked texts: path and lines with their numbers."""
        for page in PAGES:
            yield pathlib.Path(page), list(enumerate((self.root / page).read_text().splitlines(), 1))
        for page in sorted(self.root.glob("crates/**/README.md")):
            yield page.relative_to(self.root), list(enumerate(page.read_text().splitlines(), 1))
        for path in sorted(self.root.glob("crates/**/*.rs")):
            header = [(number, line) for number, line in enumerate(path.read_text().splitlines(), 1) if line.lstrip().startswith("//!")]
            yield path.relative_to(self.root), header

    def missing(self):
        """Each name that does not exist, with its place."""
        found = []
        for path, lines in self.texts():
            is_code = False
            for number, line in lines:
                if "```" in line:
                    is_code = not is_code
                if not is_code:
                    names = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", line)
                    found += [f"{path}:{number}: {name}" for name in names if not self.exists(name, path)]
        return found


class Names(unittest.TestCase):
    maxDiff = None

    def test_names_in_the_documentation_exist(self):
        self.assertEqual(House(house.ROOT).missing(), [])

    def made_up(self, files):
        """The names that are missing in a repository of these files, without the number of the line."""
        root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        manifest = '[package]\nname = "longma-x"\n'
        for name, text in {"Cargo.toml": "[workspace.dependencies]", "crates/x/Cargo.toml": manifest, **dict.fromkeys(PAGES, ""), **files}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return [re.sub(r":\d+", "", place) for place in House(root).missing()]

    def test_a_missing_file_folder_or_crate_is_found(self):
        page = "`crates/x`, `x/src/a.rs`, `a.rs` and `src/`; `crates/y`, `b.rs`, `old/`, `longma-x` and `longma-y`"
        missing = self.made_up({"CONTRIBUTING.md": page, "crates/x/src/a.rs": ""})
        self.assertEqual(missing, [f"CONTRIBUTING.md: {name}" for name in ("crates/y", "b.rs", "old/", "longma-y")])

    def test_a_missing_module_or_item_is_found_in_a_header_and_a_readme(self):
        header = "//! Calls `new_name`, `a::go()` and `longma_x::a`, not `old_name`, `a::gone` and `longma_x::lost`.\n// old_name\n"
        files = {"crates/x/src/lib.rs": header + "mod a;\nfn new_name() {}", "crates/x/src/a.rs": "fn go() {}"}
        files["crates/x/README.md"] = "`new_name`\n```\n`in_code`\n```\n| `old_module` |"
        gone = ["crates/x/README.md: old_module", *(f"crates/x/src/lib.rs: {name}" for name in ("old_name", "a::gone", "longma_x::lost"))]
        self.assertEqual(self.made_up(files), gone)

    def test_names_outside_the_repository_are_not_checked(self):
        page = "`longma run --root DIR`, `/dev/null`, `machines/NAME.toml`, `--quick`, `_ns`, `LONGMA_UPDATE`, ``a`b``"
        self.assertEqual(self.made_up({"README.md": page}), [])


if __name__ == "__main__":
    unittest.main()
