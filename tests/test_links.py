"""The links of the book and of the READMEs: every relative link leads to a file and an anchor, and SUMMARY.md lists every page once."""

import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOOK = ROOT / "docs" / "src"
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def text(page):
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text())


def anchors(page):
    """The anchors of a page's headings, as mdBook and GitHub make them."""
    found, seen = set(), {}
    for heading in re.findall(r"^#+ (.*)$", text(page), re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        count = seen.get(anchor, 0)
        seen[anchor] = count + 1
        found.add(anchor if not count else f"{anchor}-{count}")
    return found


def pages():
    """The Markdown files of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split() if (ROOT / name).is_file()]


def broken(page):
    """The relative links of a page that lead nowhere."""
    for link in LINK.findall(CODE.sub("", text(page))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{page.relative_to(ROOT)}: no file {link}"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{page.relative_to(ROOT)}: no heading {link}"


class Links(unittest.TestCase):
    def test_every_relative_link_leads_to_a_file_and_a_heading(self):
        self.assertEqual([], [link for page in pages() for link in broken(page)])

    def test_the_summary_lists_every_page_once(self):
        listed = sorted(LINK.findall((BOOK / "SUMMARY.md").read_text()))
        self.assertEqual(listed, sorted(str(page.relative_to(BOOK)) for page in BOOK.rglob("*.md") if page.name != "SUMMARY.md"))


if __name__ == "__main__":
    unittest.main()
