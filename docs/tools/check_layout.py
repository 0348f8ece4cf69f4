"""Look at every page of the built site in headless Chromium: nothing is cut off, missing, or asked of the network.

    python docs/tools/check_layout.py HTML_FOLDER [--shots FOLDER PAGE ...]

needs playwright (`pip install playwright`) and a Chromium, found on the path or named by the variable CHROMIUM. Pages
are opened from the disk at widths of 1,280 and 400 pixels; listings of the source are left out. A page is wrong if it
scrolls sideways, if code or output is cut (or has to be scrolled at 1,280 pixels), if an image is missing, if the
console has an error, or if it asks for anything outside the folder. `--shots` also takes pictures of the named pages,
light and dark. Exits with 1 if a page is wrong.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

WIDTHS = (1280, 400)
MEASURE = """() => {
  const wide = document.documentElement;
  const cut = [...document.querySelectorAll('.bd-article pre, .bd-article table')].filter(block => {
    let box = block;
    while (box && box !== document.body) {
      if (['auto', 'scroll'].includes(getComputedStyle(box).overflowX)) return false;
      box = box.parentElement;
    }
    return block.scrollWidth > block.clientWidth + 1 || block.getBoundingClientRect().right > innerWidth + 1;
  });
  const code = [...document.querySelectorAll('.bd-article pre')].filter(b => b.scrollWidth > b.clientWidth + 1);
  const missing = [...document.images].filter(i => i.complete && i.naturalWidth === 0 && i.offsetParent !== null);
  return {sideways: wide.scrollWidth - wide.clientWidth, cut: cut.length, scrolled: code.length,
          missing: missing.map(i => i.getAttribute('src'))};
}"""


def look(page: Any, path: Path, width: int) -> tuple[list[str], int]:
    """Return what is wrong with a page, and how many blocks of code have to be scrolled."""
    wrong: list[str] = []

    def asked(request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            wrong.append(f"asks for {request.url}")

    def said(message: Any) -> None:
        if message.type == "error" and "CORS" not in message.text and "origin 'null'" not in message.text:
            wrong.append(f"console: {message.text}")

    page.on("request", asked)
    page.on("console", said)
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(path.as_uri(), wait_until="load")
    page.wait_for_timeout(50)
    found = page.evaluate(MEASURE)
    if found["sideways"] > 1:
        wrong.append(f"scrolls sideways by {found['sideways']} pixels")
    if found["cut"]:
        wrong.append(f"{found['cut']} blocks are cut")
    if found["scrolled"] and width == max(WIDTHS):
        wrong.append(f"{found['scrolled']} blocks of code have to be scrolled")
    wrong += [f"no image {name}" for name in found["missing"]]
    return wrong, found["scrolled"]


def main(folder: Path, shots: Path | None, named: list[str]) -> int:
    """Look at all pages, and return how many are wrong."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    pages = sorted(path for path in folder.rglob("*.html") if not {"_static", "_modules"} & set(path.parts))
    n_wrong, scrolled = 0, dict.fromkeys(WIDTHS, 0)
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width in WIDTHS:
            for path in pages:
                page = browser.new_page()
                wrong, n_scrolled = look(page, path, width)
                scrolled[width] += n_scrolled
                n_wrong += bool(wrong)
                for line in wrong:
                    print(f"{path.relative_to(folder)} at {width}: {line}")
                page.close()
        for name in named if shots else []:
            shots.mkdir(parents=True, exist_ok=True)
            for width in WIDTHS:
                for scheme in ("light", "dark"):
                    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
                    page.goto((folder / f"{name}.html").as_uri(), wait_until="load")
                    page.wait_for_timeout(800)
                    page.screenshot(path=shots / f"{name.replace('/', '_')}-{width}-{scheme}.png", full_page=True)
                    page.close()
        browser.close()
    print(f"{len(pages)} pages at {len(WIDTHS)} widths: {n_wrong} wrong; blocks of code that scroll: {scrolled}")
    return n_wrong


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if not arguments:
        raise SystemExit(__doc__)
    place = arguments.index("--shots") if "--shots" in arguments else len(arguments)
    rest = arguments[place + 1 :]
    raise SystemExit(bool(main(Path(arguments[0]).resolve(), Path(rest[0]) if rest else None, rest[1:])))
