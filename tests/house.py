#!/usr/bin/env python3
"""Analyses the imports between crates and between the modules of a crate.

`tests/house.py` prints the crates by layer. `tests/house.py CRATE` prints the modules of a crate and their import cycles. test_house.py
checks the rules of crates/README.md and CONTRIBUTING.md.
"""

import os
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent

VISIBLE = r"\bpub(?:\([^)]*\))?\s+"
KIND = r"(?:const\s+|unsafe\s+|async\s+|extern\s+\"\"\s+)*(?:struct|enum|fn|trait|type|static|union|const|macro_rules!)\s+(\w+)"
# A named item that a module can export.
EXPORTED_ITEM = re.compile(VISIBLE + r"(?:mod\s+(\w+)|" + KIND + ")")
# An item of the crate root, or an implementation of a type. Submodules see private items of the root, too.
ROOT_ITEM = re.compile(r"\b(?:" + KIND + r"|impl(?:<[^{;]*?>)?\s+(?:[\w:<>, ']+\s+for\s+)?(\w+))")
ATTRIBUTES = r"\s*(?:#\[[^\n]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?"
# An inline module.
INLINE_MODULE = re.compile(r"\bmod\s+(\w+)\s*\{")
# A module with a `#[path]`.
PATH_MODULE = re.compile(r'#\[path\s*=\s*"([^"]+)"\]' + ATTRIBUTES + r"mod\s+(\w+)\s*;")
# A module whose macros are visible in later modules.
MACRO_USE_MODULE = re.compile(r"#\[macro_use[^\]]*\]" + ATTRIBUTES + r"mod\s+(\w+)")
# A macro exported at the crate root.
EXPORTED_MACRO = re.compile(r"#\[macro_export[^\]]*\]" + ATTRIBUTES + r"macro_rules!\s+(\w+)")
# An inline test module. Tests may import anything.
INLINE_TESTS = re.compile(r"#\[cfg\((?:all\()?test\b[^\n]*\]\s*(?:#\[[^\n]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+\w+\s*\{")
# A test module in a file of its own.
TEST_MODULE = re.compile(r"#\[cfg\((?:all\()?test\b[^\n]*\]\s*(?:#\[[^\n]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;")
# A character inside a block comment.
COMMENT_TEXT = r"(?:[^*/]|\*(?!/)|/(?!\*))"
# A comment, or a string or character literal (a character may be a quotation mark).
COMMENT_OR_LITERAL = re.compile(
    rf"""(?P<comment>//[^\n]*|/\*(?:{COMMENT_TEXT}|/\*{COMMENT_TEXT}*\*/)*\*/)"""
    r"""|\b[bc]?r(?P<hashes>\#*)".*?"(?P=hashes)|"(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^'\\])'""",
    re.S,
)
# The start of an attribute's value, which may be the path of a function or file.
ATTRIBUTE_START = re.compile(r"#!?\[[^\];{}]*=\s*$")


class Crate:
    """A crate of the workspace: its imports and sources."""

    def __init__(self, folder, shared=None):
        """Reads the manifest in `folder`. `shared` are the dependencies in the workspace's manifest."""
        self.folder = folder
        self.name = folder.name
        manifest = tomllib.loads((folder / "Cargo.toml").read_text())
        self.library = manifest.get("lib", {}).get("name", manifest["package"]["name"].replace("-", "_"))
        tables = [manifest, *manifest.get("target", {}).values()]
        crates_of = lambda kind: {crate_name(package(name, given, shared or {})) for table in tables for name, given in table.get(kind, {}).items()} - {None}
        self.imports = crates_of("dependencies") | crates_of("build-dependencies")
        self.test_imports = crates_of("dev-dependencies")
        self.is_published = manifest["package"].get("publish", True) is not False


def package(name, given, shared):
    """The package of a dependency, which may be renamed here or in the workspace's manifest."""
    if not isinstance(given, dict):
        return name
    inherited = shared.get(name, {}) if given.get("workspace") else {}
    return given.get("package") or (inherited.get("package") if isinstance(inherited, dict) else None) or name


def crate_name(package):
    """The crate of a package of this workspace; None for other packages."""
    return package.removeprefix("longma-") if package.startswith("longma-") else None


def manifests(root=ROOT):
    """The manifest of each crate: `crates/CRATE` or `crates/GROUP/CRATE`."""
    return sorted([*root.glob("crates/*/Cargo.toml"), *root.glob("crates/*/*/Cargo.toml")])


def crates(root=ROOT):
    """The crates of the workspace by name."""
    shared = tomllib.loads((root / "Cargo.toml").read_text())["workspace"]["dependencies"]
    found = (Crate(manifest.parent, shared) for manifest in manifests(root))
    return {crate.name: crate for crate in found}


def layers(text):
    """The layer of each crate, from the table of crates/README.md."""
    return {name: int(layer) for name, layer in re.findall(r"^\| `([\w-]+)` \| (\d+) \|", text, re.M)}


def code(path):
    """A file's text without comments, string contents and inline tests. Paths in attributes remain."""
    source = path.read_text()

    def replacement(found):
        if found["comment"]:
            return ""
        if '"' in found[0] and ATTRIBUTE_START.search(source, max(0, found.start() - 500), found.start()):
            return found[0] if found[0].endswith('.rs"') else found[0].strip('"') if re.fullmatch(r'"[\w:]+"', found[0]) else '""'
        return '""'

    text = re.sub(r"\br#(?=\w)", "", COMMENT_OR_LITERAL.sub(replacement, source))
    while found := INLINE_TESTS.search(text):
        text = text[: found.start()] + text[found.end() - 1 + block_length(text[found.end() - 1 :]) :]
    return text


def module_of(path, sources):
    """The module path of a file, as a list of names below the crate root."""
    parts = list(path.relative_to(sources).with_suffix("").parts)
    return parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts


def leaves(tree, renamed=False):
    """The paths imported by a `use` tree: `a::{b, c::d}` imports a::b and a::c::d. With `renamed`, they include ` as NAME`."""
    depth, start, parts = 0, 0, []
    for at, letter in enumerate(tree + ","):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            parts.append(tree[start:at].strip())
            start = at + 1
    for part in filter(None, parts):
        head, brace, rest = part.partition("{")
        if brace:
            yield from (head + leaf for leaf in leaves(rest[: rest.rindex("}")], renamed))
        else:
            yield part if renamed else re.sub(r"\s+as\s+\w+$", "", part)


def root_imports(text):
    """The imports of the crate root, which its submodules see: the source module by name, and the paths of glob imports."""
    names, globs = {}, []
    for tree in re.findall(r"\buse\s+([^;]+);", text):
        for leaf in leaves(re.sub(r"\s+", " ", tree), renamed=True):
            path, _, alias = leaf.partition(" as ")
            words = re.sub(r"^((crate|self)::)+", "", path).split("::")
            if words[-1] == "*":
                globs.append(words)
            elif len(words) > 1 or alias:
                names[alias or words[-1]] = words[0]

    def resolve(name, seen=()):
        """Follows aliases in the root."""
        return resolve(names[name], (*seen, name)) if name in names and name not in seen else name

    return {name: resolve(module) if module != name else module for name, module in names.items()}, [[resolve(words[0]), *words[1:]] for words in globs]


def root_items(text):
    """The items of the crate root: pairs of name and text."""
    for found in ROOT_ITEM.finditer(text):
        rest = text[found.end() :]
        # Array lengths contain a semicolon.
        end = re.search(r"[{;]", re.sub(r"\[[^\]\[{}]*\]", lambda array: "_" * len(array[0]), rest))
        if end:
            yield found[1] or found[2], rest[: end.start() + block_length(rest[end.start() :]) if end[0] == "{" else end.start()]


def module_paths(files, sources):
    """The module path of each file, following #[path] attributes."""
    paths = {path: module_of(path, sources) for path in files}
    # A module with a #[path] may contain another one; three levels suffice.
    for _ in range(3):
        for path, text in files.items():
            for relative, name in PATH_MODULE.findall(text):
                target = pathlib.Path(os.path.normpath(path.parent / relative))
                if target in paths:
                    paths[target] = [*paths[path], name]
    return paths


def code_files(sources):
    """The text of each file that is not test-only, without comments and tests."""
    files = {path: code(path) for path in sorted(sources.rglob("*.rs"))}
    paths = module_paths(files, sources)
    test_modules = set()
    for path, text in files.items():
        # Test builds may replace a module by one of the same name, which is then not test-only.
        others = set(re.findall(r"\bmod\s+(\w+)\s*;", TEST_MODULE.sub("", text)))
        test_modules |= {(*paths[path], name) for name in TEST_MODULE.findall(text) if name not in others}

    def is_test(path):
        return any(tuple(paths[path][:count]) in test_modules for count in range(1, len(paths[path]) + 1))

    return {path: text for path, text in files.items() if not is_test(path)}


def split_modules(text, here):
    """Splits the text of the module `here` into pairs of module path and text, one for each inline module and one for the rest."""
    outer, at = [], 0
    while found := INLINE_MODULE.search(text, at):
        outer.append(text[at : found.end()] + "}")
        at = found.end() - 1 + block_length(text[found.end() - 1 :])
        yield from split_modules(text[found.end() : at - 1], [*here, found[1]])
    yield here, "".join([*outer, text[at:]])


def modules(crate):
    """The imports between the top-level modules of a crate, with an example of each."""
    sources = crate.folder / "src"
    files = code_files(sources)
    paths = module_paths(files, sources)
    parts = [(path, *part) for path, text in files.items() for part in split_modules(text, paths[path])]
    roots = [text for _, here, text in parts if not here]
    known = {name for text in roots for name in re.findall(r"\bmod\s+(\w+)\s*;", TEST_MODULE.sub("", text))}
    known |= {here[0] for path, here, _ in parts if len(here) == 1 and not paths[path]}
    texts_of = lambda name: [text for _, here, text in parts if here[:1] == [name]]
    origins = name_origins(roots, known, texts_of)
    macros = {macro: origins.get(macro, set()) for text in roots for macro in re.findall(r"\bmacro_rules!\s+(\w+)", text)}
    for module in {module for text in roots for module in MACRO_USE_MODULE.findall(text)}:
        for macro in {macro for text in texts_of(module) for macro in re.findall(r"\bmacro_rules!\s+(\w+)", text)}:
            macros.setdefault(macro, set()).add(module)
    edges = {name: {} for name in known}
    for path, here, text in parts:
        if not here or here[0] not in known:
            continue
        found = {}
        for target, place in imports(text, here, crate.library):
            # A glob import of the root imports all its names. Count the names that occur, and the modules that occur in paths.
            named = [target]
            if target == "*":
                named = (origins.keys() & set(re.findall(r"\w+", text))) | (known & set(re.findall(r"\b(\w+)\s*::", text)))
            for module in set().union(*({name} if name in known else origins.get(name, ()) for name in named)):
                found.setdefault(module, place)
        for macro in macros.keys() & set(re.findall(r"\b(\w+)!", text)):
            for module in macros[macro]:
                found.setdefault(module, f"{macro}!")
        for module, place in found.items():
            if module != here[0]:
                edges[here[0]].setdefault(module, f"{path.relative_to(crate.folder)}: {place}")
    return edges


def name_origins(roots, known, texts_of):
    """The modules that each name in the crate root depends on: the module it is imported from, or those that the item uses."""
    origins = {}
    for text in roots:
        names, globs = root_imports(text)
        for name, module in names.items():
            origins.setdefault(name, set()).add(module)
        for glob in globs:
            for item in glob_names(glob, texts_of(glob[0])):
                origins.setdefault(item, set()).add(glob[0])
    for module in known:
        for macro in {macro for text in texts_of(module) for macro in EXPORTED_MACRO.findall(text)}:
            origins.setdefault(macro, set()).add(module)
    own = [item for text in roots for item in root_items(text)]
    # Items of the root may use each other, so repeat until nothing changes, at most once per item.
    for _ in range(len(own)):
        before = sum(map(len, origins.values()))
        for name, body in own:
            used = set(re.findall(r"\b(\w+)\s*::", body)) & known
            used |= set().union(*(origins.get(word, set()) for word in re.findall(r"\w+", body)))
            origins.setdefault(name, set()).update(used & known)
        if sum(map(len, origins.values())) == before:
            break
    return {name: modules & known for name, modules in origins.items() if modules & known}


def glob_names(glob, texts):
    """The names that a glob import at the root imports from a module with these texts, or from an enum in it."""
    for text in texts:
        yield from (name for names in EXPORTED_ITEM.findall(text) for name in names if name)
        for tree in re.findall(VISIBLE + r"use\s+([^;]+);", text):
            yield from (re.split(r"::| as ", leaf)[-1] for leaf in leaves(re.sub(r"\s+", " ", tree), renamed=True))
        for found in re.finditer(r"\benum\s+" + glob[-2] + r"\b[^{;]*", text):
            yield from re.findall(r"\b[A-Z]\w*", text[found.end() : found.end() + block_length(text[found.end() :])])


def path_below_root(path, here, names):
    """The components of `path`, used in module `here`, below the crate root; None if the path is elsewhere.

    `names` are the names of the root: `crate`, the library and aliases.
    """
    words = path.removeprefix("::").split("::")
    if words[0] in names:
        words, levels_up = words[1:], len(here)
    else:
        levels_up = 0
        while words and words[0] in ("self", "super"):
            levels_up += words.pop(0) == "super"
    if levels_up < max(1, len(here)):
        return None
    return [] if words[:1] == ["self"] else words


def imports(text, here, library):
    """The names that module `here` imports from its crate root, directly, through `super` or by an alias, each with an example."""
    flat = re.sub(r"\s+", " ", text)
    names = {"crate", library, *re.findall(r"\bextern crate self as (\w+)", flat)}
    uses = [leaf.partition(" as ") for tree in re.findall(r"\buse ([^;]+);", flat) for leaf in leaves(tree, renamed=True)]
    names |= {alias for path, _, alias in uses if alias and path_below_root(path, here, names) == []}
    for path, _, _ in uses:
        if words := path_below_root(path, here, names):
            yield words[0], path
    rest = re.sub(r"\buse [^;]+;", "", flat)
    for match in re.finditer(rf"(?<!\w::)\b((?:self::)*(?:super::)*super|{'|'.join(sorted(names))})::(\{{|\*|\w+)", rest):
        tree = rest[match.start(2) :]
        tree = tree[: block_length(tree)] if match[2] == "{" else match[2]
        for leaf in leaves(tree):
            if words := path_below_root(f"{match[1]}::{leaf}", here, names):
                yield words[0], match[0]


def block_length(text):
    """The length of the block at the start of `text`, with its braces."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return at + 1
    return len(text)


def cycles(edges):
    """Sets of modules that import each other, directly or indirectly."""

    def reached(start):
        seen, rest = set(), [start]
        while rest:
            for target in edges.get(rest.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    rest.append(target)
        return seen

    reach = {name: reached(name) for name in edges}
    found = {tuple(sorted(other for other in reach[name] if name in reach.get(other, ()))) for name in edges if name in reach[name]}
    return sorted(found)


def lines(crate):
    """The line counts of a crate's source files: those with code, and those that are test-only."""
    sources = crate.folder / "src"
    code_paths = code_files(sources)
    code_lines, test_lines = {}, {}
    for path in sorted(sources.rglob("*.rs")):
        (code_lines if path in code_paths else test_lines)[path] = len(path.read_text().splitlines())
    return code_lines, test_lines


def draw():
    """Prints the crates by layer, with their line counts and imports."""
    found, layer_of = crates(), layers((ROOT / "crates/README.md").read_text())
    for layer in sorted(set(layer_of.values()), reverse=True):
        print(f"layer {layer}")
        for name in sorted(name for name in found if layer_of.get(name) == layer):
            imported = ", ".join(sorted(found[name].imports, key=lambda it: (-layer_of.get(it, 0), it)))
            mark = "published" if found[name].is_published else ""
            code_lines, test_lines = (sum(counted.values()) for counted in lines(found[name]))
            tests = f"and {test_lines} of tests" if test_lines else ""
            print(f"  {name:17} {code_lines:6} lines {tests:17}  {mark:9}  {imported}")


def draw_modules(crate):
    """Prints the modules of a crate, their imports and cycles."""
    edges = modules(crate)
    for name in sorted(edges):
        print(f"{name:20} {', '.join(sorted(edges[name]))}")
    for cycle in cycles(edges):
        print(f"cycle: {', '.join(cycle)}")
        for name in cycle:
            for target in sorted(edges[name].keys() & set(cycle)):
                print(f"  {name} -> {target}  ({edges[name][target]})")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        draw_modules(crates()[sys.argv[1]])
    else:
        draw()
