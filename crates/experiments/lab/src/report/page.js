"use strict";
// What a chart's mark says to whoever points at it; light and dark; copying a command. Nothing is fetched.
(() => {
  const tip = document.getElementById("tip");
  const show = (text, x, y) => {
    tip.textContent = text;
    tip.classList.add("shown");
    const box = tip.getBoundingClientRect();
    const left = x + 14 + box.width > innerWidth ? x - 14 - box.width : x + 14;
    const top = y + 14 + box.height > innerHeight ? y - 14 - box.height : y + 14;
    tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
  };
  const hide = () => tip.classList.remove("shown");
  // On a line the nearest mark answers, so that nobody has to hit a dot.
  const nearest = (figure, x, y) => {
    let best = null, least = 28 * 28;
    for (const mark of figure.querySelectorAll(".mark")) {
      const box = mark.getBoundingClientRect();
      const dx = x - box.x - box.width / 2, dy = y - box.y - box.height / 2;
      if (dx * dx + dy * dy < least) { least = dx * dx + dy * dy; best = mark; }
    }
    return best;
  };
  for (const figure of document.querySelectorAll("figure.chart")) {
    figure.addEventListener("pointermove", (event) => {
      const hit = event.target.closest?.(".mark") ?? (figure.classList.contains("line") ? nearest(figure, event.clientX, event.clientY) : null);
      if (hit) show(hit.dataset.tip, event.clientX, event.clientY); else hide();
    });
    figure.addEventListener("pointerleave", hide);
  }
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(button.previousElementSibling.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(button.previousElementSibling);
      }
    });
  }
})();
