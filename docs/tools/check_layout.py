"""Look at every page of the built site in headless Chromium: nothing is cut off, missing, or asked of the network.

    python docs/tools/check_layout.py HTML_FOLDER [--shots FOLDER PAGE ...]

needs playwright (`pip install playwright`) and a Chromium, found on the path or named by the variable CHROMIUM. Pages
are served from the folder on this machine alone and opened one after another, at widths of 1,280 and 400 pixels;
listings of the source are left out. A page is wrong if it scrolls sideways, if code or output has to be scrolled at
1,280 pixels or is cut at 400, if text, a table or a picture reaches beyond the page, if an image is missing, if the
console has an error, or if it asks for anything from elsewhere. `--shots` also takes pictures of the named pages, light
and dark. Exits with 1 if a page is wrong.
"""

import os
import shutil
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

WIDTHS = (1280, 400)
# Formulas are typeset after the page has loaded, and change its width.
TYPESET = "() => window.MathJax && MathJax.startup ? MathJax.startup.promise.then(() => true) : true"
MEASURE = """narrow => {
  const page = document.documentElement;
  const scrolls = box => ['auto', 'scroll'].includes(getComputedStyle(box).overflowX);
  const inside = block => {  // a box that scrolls by itself; the article as a whole must not
    for (let box = block; box && !box.matches('.bd-article'); box = box.parentElement) if (scrolls(box)) return true;
    return false;
  };
  const first = block => (block.innerText || '').trim().split('\\n')[0].slice(0, 60);
  const parts = ['pre', 'table', 'img', 'p', 'li', 'dt', 'dd', 'h1', 'h2', 'h3', 'mjx-container'];
  const shown = [...document.querySelectorAll(parts.map(part => `.bd-article ${part}`).join())]
    .filter(block => block.offsetParent !== null);
  const wrong = [], wide = [];
  for (const block of shown) {
    if (wide.some(outer => outer.contains(block))) continue;  // named already
    const over = block.scrollWidth - block.clientWidth;
    const name = block.tagName.toLowerCase();
    if (name === 'pre' && over > 1 && (!narrow || !inside(block)))
      wrong.push(`code is ${over} pixels too wide: ${first(block)}`);
    else if (block.getBoundingClientRect().right > innerWidth + 1 && !inside(block)) {
      wide.push(block);
      wrong.push(`${name} reaches beyond the page: ${name === 'img' ? block.getAttribute('src') : first(block)}`);
    }
  }
  for (const image of document.images)
    if (image.complete && image.naturalWidth === 0 && image.offsetParent !== null)
      wrong.push(`no image ${image.getAttribute('src')}`);
  if (page.scrollWidth > page.clientWidth + 1)
    wrong.push(`scrolls sideways by ${page.scrollWidth - page.clientWidth} pixels`);
  return wrong;
}"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line per request."""

    protocol_version = "HTTP/1.1"  # one connection for all files

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


class Viewer:
    """One page of a browser, and what went wrong on it."""

    def __init__(self, browser: Any, root: str, **options: Any) -> None:
        self.page, self.root, self.wrong = browser.new_page(**options), root, []
        self.page.on("request", self._asked)
        self.page.on("console", lambda said: said.type == "error" and self.wrong.append(f"console: {said.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.root, "data:", "blob:")):
            self.wrong.append(f"asks for {request.url}")

    def open(self, name: str) -> None:
        """Open a page of the site and wait until its formulas are typeset."""
        self.wrong.clear()
        self.page.goto(f"{self.root}/{name}", wait_until="load")
        self.page.evaluate(TYPESET)

    def check(self, name: str) -> list[str]:
        """Return what is wrong with a page, at all widths."""
        self.page.set_viewport_size({"width": WIDTHS[0], "height": 900})
        self.open(name)
        found = []
        for width in WIDTHS:
            self.page.set_viewport_size({"width": width, "height": 900})
            found += [f"at {width}: {line}" for line in self.page.evaluate(MEASURE, width < WIDTHS[0])]
        return [*self.wrong, *found]


def take_shots(browser: Any, root: str, shots: Path, names: list[str]) -> None:
    """Take pictures of whole pages, at all widths, light and dark."""
    shots.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            viewer = Viewer(browser, root, color_scheme=scheme, viewport={"width": width, "height": 900})
            for name in names:
                viewer.open(f"{name}.html")
                viewer.page.screenshot(path=shots / f"{name.replace('/', '_')}-{width}-{scheme}.png", full_page=True)
            viewer.page.close()


def main(folder: Path, shots: Path | None, named: list[str]) -> int:
    """Look at all pages, and return how many are wrong."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    paths = [path.relative_to(folder) for path in sorted(folder.rglob("*.html"))]
    names = [path.as_posix() for path in paths if path.parts[0] not in ("_static", "_modules")]
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    root, n_wrong = f"http://127.0.0.1:{server.server_port}", 0
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        viewer = Viewer(browser, root)
        for name in names:
            wrong = viewer.check(name)
            n_wrong += bool(wrong)
            for line in wrong:
                print(f"{name}: {line}")
        if shots:
            take_shots(browser, root, shots, named)
        browser.close()
    server.shutdown()
    print(f"{len(names)} pages at {len(WIDTHS)} widths: {n_wrong} wrong")
    return n_wrong


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if not arguments:
        raise SystemExit(__doc__)
    place = arguments.index("--shots") if "--shots" in arguments else len(arguments)
    rest = arguments[place + 1 :]
    raise SystemExit(bool(main(Path(arguments[0]).resolve(), Path(rest[0]) if rest else None, rest[1:])))
