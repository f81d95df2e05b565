#!/usr/bin/env python3
"""Who imports whom: crates over their floors, and the modules inside a crate.

Not a judgement of what is in them. `tests/house.py` draws the crates; `tests/house.py CRATE` the modules of one, with its circles.
test_house.py holds both to what the README and CONTRIBUTING.md say.
"""

import os
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent

VISIBLE = r"\bpub(?:\([^)]*\))?\s+"
KIND = r"(?:const\s+|unsafe\s+|async\s+|extern\s+\"\"\s+)*(?:struct|enum|fn|trait|type|static|union|const|macro_rules!)\s+(\w+)"
# Visible to others and made of a name: what a module may give to those who import it.
ITEM = re.compile(VISIBLE + r"(?:mod\s+(\w+)|" + KIND + ")")
# What the root gives to those below it, who see its private items as well; a type gives what is implemented for it.
OF_ROOT = re.compile(r"\b(?:" + KIND + r"|impl(?:<[^{;]*?>)?\s+(?:[\w:<>, ']+\s+for\s+)?(\w+))")
ATTRIBUTES = r"\s*(?:#\[[^\n]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?"
# Modules inside a file, in a file of another name, and whose macros those after it see; macros that stand at the root.
INSIDE = re.compile(r"\bmod\s+(\w+)\s*\{")
ELSEWHERE = re.compile(r'#\[path\s*=\s*"([^"]+)"\]' + ATTRIBUTES + r"mod\s+(\w+)\s*;")
MACROS_OF = re.compile(r"#\[macro_use[^\]]*\]" + ATTRIBUTES + r"mod\s+(\w+)")
MACRO_AT_ROOT = re.compile(r"#\[macro_export[^\]]*\]" + ATTRIBUTES + r"macro_rules!\s+(\w+)")
# The tests of a file may look anywhere.
TESTS = re.compile(r"#\[cfg\((?:all\()?test\b[^\n]*\]\s*(?:#\[[^\n]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+\w+\s*\{")
# A module in a file of its own that is there for tests only, with all that is below it.
OF_TESTS = re.compile(r"#\[cfg\((?:all\()?test\b[^\n]*\]\s*(?:#\[[^\n]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;")
# What may look like code and is none, and single letters, of which one may be a quotation mark. Which begins first, counts.
INNER = r"(?:[^*/]|\*(?!/)|/(?!\*))"
ASIDE = re.compile(
    rf"""(?P<comment>//[^\n]*|/\*(?:{INNER}|/\*{INNER}*\*/)*\*/)"""
    r"""|\b[bc]?r(?P<hashes>\#*)".*?"(?P=hashes)|"(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^'\\])'""",
    re.S,
)
# A text of an attribute may be a path: of a function, of a file.
IN_ATTRIBUTE = re.compile(r"#!?\[[^\];{}]*=\s*$")


class Crate:
    """A crate of the workspace: what it imports, and its sources."""

    def __init__(self, folder, shared=None):
        """`shared` is what the workspace's manifest says of dependencies that are taken from there."""
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
    """The package that a dependency is of, whatever it is called here or in the workspace's manifest."""
    if not isinstance(given, dict):
        return name
    there = shared.get(name, {}) if given.get("workspace") else {}
    return given.get("package") or (there.get("package") if isinstance(there, dict) else None) or name


def ours(package):
    """The folder of a package of the project; None of others."""
    return package.removeprefix("longma-") if package.startswith("longma-") else None


def manifests(root=ROOT):
    """The manifest of each crate: `crates/CRATE` or `crates/SHELF/CRATE`."""
    return sorted([*root.glob("crates/*/Cargo.toml"), *root.glob("crates/*/*/Cargo.toml")])


def crates(root=ROOT):
    """The workspace's crates by name."""
    shared = tomllib.loads((root / "Cargo.toml").read_text())["workspace"]["dependencies"]
    found = (Crate(manifest.parent, shared) for manifest in manifests(root))
    return {crate.name: crate for crate in found}


def floors(text):
    """The floors in the table of crates/README.md, by crate."""
    return {name: int(floor) for name, floor in re.findall(r"^\| `([\w-]+)` \| (\d+) \|", text, re.M)}


def code(path):
    """A file without comments, texts and tests."""
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
    """The path of a file's module, from the crate's root."""
    parts = list(path.relative_to(sources).with_suffix("").parts)
    return parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts


def leaves(tree, renamed=False):
    """The paths that a `use` names: those of `a::{b, c::d}` are a::b and a::c::d; with what they are called here if `renamed`."""
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
    """What those below the root see of its imports, private ones as well: name to the module it is from, and the stars, as words."""
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
        # It may be another name of the root's.
        return first(names[name], (*seen, name)) if name in names and name not in seen else name

    return {name: first(module) if module != name else module for name, module in names.items()}, [[first(words[0]), *words[1:]] for words in stars]


def bodies(text):
    """The root's own items: each name with the text up to where it ends."""
    for found in OF_ROOT.finditer(text):
        rest = text[found.end() :]
        # The length of an array has a semicolon before it.
        end = re.search(r"[{;]", re.sub(r"\[[^\]\[{}]*\]", lambda array: "_" * len(array[0]), rest))
        if end:
            yield found[1] or found[2], rest[: end.start() + closing(rest[end.start() :]) if end[0] == "{" else end.start()]


def placed(files, sources):
    """The path of each file's module, where a line above it says that it is elsewhere too."""
    places = {path: module_of(path, sources) for path in files}
    # One that is elsewhere may say so of another.
    for _ in range(3):
        for path, text in files.items():
            for relative, name in ELSEWHERE.findall(text):
                there = pathlib.Path(os.path.normpath(path.parent / relative))
                if there in places:
                    places[there] = [*places[path], name]
    return places


def in_use(sources):
    """The files that are not there for tests only, each without its tests."""
    files = {path: code(path) for path in sorted(sources.rglob("*.rs"))}
    places = placed(files, sources)
    of_tests = set()
    for path, text in files.items():
        # A module may be there for tests here and in earnest beside it, in another form.
        in_earnest = set(re.findall(r"\bmod\s+(\w+)\s*;", OF_TESTS.sub("", text)))
        of_tests |= {(*places[path], name) for name in OF_TESTS.findall(text) if name not in in_earnest}

    def is_of_tests(path):
        return any(tuple(places[path][:count]) in of_tests for count in range(1, len(places[path]) + 1))

    return {path: text for path, text in files.items() if not is_of_tests(path)}


def sections(text, here):
    """A file's text by module: what stands in modules inside it is theirs."""
    outer, at = [], 0
    while found := INSIDE.search(text, at):
        outer.append(text[at : found.end()] + "}")
        at = found.end() - 1 + closing(text[found.end() - 1 :])
        yield from sections(text[found.end() : at - 1], [*here, found[1]])
    yield here, "".join([*outer, text[at:]])


def modules(crate):
    """Which first-level module imports which, with one place of each."""
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
            # A star brings all that the root has: what of it is named counts, modules where something of theirs is.
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
    """The modules that stand behind each name of the root: those it is imported from, and those that an item of the root's own uses."""
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
    # An item of the root may use another: as often as there are items is often enough.
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
    """The names that a star at the root brings there, of the texts of its module: of a type, its variants."""
    for text in texts:
        yield from (name for names in ITEM.findall(text) for name in names if name)
        for tree in re.findall(VISIBLE + r"use\s+([^;]+);", text):
            yield from (re.split(r"::| as ", leaf)[-1] for leaf in leaves(re.sub(r"\s+", " ", tree), renamed=True))
        for found in re.finditer(r"\benum\s+" + star[-2] + r"\b[^{;]*", text):
            yield from re.findall(r"\b[A-Z]\w*", text[found.end() : found.end() + closing(text[found.end() :])])


def at_root(path, here, names):
    """What a path names of the root, as words: none of them for the root itself; None if it leads elsewhere."""
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
    """What a file names of its crate's root, directly, by climbing or by another name of it: each with the words that do."""
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
    """Where the brace that a text begins with is closed."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return at + 1
    return len(text)


def circles(edges):
    """The sets of modules that reach each other, each sorted."""

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
    """The lines of each of a crate's sources: of files that are in use, and of those that are there for tests only."""
    sources = crate.folder / "src"
    used = in_use(sources)
    used_lines, test_lines = {}, {}
    for path in sorted(sources.rglob("*.rs")):
        (used_lines if path in used else test_lines)[path] = len(path.read_text().splitlines())
    return used_lines, test_lines


def draw():
    """The crates by floor, each with its lines and what it imports."""
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
    """The modules of a crate, what each imports, and where circles are."""
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
