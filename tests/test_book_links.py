"""Every relative link of the book and of the READMEs leads to a file, and its anchor to a heading there; the summary lists every page.

Not a check of addresses outside the repository.
Source: the anchors are those that mdBook makes of headings.
"""

import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*?) *$", re.M)


def anchors(page):
    """The anchors of a page's headings."""
    found = set()
    for heading in HEADING.findall(FENCE.sub("", page.read_text())):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        anchor = re.sub(r"\s", "-", "".join(c for c in text.lower() if c.isalnum() or c in "_- "))
        number = 0
        while (f"{anchor}-{number}" if number else anchor) in found:
            number += 1
        found.add(f"{anchor}-{number}" if number else anchor)
    return found


def pages():
    """The pages of the book and every other Markdown file that git keeps."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.split() if listed.returncode == 0 else []
    return sorted({ROOT / name for name in names} | set((ROOT / "docs" / "src").rglob("*.md")))


def broken(page):
    """The links of a page that lead nowhere."""
    text = CODE.sub("", FENCE.sub("", page.read_text()))
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            yield f"{page.relative_to(ROOT)}: {link}: there is no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{page.relative_to(ROOT)}: {link}: there is no such heading"


class Links(unittest.TestCase):
    def test_every_relative_link_has_a_target(self):
        self.assertEqual([], [wrong for page in pages() if page.exists() for wrong in broken(page)])

    def test_the_summary_lists_every_page_once(self):
        book = ROOT / "docs" / "src"
        listed = sorted(LINK.findall((book / "SUMMARY.md").read_text()))
        there = [str(page.relative_to(book)) for page in book.rglob("*.md") if page.name != "SUMMARY.md"]
        self.assertEqual(listed, sorted(there))


if __name__ == "__main__":
    unittest.main()
