#!/usr/bin/env python3
"""Analyses imports: between crates, by layer, and between the modules of a crate.

`tests/house.py` prints the crates; `tests/house.py CRATE` the modules of one crate and their cycles. test_house.py checks the rules of
crates/README.md and CONTRIBUTING.md.
"""

import os
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent

VISIBLE = r"\bpub(?:\([^)]*\))?\s+"
KIND = r"(?:const\s+|unsafe\s+|async\s+|extern\s+\"\"\s+)*(?:struct|enum|fn|trait|type|static|union|const|macro_rules!)\s+(\w+)"
# Visible items with a name: what a module can export.
ITEM = re.compile(VISIBLE + r"(?:mod\s+(\w+)|" + KIND + ")")
# Items of the root that its submodules see, including private ones; for a type, also its implementations.
OF_ROOT = re.compile(r"\b(?:" + KIND + r"|impl(?:<[^{;]*?>)?\s+(?:[\w:<>, ']+\s+for\s+)?(\w+))")
ATTRIBUTES = r"\s*(?:#\[[^\n]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?"
# Inline modules, modules in a file of another name, modules whose macros later ones see, and macros exported at the root.
INSIDE = re.compile(r"\bmod\s+(\w+)\s*\{")
ELSEWHERE = re.compile(r'#\[path\s*=\s*"([^"]+)"\]' + ATTRIBUTES + r"mod\s+(\w+)\s*;")
MACROS_OF = re.compile(r"#\[macro_use[^\]]*\]" + ATTRIBUTES + r"mod\s+(\w+)")
MACRO_AT_ROOT = re.compile(r"#\[macro_export[^\]]*\]" + ATTRIBUTES + r"macro_rules!\s+(\w+)")
# Tests in a file may import anything.
TESTS = re.compile(r"#\[cfg\((?:all\()?test\b[^\n]*\]\s*(?:#\[[^\n]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+\w+\s*\{")
# A file module that exists for tests only, with its submodules.
OF_TESTS = re.compile(r"#\[cfg\((?:all\()?test\b[^\n]*\]\s*(?:#\[[^\n]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;")
# Comments, strings and characters (a character may be a quotation mark); the one that starts first counts.
INNER = r"(?:[^*/]|\*(?!/)|/(?!\*))"
ASIDE = re.compile(
    rf"""(?P<comment>//[^\n]*|/\*(?:{INNER}|/\*{INNER}*\*/)*\*/)"""
    r"""|\b[bc]?r(?P<hashes>\#*)".*?"(?P=hashes)|"(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^'\\])'""",
    re.S,
)
# A string in an attribute may be a path, of a function or file.
IN_ATTRIBUTE = re.compile(r"#!?\[[^\];{}]*=\s*$")


class Crate:
    """A crate of the workspace: its imports and sources."""

    def __init__(self, folder, shared=None):
        """`shared`: the dependencies in the workspace's manifest."""
        self.folder = folder
        self.name = folder.name
        manifest = tomllib.loads((folder / "Cargo.toml").read_text())
        self.library = manifest.get("lib", {}).get("name", manifest["package"]["name"].replace("-", "_"))
        tables = [manifest, *manifest.get("target", {}).values()]
        of = lambda kind: {ours(package(name, given, shared or {})) for table in tables for name, given in table.get(kind, {}).items()} - {None}
        self.imports = of("dependencies") | of("build-dependencies")
        self.of_tests = of("dev-dependencies")
        self.is_published = manifest["package"].get("publish", True) is not False


def package(name, given, shared):
    """The package of a dependency, which may be renamed here or in the workspace's manifest."""
    if not isinstance(given, dict):
        return name
    inherited = shared.get(name, {}) if given.get("workspace") else {}
    return given.get("package") or (inherited.get("package") if isinstance(inherited, dict) else None) or name


def ours(package):
    """The folder of a package in the project; None for others."""
    return package.removeprefix("longma-") if package.startswith("longma-") else None


def manifests(root=ROOT):
    """The manifest of each crate: `crates/CRATE` or `crates/GROUP/CRATE`."""
    return sorted([*root.glob("crates/*/Cargo.toml"), *root.glob("crates/*/*/Cargo.toml")])


def crates(root=ROOT):
    """The crates of the workspace by name."""
    shared = tomllib.loads((root / "Cargo.toml").read_text())["workspace"]["dependencies"]
    found = (Crate(manifest.parent, shared) for manifest in manifests(root))
    return {crate.name: crate for crate in found}


def floors(text):
    """The layers in the table of crates/README.md, by crate."""
    return {name: int(floor) for name, floor in re.findall(r"^\| `([\w-]+)` \| (\d+) \|", text, re.M)}


def code(path):
    """A file's text without comments, strings and tests."""
    whole = path.read_text()

    def instead(found):
        if found["comment"]:
            return ""
        if '"' in found[0] and IN_ATTRIBUTE.search(whole, max(0, found.start() - 500), found.start()):
            return found[0] if found[0].endswith('.rs"') else found[0].strip('"') if re.fullmatch(r'"[\w:]+"', found[0]) else '""'
        return '""'

    text = re.sub(r"\br#(?=\w)", "", ASIDE.sub(instead, whole))
    while found := TESTS.search(text):
        text = text[: found.start()] + text[found.end() - 1 + closing(text[found.end() - 1 :]) :]
    return text


def module_of(path, sources):
    """The module path of a file, from the crate's root."""
    parts = list(path.relative_to(sources).with_suffix("").parts)
    return parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts


def leaves(tree, renamed=False):
    """The paths imported by a `use`: `a::{b, c::d}` gives a::b and a::c::d; with their local names if `renamed`."""
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


def passed_on(text):
    """The root's imports as its submodules see them, including private ones: name to source module, and the glob imports."""
    names, stars = {}, []
    for tree in re.findall(r"\buse\s+([^;]+);", text):
        for leaf in leaves(re.sub(r"\s+", " ", tree), renamed=True):
            path, _, alias = leaf.partition(" as ")
            words = re.sub(r"^((crate|self)::)+", "", path).split("::")
            if words[-1] == "*":
                stars.append(words)
            elif len(words) > 1 or alias:
                names[alias or words[-1]] = words[0]

    def first(name, seen=()):
        # The name may be an alias in the root.
        return first(names[name], (*seen, name)) if name in names and name not in seen else name

    return {name: first(module) if module != name else module for name, module in names.items()}, [[first(words[0]), *words[1:]] for words in stars]


def bodies(text):
    """The root's items: name to text."""
    for found in OF_ROOT.finditer(text):
        rest = text[found.end() :]
        # Array lengths contain a semicolon.
        end = re.search(r"[{;]", re.sub(r"\[[^\]\[{}]*\]", lambda array: "_" * len(array[0]), rest))
        if end:
            yield found[1] or found[2], rest[: end.start() + closing(rest[end.start() :]) if end[0] == "{" else end.start()]


def placed(files, sources):
    """The module path of each file, following #[path] attributes."""
    places = {path: module_of(path, sources) for path in files}
    # A module with a #[path] may contain another one.
    for _ in range(3):
        for path, text in files.items():
            for relative, name in ELSEWHERE.findall(text):
                target = pathlib.Path(os.path.normpath(path.parent / relative))
                if target in places:
                    places[target] = [*places[path], name]
    return places


def in_use(sources):
    """The non-test files, without their tests."""
    files = {path: code(path) for path in sorted(sources.rglob("*.rs"))}
    places = placed(files, sources)
    of_tests = set()
    for path, text in files.items():
        # A module may have one form for tests and another for other builds.
        in_earnest = set(re.findall(r"\bmod\s+(\w+)\s*;", OF_TESTS.sub("", text)))
        of_tests |= {(*places[path], name) for name in OF_TESTS.findall(text) if name not in in_earnest}

    def is_of_tests(path):
        return any(tuple(places[path][:count]) in of_tests for count in range(1, len(places[path]) + 1))

    return {path: text for path, text in files.items() if not is_of_tests(path)}


def sections(text, here):
    """A file's text by module; inline modules are separate."""
    outer, at = [], 0
    while found := INSIDE.search(text, at):
        outer.append(text[at : found.end()] + "}")
        at = found.end() - 1 + closing(text[found.end() - 1 :])
        yield from sections(text[found.end() : at - 1], [*here, found[1]])
    yield here, "".join([*outer, text[at:]])


def modules(crate):
    """The imports between first-level modules, with an example of each."""
    sources = crate.folder / "src"
    files = in_use(sources)
    places = placed(files, sources)
    parts = [(path, *part) for path, text in files.items() for part in sections(text, places[path])]
    roots = [text for _, here, text in parts if not here]
    known = {name for text in roots for name in re.findall(r"\bmod\s+(\w+)\s*;", OF_TESTS.sub("", text))}
    known |= {here[0] for path, here, _ in parts if len(here) == 1 and not places[path]}
    within = lambda name: [text for _, here, text in parts if here[:1] == [name]]
    behind = given_by_root(roots, known, within)
    macros = {macro: behind.get(macro, set()) for text in roots for macro in re.findall(r"\bmacro_rules!\s+(\w+)", text)}
    for module in {module for text in roots for module in MACROS_OF.findall(text)}:
        for macro in {macro for text in within(module) for macro in re.findall(r"\bmacro_rules!\s+(\w+)", text)}:
            macros.setdefault(macro, set()).add(module)
    edges = {name: {} for name in known}
    for path, here, text in parts:
        if not here or here[0] not in known:
            continue
        found = {}
        for target, place in imports(text, here, crate.library):
            # A glob import brings in all names of the root: count those that are used, and modules with used items.
            named = [target]
            if target == "*":
                named = (behind.keys() & set(re.findall(r"\w+", text))) | (known & set(re.findall(r"\b(\w+)\s*::", text)))
            for module in set().union(*({name} if name in known else behind.get(name, ()) for name in named)):
                found.setdefault(module, place)
        for macro in macros.keys() & set(re.findall(r"\b(\w+)!", text)):
            for module in macros[macro]:
                found.setdefault(module, f"{macro}!")
        for module, place in found.items():
            if module != here[0]:
                edges[here[0]].setdefault(module, f"{path.relative_to(crate.folder)}: {place}")
    return edges


def given_by_root(roots, known, within):
    """The modules behind each name in the root: those it is imported from and those that the item uses."""
    behind = {}
    for text in roots:
        names, stars = passed_on(text)
        for name, module in names.items():
            behind.setdefault(name, set()).add(module)
        for star in stars:
            for item in brought(star, within(star[0])):
                behind.setdefault(item, set()).add(star[0])
    for module in known:
        for macro in {macro for text in within(module) for macro in MACRO_AT_ROOT.findall(text)}:
            behind.setdefault(macro, set()).add(module)
    own = [row for text in roots for row in bodies(text)]
    # Items of the root may use each other; as many rounds as items suffice.
    for _ in range(len(own)):
        before = sum(map(len, behind.values()))
        for name, body in own:
            used = set(re.findall(r"\b(\w+)\s*::", body)) & known
            used |= set().union(*(behind.get(word, set()) for word in re.findall(r"\w+", body)))
            behind.setdefault(name, set()).update(used & known)
        if sum(map(len, behind.values())) == before:
            break
    return {name: modules & known for name, modules in behind.items() if modules & known}


def brought(star, texts):
    """The names that a glob import at the root brings in; for a type, its variants."""
    for text in texts:
        yield from (name for names in ITEM.findall(text) for name in names if name)
        for tree in re.findall(VISIBLE + r"use\s+([^;]+);", text):
            yield from (re.split(r"::| as ", leaf)[-1] for leaf in leaves(re.sub(r"\s+", " ", tree), renamed=True))
        for found in re.finditer(r"\benum\s+" + star[-2] + r"\b[^{;]*", text):
            yield from re.findall(r"\b[A-Z]\w*", text[found.end() : found.end() + closing(text[found.end() :])])


def at_root(path, here, names):
    """The words of a path within the root; empty for the root itself, None if it leads elsewhere."""
    words = path.removeprefix("::").split("::")
    if words[0] in names:
        words, climbed = words[1:], len(here)
    else:
        climbed = 0
        while words and words[0] in ("self", "super"):
            climbed += words.pop(0) == "super"
    if climbed < max(1, len(here)):
        return None
    return [] if words[:1] == ["self"] else words


def imports(text, here, library):
    """The names that a file imports from its crate's root: directly, through `super`, or by an alias."""
    flat = re.sub(r"\s+", " ", text)
    names = {"crate", library, *re.findall(r"\bextern crate self as (\w+)", flat)}
    uses = [leaf.partition(" as ") for tree in re.findall(r"\buse ([^;]+);", flat) for leaf in leaves(tree, renamed=True)]
    names |= {alias for path, _, alias in uses if alias and at_root(path, here, names) == []}
    for path, _, _ in uses:
        if words := at_root(path, here, names):
            yield words[0], path
    rest = re.sub(r"\buse [^;]+;", "", flat)
    for match in re.finditer(rf"(?<!\w::)\b((?:self::)*(?:super::)*super|{'|'.join(sorted(names))})::(\{{|\*|\w+)", rest):
        tree = rest[match.start(2) :]
        tree = tree[: closing(tree)] if match[2] == "{" else match[2]
        for leaf in leaves(tree):
            if words := at_root(f"{match[1]}::{leaf}", here, names):
                yield words[0], match[0]


def closing(text):
    """The position of the closing brace of a text that starts with an opening one."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return at + 1
    return len(text)


def circles(edges):
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
    """The line counts of a crate's source files: non-test and test-only."""
    sources = crate.folder / "src"
    used = in_use(sources)
    used_lines, test_lines = {}, {}
    for path in sorted(sources.rglob("*.rs")):
        (used_lines if path in used else test_lines)[path] = len(path.read_text().splitlines())
    return used_lines, test_lines


def draw():
    """Prints the crates by layer, with their line counts and imports."""
    found, high = crates(), floors((ROOT / "crates/README.md").read_text())
    for floor in sorted(set(high.values()), reverse=True):
        print(f"floor {floor}")
        for name in sorted(name for name in found if high.get(name) == floor):
            below = ", ".join(sorted(found[name].imports, key=lambda it: (-high.get(it, 0), it)))
            mark = "published" if found[name].is_published else ""
            used, tests = (sum(counted.values()) for counted in lines(found[name]))
            beside = f"and {tests} of tests" if tests else ""
            print(f"  {name:17} {used:6} lines {beside:17}  {mark:9}  {below}")


def draw_modules(crate):
    """Prints the modules of a crate, their imports and cycles."""
    edges = modules(crate)
    for name in sorted(edges):
        print(f"{name:20} {', '.join(sorted(edges[name]))}")
    for circle in circles(edges):
        print(f"circle: {', '.join(circle)}")
        for name in circle:
            for target in sorted(edges[name].keys() & set(circle)):
                print(f"  {name} -> {target}  ({edges[name][target]})")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        draw_modules(crates()[sys.argv[1]])
    else:
        draw()
