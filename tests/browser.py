#!/usr/bin/env python3
"""Checks in headless Chromium that all charts of a report are drawn, their texts are legible, and no column is hidden.

Uses the light and the dark theme and windows of a telephone, a tablet and a screen. Fails if the page loads external
resources.

Usage: tests/browser.py REPORT.html [--screenshot FILE.png]
"""

import argparse
import html
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# Runs in the page after loading and stores its findings in the document, which Chromium then prints.
INSPECTION_SCRIPT = """
<script>
addEventListener("load", () => {
  const charts = [...document.querySelectorAll("figure.chart")].map((figure) => {
    const svg = figure.querySelector("svg");
    const frame = svg?.getBoundingClientRect();
    const marks = [...figure.querySelectorAll(".mark")];
    const seen = marks.filter((mark) => {
      const box = mark.getBoundingClientRect(), style = getComputedStyle(mark);
      const inside = box.left >= frame.left - 8 && box.right <= frame.right + 8 && box.top >= frame.top - 8 && box.bottom <= frame.bottom + 8;
      return inside && box.width > 0 && box.height > 0 && style.visibility === "visible" && (style.fill !== "none" || style.stroke !== "none");
    });
    const first = marks[0];
    let tip = "";
    if (first) {
      const box = first.getBoundingClientRect();
      first.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: box.x + box.width / 2, clientY: box.y + box.height / 2 }));
      tip = document.querySelector("#tip.shown")?.textContent ?? "";
    }
    const texts = [...figure.querySelectorAll("svg text")];
    const size = Math.min(...texts.map((text) => parseFloat(getComputedStyle(text).fontSize) * Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b)));
    const outside = texts.filter((text) => {
      const box = text.getBoundingClientRect();
      return box.left < frame.left - 2 || box.right > frame.right + 2 || box.bottom > frame.bottom + 2;
    }).map((text) => text.textContent);
    return { title: figure.querySelector("figcaption").textContent.trim(), wanted: Number(figure.dataset.marks ?? 0), marks: marks.length,
      seen: seen.length, width: frame?.width ?? 0, height: frame?.height ?? 0, tip, size, outside };
  });
  const fetched = performance.getEntriesByType("resource").map((entry) => entry.name);
  const out = document.createElement("pre");
  out.id = "seen";
  out.textContent = JSON.stringify({ charts, fetched, wide: document.documentElement.scrollWidth > innerWidth,
    hidden: [...document.querySelectorAll("th, td")].filter((cell) => getComputedStyle(cell).display === "none").length,
    paper: getComputedStyle(document.body).backgroundColor });
  document.body.append(out);
});
</script>
"""

# Smaller text of charts is not legible.
MIN_TEXT_PIXELS = 10


def chromium():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return name
    sys.exit("browser: needs Chromium: install the package chromium")


def inspect_page(page, theme, width, screenshot):
    """Loads the page with a theme and a window width; returns the findings."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder, "page.html")
        copy.write_text(page.replace('<html lang="en">', f'<html lang="en" data-theme="{theme}">').replace("</body>", INSPECTION_SCRIPT + "</body>"))
        command = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile",
                   f"--window-size={width},2400", "--proxy-server=127.0.0.1:9"]
        run = lambda *more: subprocess.run([*command, *more, copy.as_uri()], capture_output=True, text=True, timeout=180)
        done = run("--dump-dom")
        found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.S)
        if not found:
            sys.exit(f"browser: the page's script did not run: {done.stderr[-2000:]}")
        if screenshot:
            picture = screenshot.with_name(f"{screenshot.stem}-{theme}-{width}{screenshot.suffix}").resolve()
            run(f"--screenshot={picture}")
        return json.loads(html.unescape(found[1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--screenshot", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    page = arguments.report.read_text()
    passed, wrong, papers = 0, [], set()
    for theme, width in (("light", 1400), ("dark", 1400), ("light", 800), ("light", 390)):
        seen = inspect_page(page, theme, width, arguments.screenshot)
        papers.add(seen["paper"])
        if not seen["charts"]:
            wrong.append(f"{theme}: there is no chart")
        if seen["fetched"]:
            wrong.append(f"{theme}: something was fetched: {seen['fetched']}")
        if seen["wide"]:
            wrong.append(f"{theme}: the page is wider than a window of {width}")
        if seen["hidden"]:
            wrong.append(f"{theme}, {width} wide: {seen['hidden']} cells of tables are hidden")
        for chart in seen["charts"]:
            good = chart["marks"] == chart["wanted"] == chart["seen"] > 0 and chart["width"] > 100 and chart["height"] > 60 and chart["tip"]
            good = good and chart["size"] >= MIN_TEXT_PIXELS and not chart["outside"]
            passed += bool(good)
            if not good:
                wrong.append(f"{theme}, {width} wide: {chart}")
    if len(papers) != 2:
        wrong.append(f"light and dark look the same: {papers}")
    print("\n".join(wrong))
    print(f"browser: {passed} passed, {len(wrong)} failed")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
