"""A page of the report in a real browser: what a reader sees, at both widths and in both colour schemes."""

from __future__ import annotations

import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from legrad.experiments.symbols import typeset

WIDTHS = {"phone": (390, 844), "desktop": (1280, 900)}
VERDICTS = {True: "holds", False: "does not hold", None: "not measured"}
ANSWERS = {True: "yes", False: "no", None: "not measured"}
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]

LOOK = """() => {
  const folded = document.querySelectorAll("details[open]").length === 0;
  const closed = document.documentElement.scrollWidth;
  document.querySelectorAll("details").forEach(d => { d.open = true; });
  const text = e => e.innerText.replace(/\\s+/g, " ").trim();
  const sized = [...document.body.querySelectorAll("*")].filter(
    e => e.offsetParent && !e.closest("sub, sup") && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
  return {
    background: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.body).color,
    folded,
    width: Math.max(closed, document.documentElement.scrollWidth),
    small: sized.filter(e => parseFloat(getComputedStyle(e).fontSize) < 15).map(e => e.outerHTML.slice(0, 80)),
    claims: Object.fromEntries([...document.querySelectorAll("table.claims tr.claim")].map(r => [
      r.id.replace("claim-", ""),
      ["summary", ".says", ".measured", ".command", "td.number", "td.judged"].map(c => text(r.querySelector(c)))])),
    images: [...document.images].map(i => ({
      loaded: i.complete && i.naturalWidth > 0, seen: i.offsetWidth > 100, alt: i.alt, current: i.currentSrc,
      light: i.src, dark: i.parentElement.querySelector("source").srcset})),
  };
}"""


def chromium() -> str:
    """The browser's path; skips the test if there is none."""
    pytest.importorskip("playwright.sync_api", reason="the browser test needs playwright")
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("the browser test needs chromium, chromium-browser or google-chrome on the path")


def check_page(path: Path, claims: list[dict[str, Any]], shots: Path | None = None) -> None:
    """Open a report in a browser and check what it shows.

    Args:
        path: the index.html.
        claims: as in results.json.
        shots: a directory for a picture of each view; none are made if None.
    """
    program = chromium()
    from playwright.sync_api import sync_playwright

    backgrounds = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        try:
            for device, (width, height) in WIDTHS.items():
                for scheme in ("light", "dark"):
                    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                    requests, complaints = [], []
                    page.on("request", lambda r, seen=requests: seen.append(r.url))
                    page.on("console", lambda m, seen=complaints: seen.append(m.text))
                    page.on("pageerror", lambda e, seen=complaints: seen.append(str(e)))
                    page.goto(Path(path).resolve().as_uri(), wait_until="load")
                    seen = page.evaluate(LOOK)
                    if shots is not None:
                        page.screenshot(path=shots / f"report_{device}_{scheme}.png", full_page=True)
                    page.close()
                    where = f"{device}, {scheme}"
                    _check_view(seen, claims, width, scheme, where)
                    assert not complaints, f"{where}: {complaints}"
                    away = [url[:200] for url in requests if urlsplit(url).scheme not in ("file", "data")]
                    assert not away, f"{where}: the page asked for {away}"
                    files = [url for url in requests if url.startswith("file:")]
                    assert len(files) == 1, f"{where}: the page needs other files: {files}"
                    backgrounds[device, scheme] = seen["background"]
        finally:
            browser.close()
    for device in WIDTHS:
        assert backgrounds[device, "light"] != backgrounds[device, "dark"], f"{device}: dark looks like light"


def _plain(text: str) -> str:
    """What is read of a text whose symbols are typeset."""
    return " ".join(unescape(re.sub("<[^>]*>", "", typeset(text))).split())


def _check_view(seen: dict[str, Any], claims: list[dict[str, Any]], width: int, scheme: str, where: str) -> None:
    assert seen["width"] <= width, f"{where}: the page is {seen['width']} px wide and scrolls sideways"
    assert not seen["small"], f"{where}: text below 15 px: {seen['small']}"
    assert len(seen["claims"]) == len(claims), where
    assert seen["folded"], f"{where}: the page opens with prose unfolded"
    for claim in claims:
        *cells, judged = seen["claims"][claim["id"]]
        symbol, _, verdict = judged.partition(" ")
        assert verdict == (ANSWERS if claim["ours"] else VERDICTS)[claim["holds"]], where
        assert len(symbol) == 1, f"{where}: {claim['id']} has no symbol"
        expected = [
            claim["short"] or claim["claim"],
            *(claim[name] for name in ("claim", "measured", "command", "number")),
        ]
        for cell, text in zip(cells, expected, strict=True):
            assert cell.endswith(_plain(text)), f"{where}: {claim['id']} says {cell!r}, not {text!r}"
    for image in seen["images"]:
        assert image["loaded"], f"{where}: {image['alt']} is not shown"
        assert image["seen"], f"{where}: {image['alt']} is too small to see"
        assert image["alt"], f"{where}: a figure has no words"
        assert image["light"] != image["dark"], f"{where}: {image['alt']} is the same in both styles"
        assert image["current"] == image[scheme], f"{where}: {image['alt']} is in the other style"
