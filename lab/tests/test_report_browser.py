# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The committed report in a real browser: it opens, no picture is missing, and it reads on a telephone and on
a wide screen.

The page is framed at the width in question, with a script added that measures and reports to the frame's
owner: the page itself has none.
"""

import json
import re
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import pytest

from trapless_lab import host

PAGE = Path(__file__).resolve().parents[2] / "docs/report/report.html"
WIDTHS = (400, 1200, 1400)

_PROBE = """<script>
addEventListener("load", () => {
  const pictures = [...document.images];
  const texts = [...document.querySelectorAll("p, td, th, li, h1, h2, h3, h4, figcaption, summary")];
  parent.postMessage({
    width: innerWidth,
    scrolls: document.documentElement.scrollWidth,
    pictures: pictures.length,
    missing: pictures.filter(one => !one.complete || !one.naturalWidth).map(one => one.title),
    narrowest: Math.min(...pictures.map(one => one.getBoundingClientRect().width)),
    smallest: Math.min(...texts.map(one => parseFloat(getComputedStyle(one).fontSize))),
    fetched: performance.getEntriesByType("resource").map(one => one.name).filter(
      name => !name.startsWith("data:")),
    anchors: [...document.querySelectorAll("a[href^='#']")].filter(
      one => !document.getElementById(one.getAttribute("href").slice(1))).length,
    sections: document.querySelectorAll("section").length,
  }, "*");
});
</script>"""
_FRAME = """<!DOCTYPE html><pre id="found"></pre><script>
addEventListener("message", event => found.textContent = JSON.stringify(event.data));
</script><iframe src="page.html" width="{width}" height="1200" style="border:0"></iframe>"""


@dataclass(frozen=True)
class Seen:
    """What the browser made of a page."""

    width: int
    scrolls: int
    pictures: int
    missing: list[str]
    narrowest: float | None
    smallest: float
    fetched: list[str]
    anchors: int
    sections: int

    @property
    def faults(self) -> list[str]:
        """What is wrong with it."""
        faults = {
            "it is empty": not self.sections or not self.pictures,
            f"pictures are missing: {self.missing}": bool(self.missing),
            f"it scrolls to the side: {self.scrolls} of {self.width} pixels": self.scrolls > self.width,
            f"a picture is {self.narrowest} pixels wide": (self.narrowest or 0) < 300,
            f"letters of {self.smallest} pixels": self.smallest < 13,
            f"it fetches {self.fetched}": bool(self.fetched),
            f"{self.anchors} links lead nowhere": self.anchors > 0,
        }
        return [text for text, wrong in faults.items() if wrong]


def look(html: str, width: int, folder: Path) -> Seen:
    """Show a page in a frame of a width."""
    (folder / "page.html").write_text(html.replace("</head>", f"{_PROBE}</head>"))
    (folder / "frame.html").write_text(_FRAME.format(width=width))
    quiet = ("gpu", "background-networking", "component-update", "sync")
    command: list[str | Path] = [
        *(host.tool("chromium", "chromium"), "--headless", "--no-sandbox", "--no-first-run"),
        *(f"--disable-{what}" for what in quiet),
        *(f"--user-data-dir={folder / 'profile'}", f"--window-size={width + 100},1300"),
        *("--virtual-time-budget=20000", "--dump-dom", f"file://{folder / 'frame.html'}"),
    ]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180).stdout
    found = re.search(r'<pre id="found">(\{.*?\})</pre>', shown)
    assert found, f"the browser showed nothing:\n{shown[-2000:]}"
    return Seen(**json.loads(unescape(found[1])))


@pytest.mark.long("chromium, a package of 300 MB; the page's text is tested without")
@pytest.mark.parametrize("width", WIDTHS)
def test_it_reads(width: int, tmp_path: Path) -> None:
    seen = look(PAGE.read_text(), width, tmp_path)
    assert seen.width == width and seen.faults == []
    assert seen.pictures > 20 and seen.sections > 50


@pytest.mark.long("chromium, a package of 300 MB; the page's text is tested without")
@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (r"data:image/svg\+xml;base64,[^\"]*", "data:image/svg+xml;base64,AAAA", "pictures are missing"),
        (r"data:image/svg\+xml;base64,[^\"]*", "gone.png", "pictures are missing"),
        ("<h1>", '<p style="width:1500px">wide</p><h1>', "scrolls to the side"),
        ("<h1>", '<p style="font-size:9px">small</p><h1>', "letters of 9 pixels"),
        (r'href="#held"', 'href="#gone"', "lead nowhere"),
        (r"(?s)<section>.*</section>", "", "it is empty"),
    ],
)
def test_what_is_wrong_is_seen(old: str, new: str, fault: str, tmp_path: Path) -> None:
    broken, times = re.subn(old, new, PAGE.read_text(), count=1)
    assert times == 1
    assert fault in "; ".join(look(broken, 400, tmp_path).faults)
