"""Symbols of plain text, typeset: "mu_1" becomes an italic μ with an index, "10^7" a power, "-3" has a minus sign.

The texts stay plain, so that results.json, the terminal and Markdown can use them as they are.
"""

from __future__ import annotations

import re
from html import escape

_INDEX = r"(?:_(?P<index>[0-9a-zA-Z]{1,2}|\{[^{}]+\}))?"
_NAME = r"(?P<name>mu|[ΛΣ]|[fhlnpqwxySKVWZ])"
# A letter is a symbol if it stands alone (not in a word, an option, a path or an entity), or after 2 or 1/.
_ALONE = r"(?:(?<![\w&;#'’./-])|(?<=\d)(?=K)|(?<=\d/))"
_VARIABLE = re.compile(rf"{_ALONE}{_NAME}{_INDEX}(?P<power>²?)(?![\w/]|[.-]\w)")
_LETTERS = {"mu": "μ", "l": "ℓ"}
_UPRIGHT = ("Λ", "Σ")
_POWER = re.compile(r"\b10\^(-?\d+)\b")
_SCIENTIFIC = re.compile(r"(?<![\w.])(-?\d+(?:\.\d+)?)e([+-])0*(\d+)\b")
_MINUS = re.compile(r"(?<![\w.,)\]#&-])-(?=\d)")


def typeset(text: str) -> str:
    """Return text as HTML, escaped, with its symbols typeset."""
    html = escape(text)
    html = _SCIENTIFIC.sub(_scientific, html)
    html = _POWER.sub(lambda m: f"10<sup>{m[1].replace('-', '−')}</sup>", html)
    html = _VARIABLE.sub(_variable, html)
    return _MINUS.sub("−", html)


def number(value: float, digits: int = 3) -> str:
    """Return a number in `digits` digits, with commas, and without an exponent between a thousandth and a billion."""
    if value == 0 or not 1e-3 <= abs(value) < 1e9:
        return f"{value:.{digits}g}"
    rounded = float(f"{value:.{digits}g}")
    shown = f"{rounded:,.0f}" if abs(rounded) >= 10 ** (digits - 1) else f"{rounded:.{digits}g}"
    return shown.replace("-", "−")


def _scientific(match: re.Match[str]) -> str:
    sign = "−" if match[2] == "-" else ""
    return f"{match[1]} × 10<sup>{sign}{match[3]}</sup>"


def _variable(match: re.Match[str]) -> str:
    name = match["name"]
    tag = ' class="upright"' if name in _UPRIGHT else ""
    index = (match["index"] or "").strip("{}")
    if index:
        index = f"<sub>{f'<var>{index}</var>' if index.isalpha() else index}</sub>"
    return f"<var{tag}>{_LETTERS.get(name, name)}</var>{index}{match['power']}"
