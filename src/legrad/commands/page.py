"""One HTML page with everything in it: text, tables and pictures, without a file or an address besides."""

from __future__ import annotations

import base64
import io
from html import escape
from pathlib import Path
from typing import Any

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d1f21; --muted: #5b5e62; --rule: #d9d6ce; --good: #1b6b3a;
  --bad: #a3201d; --panel: #f6f5f1; }
@media (prefers-color-scheme: dark) { :root { --paper: #15171a; --ink: #e6e4df; --muted: #a6a8a8; --rule: #383c42;
  --good: #7fcf9b; --bad: #f29a8f; --panel: #1e2125; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 2.5rem 1.2rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 0.6rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 0.8rem; padding-top: 1rem; border-top: 1px solid var(--rule); }
.lead { font-size: 1.1rem; max-width: 46rem; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
.facts, .muted { color: var(--muted); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0 0 1.2rem; }
th, td { text-align: right; padding: 0.25rem 0.9rem 0.25rem 0; border-bottom: 1px solid var(--rule); }
th:first-child { text-align: left; font-weight: 500; } thead th { color: var(--muted); font-weight: 600; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
/* On a phone pictures scroll sideways in their place, so that they can be read. */
@media (max-width: 40rem) { .scroll img { max-width: none; width: 40rem; } }
pre { background: var(--panel); padding: 0.8rem 1rem; overflow-x: auto; font-size: 0.9rem; white-space: pre-wrap;
  overflow-wrap: anywhere; }
"""


def picture(figure: Any, words: str) -> str:
    """Return a matplotlib figure as an image inside the page."""
    held = io.BytesIO()
    figure.savefig(held, format="png", dpi=130)
    data = base64.b64encode(held.getvalue()).decode()
    return f'<p class="scroll"><img alt="{escape(words)}" src="data:image/png;base64,{data}"></p>'


def lines(text: str) -> str:
    """Return lines as they would stand in a terminal."""
    return f"<pre>{escape(text)}</pre>"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table; the first column names the rows."""
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr><th scope='row'>{escape(row[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>"
        for row in rows
    )
    return f"<div class='scroll'><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>"


def page(title: str, lead: str, good: bool | None, facts: list[str], sections: dict[str, str]) -> str:
    """Return the page: a title, one sentence, facts, then sections of HTML by their headings."""
    mark = {True: "<span class='good'>✓</span> ", False: "<span class='bad'>✗</span> ", None: ""}[good]
    body = "".join(f"<h2>{escape(heading)}</h2>{html}" for heading, html in sections.items() if html)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">"
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>'
        f"<h1>{escape(title)}</h1><p class='lead'>{mark}{escape(lead)}</p>"
        f"<p class='facts'>{escape(' · '.join(facts))}</p>{body}</main></body></html>\n"
    )


def write(path: Path, text: str) -> None:
    """Write a file as UTF-8."""
    path.write_text(text, encoding="utf-8")
