"""Checks the import rules between crates and modules, and the tables that document them. house.py analyses the imports."""

import os
import pathlib
import re
import sys
import tempfile
import tomllib
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import house

# Test imports from higher layers: the conformance suite and the C programs also run on the modelled NIC, the map is compared with other
# trees, and all front ends run the same tests.
TEST_IMPORTS_FROM_ABOVE = {
    ("via", "via-myrinet"),
    ("vipl", "vipl-myrinet"),
    ("zoned", "zoned-lab"),
    ("translate-arm", "translate-conformance"),
    ("translate-mips", "translate-conformance"),
    ("translate-x86", "translate-conformance"),
}
# Size limits that keep crates and files readable.
MAX_LINES_OF_A_CRATE = 15_000
MAX_LINES_OF_A_FILE = 700
# The crates that are published and do not depend on the simulator.
STANDALONE = {"cpu-set", "locks", "loongarch", "pubsub", "random", "reliable", "text", "via", "vipl", "zoned", "zoned-device"}


class Crates(unittest.TestCase):
    def setUp(self):
        self.crates = house.crates()
        self.layers = house.layers((house.ROOT / "crates/README.md").read_text())

    def test_every_crate_has_a_layer(self):
        self.assertEqual(set(self.layers), set(self.crates), "the table of crates/README.md")

    def test_every_group_has_a_readme_that_names_its_crates(self):
        groups = {crate.folder.parent for crate in self.crates.values()} - {house.ROOT / "crates"}
        for group in groups:
            named = set(re.findall(r"^\| \[`([\w-]+)`\]\(\1/\) \|", (group / "README.md").read_text(), re.M))
            self.assertEqual(named, {crate.name for crate in self.crates.values() if crate.folder.parent == group}, group)

    def test_published_crates_contain_the_licences(self):
        for manifest in house.manifests():
            if "/LICENSE-*" in tomllib.loads(manifest.read_text())["package"].get("include", []):
                for name in ("LICENSE-APACHE", "LICENSE-MIT"):
                    self.assertEqual((manifest.parent / name).read_text(), (house.ROOT / name).read_text(), manifest.parent)

    def test_nothing_is_a_symbolic_link(self):
        """On systems without symbolic links, git would check each out as a file that contains a path."""
        links = []
        for folder, below, files in os.walk(house.ROOT):
            links += [name for name in files + below if (pathlib.Path(folder) / name).is_symlink()]
            below[:] = [name for name in below if name not in ("target", ".git", ".venv", "results")]
        self.assertEqual(links, [])

    def test_a_crate_imports_only_crates_of_lower_layers(self):
        up = [
            f"{name} (layer {self.layers[name]}) imports {other} (layer {self.layers[other]})"
            for name, crate in self.crates.items()
            for other in crate.imports
            if self.layers[other] >= self.layers[name]
        ]
        self.assertEqual(up, [])

    def test_no_crate_and_no_file_is_too_long(self):
        for name, crate in self.crates.items():
            code, tests = house.lines(crate)
            self.assertLessEqual(sum(code.values()), MAX_LINES_OF_A_CRATE, name)
            long = [f"{path}: {count}" for path, count in {**code, **tests}.items() if count > MAX_LINES_OF_A_FILE]
            self.assertEqual(long, [])

    def test_only_listed_tests_import_crates_of_the_same_or_higher_layers(self):
        up = {
            (name, other)
            for name, crate in self.crates.items()
            for other in crate.test_imports
            if self.layers[other] >= self.layers[name]
        }
        self.assertEqual(up, TEST_IMPORTS_FROM_ABOVE)

    def test_published_crates_depend_only_on_published_ones(self):
        for name, crate in self.crates.items():
            if crate.is_published:
                held_back = sorted(other for other in crate.imports if not self.crates[other].is_published)
                self.assertEqual(held_back, [], f"{name} is published")
        for name in STANDALONE:
            self.assertTrue(self.crates[name].is_published)
            self.assertLessEqual(self.crates[name].imports, STANDALONE, name)
            manifest = tomllib.loads((self.crates[name].folder / "Cargo.toml").read_text())
            shared = tomllib.loads((house.ROOT / "Cargo.toml").read_text())["workspace"]["dependencies"]
            # Cargo includes a dev-dependency in the published manifest if it has a version.
            kept = {n for n, d in manifest.get("dev-dependencies", {}).items() if d.get("workspace") and "version" in shared[n]}
            ours = {n.removeprefix("longma-") for n in kept if n.startswith("longma-")}
            self.assertLessEqual(ours, STANDALONE, f"{name}: cannot be published without these")

    def test_no_crate_duplicates_the_foundation(self):
        written = {
            "locks": r"PoisonError::into_inner",
            "random": r"(?i)bf58_?476d_?1ce4_?e5b9",
            "text": r"replace\('\\'', r?\"'\\+''\"\)",
        }
        sources = [path for pattern in ("crates/**/*.rs", "bench/**/*.rs", "fuzz/**/*.rs", "python/**/*.rs") for path in house.ROOT.glob(pattern)]
        for crate, pattern in written.items():
            own = self.crates[crate].folder
            again = [str(path.relative_to(house.ROOT)) for path in sources if own not in path.parents and re.search(pattern, path.read_text())]
            self.assertEqual(again, [], f"use longma-{crate}")
            self.assertTrue(any(re.search(pattern, path.read_text()) for path in own.glob("src/*.rs")), crate)

    def test_no_crate_names_a_file_outside_its_folder(self):
        for crate in self.crates.values():
            if crate.is_published:
                for path in [*(crate.folder / "src").rglob("*.rs"), *crate.folder.glob("build.rs")]:
                    for line in path.read_text().splitlines():
                        climbs = "include" in line and "../" * (len(path.relative_to(crate.folder).parts)) in line
                        self.assertFalse(climbs, f"{path}: {line.strip()}")


class Dependencies(unittest.TestCase):
    MANIFESTS = ["crates/*/Cargo.toml", "crates/*/*/Cargo.toml", "bench/*/Cargo.toml", "fuzz/Cargo.toml", "python/Cargo.toml"]
    # Cyclic dev-dependencies that exist only for their build outputs.
    NEVER_NAMED = {("vipl", "longma-vipl-myrinet")}

    def manifests(self):
        for pattern in self.MANIFESTS:
            for path in sorted(house.ROOT.glob(pattern)):
                yield path.parent, tomllib.loads(path.read_text())

    def test_every_dependency_is_used(self):
        unused = []
        for folder, manifest in self.manifests():
            built = [*folder.glob("build.rs"), *folder.glob("build/**/*.rs"), *folder.glob("src/**/*.rs"), *folder.glob("fuzz_targets/**/*.rs")]
            tests = [path for part in ("tests", "benches", "examples") for path in folder.glob(f"{part}/**/*.rs")]
            texts = {path: path.read_text() for path in [*built, *tests]}
            for kind, files in [("dependencies", built), ("build-dependencies", built), ("dev-dependencies", [*built, *tests])]:
                for name in manifest.get(kind, {}):
                    library = "vipl" if name == "longma-vipl" else name.replace("-", "_")
                    used = any(re.search(rf"\b{library}\b", texts[path]) for path in files)
                    if not used and (folder.name, name) not in self.NEVER_NAMED:
                        unused.append(f"{folder.name}: {name}")
        self.assertEqual(unused, [])

    def test_every_dependency_of_the_workspace_is_used_by_a_crate(self):
        shared = tomllib.loads((house.ROOT / "Cargo.toml").read_text())["workspace"]["dependencies"]
        kinds = ("dependencies", "build-dependencies", "dev-dependencies")
        taken = {name for _, manifest in self.manifests() for kind in kinds for name in manifest.get(kind, {})}
        self.assertEqual(sorted(shared.keys() - taken), [])

    def test_shared_dependencies_have_one_version(self):
        shared = tomllib.loads((house.ROOT / "Cargo.toml").read_text())["workspace"]["dependencies"]
        apart = [
            f"{folder.name}: {name}"
            for folder, manifest in self.manifests()
            if house.ROOT / "crates" in folder.parents
            for kind in ("dependencies", "build-dependencies", "dev-dependencies")
            for name, given in manifest.get(kind, {}).items()
            # Cargo drops a dev-dependency without a version when publishing.
            if name in shared and not (isinstance(given, dict) and given.keys() == {"path"})
            and not (isinstance(given, dict) and given.get("workspace"))
        ]
        self.assertEqual(apart, [])

    def test_every_crate_has_the_lints_of_the_workspace(self):
        without = [folder.name for folder, manifest in self.manifests() if house.ROOT / "crates" in folder.parents and not manifest.get("lints", {}).get("workspace")]
        self.assertEqual(without, [])


class Modules(unittest.TestCase):
    def test_modules_have_no_import_cycle(self):
        for name, crate in house.crates().items():
            self.assertEqual(house.cycles(house.modules(crate)), [], f"tests/house.py {name} prints the imports")

    def made_up(self, files):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "Cargo.toml").write_text('[package]\nname = "longma-x"\n')
        for name, text in files.items():
            path = folder / "src" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        edges = house.modules(house.Crate(folder))
        return {name: set(targets) for name, targets in edges.items()}

    def test_imports_are_seen_in_every_form(self):
        edges = self.made_up(
            {
                "lib.rs": "mod a; mod b; mod c; mod d; mod e; mod f;\npub use d::Depth;\npub use e::*;",
                "a.rs": "use crate::{\n    b::{self, B},\n    c as other,\n};",
                "b/mod.rs": "mod inner; fn f() -> super::Depth { todo!() }",
                "b/inner.rs": "use super::super::c::C; use super::sibling;",
                "c.rs": "// use crate::a;\nconst T: &str = \"crate::a\"; fn f(it: crate::E) {}\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}",
                "d.rs": "pub struct Depth;",
                "e.rs": "pub struct E; use crate::f::{G, H};",
                "f.rs": "",
            }
        )
        self.assertEqual(edges, {"a": {"b", "c"}, "b": {"c", "d"}, "c": {"e"}, "d": set(), "e": {"f"}, "f": set()})

    def test_items_of_the_root_count_as_those_of_their_modules(self):
        edges = self.made_up(
            {
                "lib.rs": "mod a; mod b; mod c; mod d; mod e; mod f; mod g;\nuse a::A; use b::B as Renamed; fn calls(x: [u8; 4]) { c::go(); }\nconst C: A = A;\n"
                "fn indirectly() { calls(1) }\nstruct S;\nimpl S { fn of(&self) { b::go() } }",
                "a.rs": "",
                "b.rs": "",
                "c.rs": "use crate::A;",
                "d.rs": "use super::Renamed; fn f() { crate::calls(1) }",
                "e.rs": "use super::*; fn f() { calls(2) }",
                "f.rs": "fn f() { crate::C }",
                "g.rs": "use crate::*; fn f(it: S) { indirectly(); f::f() }",
            }
        )
        self.assertEqual(edges, {"a": set(), "b": set(), "c": {"a"}, "d": {"b", "c"}, "e": {"c"}, "f": {"a"}, "g": {"b", "c", "f"}})

    def test_apparent_strings_and_comments_hide_no_imports(self):
        edges = self.made_up(
            {
                "lib.rs": "mod a; mod b; mod c; mod d;",
                "a.rs": 'const T: &str = "/*"; use crate::b::B; const U: &str = "*/ //"; use crate::c::C;',
                "b.rs": "const Q: char = '\"'; use crate::c::C; const R: char = '\"'; fn f<'a>(x: &'a str) {}",
                "c.rs": "#[cfg(test)]\nmod tests {\n    fn f() { g(\"}\") }\n}\nuse crate::d::D;",
                "d.rs": 'const T: &str = r#"" use crate::a::A; "#;',
            }
        )
        self.assertEqual(edges, {"a": {"b", "c"}, "b": {"c"}, "c": {"d"}, "d": set()})

    def test_a_module_with_another_form_in_tests_is_found(self):
        edges = self.made_up(
            {
                "lib.rs": "mod a; mod b;",
                "a.rs": '#[cfg(test)]\n#[path = "a/fake.rs"]\nmod real;\n#[cfg(not(test))]\nmod real;',
                "a/real.rs": "use crate::b::B;",
                "b.rs": "",
            }
        )
        self.assertEqual(edges, {"a": {"b"}, "b": set()})

    def seen(self, expected, files):
        """Checks that each module of `expected` has exactly these imports and other modules have none."""
        edges = {name: targets for name, targets in self.made_up(files).items() if targets}
        self.assertEqual(edges, expected)

    def test_the_root_under_another_name_is_seen(self):
        root = "mod a; mod b; mod c; mod d; mod e; mod f;"
        self.seen({"a": {"b"}}, {"lib.rs": root, "a.rs": "use crate as root; fn f() { root::b::go() }", "b.rs": ""})
        self.seen({"a": {"b"}}, {"lib.rs": root, "a/mod.rs": "mod inner;", "a/inner.rs": "use super::super as root; use root::b::B;"})
        self.seen({"a": {"b"}}, {"lib.rs": root, "a.rs": "use crate::{self as root}; fn f() { root::b::go() }"})
        self.seen({"a": {"b"}}, {"lib.rs": root, "a.rs": "use super::{self as above, c}; fn f() { above::b::go() }"} | {"b.rs": ""} | {"lib.rs": "mod a; mod b;"})
        self.seen({"a": {"b"}}, {"lib.rs": root, "a.rs": "extern crate self as root; fn f() { root::b::go() }"})
        # By the crate's own name, as in binaries and derived code.
        self.seen({"a": {"b"}, "c": {"d"}}, {"lib.rs": root, "a.rs": "use longma_x::b::B;", "c.rs": "fn f() { ::longma_x::d::go() }"})
        # The same name elsewhere does not count.
        self.seen({}, {"lib.rs": root, "a.rs": "use crate as root;", "c.rs": "fn f() { root::b::go() }"})

    def test_nested_braces_resolve_to_their_levels(self):
        files = {"lib.rs": "mod a; mod b; mod c; mod d;", "a/mod.rs": "mod inner;"}
        self.seen({"a": {"b", "c"}}, files | {"a/inner.rs": "use super::{super::b::B, own, super::{c::C}};"})
        self.seen({"a": {"b"}}, files | {"a/inner.rs": "use {super::super::b::{B, self}, super::c};"})
        self.seen({"a": {"b", "d"}}, files | {"a/inner.rs": "fn f() { use crate::{b::{x::{Y}, Z}, d}; }"})
        self.seen({"a": {"b"}}, files | {"a/inner.rs": "use self::super::super::b;"})

    def test_an_inline_module_is_found(self):
        # An inline module of the root is a module like others.
        self.seen({"a": {"b"}, "b": {"a"}}, {"lib.rs": "mod a;\npub mod b { use crate::a::A; pub struct B; }", "a.rs": "use crate::b::B;"})
        # Elsewhere an inline module is one level deeper: its parent is the file's module.
        files = {"lib.rs": "mod a; mod b; pub use b::B;"}
        self.seen({}, files | {"a.rs": "struct B; mod inner { use super::B; }"})
        self.seen({"a": {"b"}}, files | {"a.rs": "mod inner { use super::super::B; }"})

    def test_a_module_in_a_file_of_another_name_is_found(self):
        files = {"lib.rs": '#[path = "other/place.rs"]\nmod a;\nmod b; mod c;', "other/place.rs": "use crate::b::B;", "b.rs": ""}
        self.seen({"a": {"b"}}, files)
        files = {"lib.rs": "mod a; mod b; mod c;", "a/mod.rs": '#[path = "../elsewhere.rs"]\nmod inner;', "elsewhere.rs": "use super::super::c::C;"}
        self.seen({"a": {"c"}}, files)

    def test_macros_count_as_their_modules(self):
        # By textual order.
        self.seen({"b": {"a"}}, {"lib.rs": "#[macro_use]\nmod a;\nmod b;", "a.rs": "macro_rules! put { () => {} }", "b.rs": "fn f() { put!() }"})
        # At the root, for a macro in any module.
        self.seen({"b": {"a"}}, {"lib.rs": "mod a; mod b;", "a.rs": "#[macro_export]\nmacro_rules! put { () => {} }", "b.rs": "fn f() { crate::put!() }"})
        # A macro of the root, with what it uses.
        self.seen({"b": {"a"}}, {"lib.rs": "macro_rules! put { () => { $crate::a::go() } }\nmod a; mod b;", "b.rs": "fn f() { put!() }"})

    def test_a_glob_import_at_the_root_counts_as_its_module(self):
        files = {"a.rs": "fn f(it: crate::inner::X) {}"}
        self.seen({"a": {"b"}}, files | {"lib.rs": "mod a; mod b; pub use b::*;", "b.rs": "pub mod inner { pub struct X; }"})
        files = {"lib.rs": "mod a; mod b; pub use b::*;", "a.rs": "use crate::Other;"}
        self.seen({"a": {"b"}}, files | {"b/mod.rs": "mod deep; pub use deep::X as Other;"})
        self.seen({"a": {"b"}}, files | {"b/mod.rs": "pub use serde::Other;"})
        files = {"lib.rs": "mod a; mod b; use b::Kind::*;", "a.rs": "use crate::First;"}
        self.seen({"a": {"b"}}, files | {"b.rs": "pub enum Kind { First, Second(u8) }"})

    def test_a_name_of_a_name_at_the_root_is_followed(self):
        self.seen({"a": {"b"}}, {"lib.rs": "mod a; mod b; use b as other; pub use other::B;", "a.rs": "use crate::B;"})
        self.seen({"a": {"b"}}, {"lib.rs": "mod a; mod b; pub use self::{b::{deep::{B}}};", "a.rs": "use super::B;"})

    def test_a_path_in_an_attributes_string_is_found(self):
        files = {"lib.rs": "mod a; mod b; mod c; mod d;"}
        self.seen({"a": {"b", "c"}}, files | {"a.rs": '#[serde(default, with = "crate::b::time",\n skip_if = "super::c::none")]\nstruct A; const T: &str = "crate::d";'})

    def test_raw_identifiers_are_names(self):
        self.seen({"a": {"type"}, "type": {"a"}}, {"lib.rs": "mod a; mod r#type;", "a.rs": "use crate::r#type::T;", "type.rs": "use crate::a::r#fn;"})

    def test_character_and_string_literals_hide_no_code(self):
        files = {"lib.rs": "mod a; mod b;"}
        self.seen({"a": {"b"}}, files | {"a.rs": "const M: [char; 2] = ['\\'','\"']; use crate::b::B; const N: &str = \"x\";"})
        self.seen({"a": {"b"}}, files | {"a.rs": 'const M: &CStr = cr#"a " b"#; use crate::b::B; const N: &str = "x";'})
        self.seen({"a": {"b"}}, files | {"a.rs": '/* a /* b */ " */ use crate::b::B; const N: &str = "x";'})

    def test_a_dependency_under_another_name_is_seen(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "Cargo.toml").write_text('[package]\nname = "longma-x"\n[dependencies]\ny = { package = "longma-z" }\nserde = "1"\n')
        self.assertEqual(house.Crate(folder).imports, {"z"})
        (folder / "Cargo.toml").write_text('[package]\nname = "longma-x"\n[dependencies]\ny.workspace = true\n')
        self.assertEqual(house.Crate(folder, {"y": {"package": "longma-z"}}).imports, {"z"})

    def test_items_for_tests_only_may_import_anything(self):
        edges = self.made_up(
            {
                "lib.rs": "mod a; mod b; mod c; mod d; #[cfg(test)] mod e;",
                "a.rs": "#[cfg(all(test, not(miri)))]\n#[rustfmt::skip]\npub(crate) mod tests;\nmod part;\nuse crate::b::B;",
                "a/tests.rs": "use crate::c::C; mod deeper;",
                "a/tests/deeper.rs": "use crate::d::D;",
                "a/part.rs": "use crate::d::D;",
                "b.rs": "#[cfg(any(test, fuzzing))]\nmod fuzzing;",
                "b/fuzzing.rs": "use crate::c::C;",
                "c.rs": "",
                "d.rs": "",
                "e.rs": "use crate::a::A;",
            }
        )
        self.assertEqual(edges, {"a": {"b", "d"}, "b": {"c"}, "c": set(), "d": set()})

    def test_a_cycle_of_any_length_is_found(self):
        edges = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}
        self.assertEqual(house.cycles(edges), [("a", "b", "c")])


if __name__ == "__main__":
    unittest.main()
