"""The report: sections become one `index.html` that needs nothing else, and `results.json` for programs."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import errno
import io
import itertools
import json
import math
import os
import platform
import re
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata, resources
from pathlib import Path, PurePath
from typing import Any

import jax
import numpy as np

import legrad
from legrad.experiments.section import Claim, Picture, Section, Table
from legrad.experiments.style import DARK, LIGHT, Palette, rc
from legrad.experiments.symbols import typeset

_PACKAGES = ("jax", "jaxlib", "numpyro", "optax", "numpy", "matplotlib", "scikit-learn", "mlxtend", "jinja2")
_DPI = 120  # more would be sharper on fine screens, and take longer to draw and to load
_CLAIM = ("id", "claim", "measured", "holds", "command", "ours", "short", "number")
_NEXT_STEP = {
    errno.ENOSPC: "free some space, or give a directory on another disk with --out",
    errno.EDQUOT: "free some space, or give a directory on another disk with --out",
    errno.EEXIST: "a file of that name is in the way: move it, or give another directory with --out",
    errno.ENOTDIR: "part of it is a file: give another directory with --out",
    errno.EISDIR: "a directory is in the way: move it, or give another directory with --out",
}


class ReportError(OSError):
    """The report cannot be written where it was asked for; the message names the place and the next step."""

    def __init__(self, path: Path, cause: OSError) -> None:
        step = _NEXT_STEP.get(cause.errno or 0, "give a directory that you may write to with --out")
        super().__init__(f"cannot write the report to {path}: {cause.strerror or cause}; {step}")
        self.errno = cause.errno


def prepare(out: Path) -> None:
    """Raise what `write` would raise for lack of a directory or a package; call this before a long experiment.

    Raises:
        ReportError: `out` cannot be made or written.
        ImportError: matplotlib or jinja2 is missing.
    """
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(f"the report needs {error.name}: pip install 'legrad[experiments]'") from error
    for folder in (Path(out), Path(out) / "figures"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ReportError(folder, error) from error
        probe = folder / f".probe.{os.getpid()}.tmp"
        _save(probe, b"")
        probe.unlink()


def write(out: Path, sections: list[Section], *, command: str, quick: bool, seconds: float) -> Path:
    """Write `index.html`, `results.json` and `figures/` into `out`, and return the path of the page.

    Args:
        out: a directory; made if it does not exist. What an earlier report left there is replaced.
        sections: in the order of the page.
        command: what was typed.
        quick: whether this is the small size, which the page then says.
        seconds: how long the experiments took.

    Raises:
        ReportError: `out` cannot be made or written.
        ValueError: two claims, sections or pictures have the same name.
    """
    out = Path(out)
    _require_different("claim", [c.id for s in sections for c in s.claims])
    _require_different("section", [s.name for s in sections])
    # Some file systems do not tell A.png from a.png.
    _require_different("picture", [p.name.lower() for s in sections for p in s.pictures])
    prepare(out)
    results = {
        "claims": [{key: getattr(c, key) for key in _CLAIM} for s in sections for c in s.claims],
        "settings": {s.name: plain(s.settings) for s in sections},
        "data": {s.name: s.data for s in sections},
        "tables": [{"section": s.name, **plain(t)} for s in sections for t in s.tables],
        "versions": _versions(),
        "machine": _machine(),
        "command": command,
        "quick": bool(quick),
        "seconds": round(float(seconds), 3),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    # Before the pictures: if one of them fails, the numbers of a long run are kept.
    text = json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False)
    _save(out / "results.json", _encode(text + "\n"))
    _save(out / "index.html", _encode(_page(out, sections, results)))
    return out / "index.html"


def _page(out: Path, sections: Sequence[Section], results: Mapping[str, Any]) -> str:
    """The text of index.html."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    figure, table = itertools.count(1), itertools.count(1)  # numbered through the whole page
    views = [
        {
            "title": s.title,
            "headline": s.headline,
            "summary": summary(s.claims),
            "paragraphs": [p.strip() for p in re.split(r"\n\s*\n", s.text) if p.strip()],
            "claims": s.claims,
            "figures": [{"number": next(figure), **_figure(out, p)} for p in s.pictures],
            "tables": [{"number": next(table), **_table(t)} for t in s.tables],
            "settings": {str(k): _shown(plain(v)) for k, v in s.settings.items()},
            "data": s.data,
        }
        for s in sections
    ]
    # Loaded as text, not as a path: the package may be inside an archive.
    source = resources.files("legrad.experiments").joinpath("report.html").read_text(encoding="utf-8")
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page.filters["typeset"] = lambda text: Markup(typeset(text))
    return page.from_string(source).render(
        sections=views,
        summary=summary([c for s in sections for c in s.claims]),
        reproduced=_reproduced([c for s in sections for c in s.claims if not c.ours]),
        answered=_answered([c for s in sections for c in s.claims if c.ours]),
        missed=missed(sections),
        groups=_groups(sections),
        light=LIGHT,
        dark=DARK,
        duration=duration(results["seconds"]),
        **{key: results[key] for key in ("command", "quick", "date", "machine", "versions")},
    )


def _groups(sections: Sequence[Section]) -> list[tuple[str, list[Claim]]]:
    """The claims in the order of the table: the paper's by experiment, then the questions that it leaves open."""
    theirs = [(s.title, [c for c in s.claims if not c.ours]) for s in sections]
    ours = ("What the paper leaves open", [c for s in sections for c in s.claims if c.ours])
    return [(heading, claims) for heading, claims in (*theirs, ours) if claims]


def summary(claims: Sequence[Claim]) -> str:
    """What was reproduced, as a sentence without its full stop; what the paper does not ask is counted apart."""
    if not claims:
        return "No claims were checked"
    ours, theirs = ([c for c in claims if c.ours is which] for which in (True, False))
    return ". ".join(part for part in (_reproduced(theirs), _answered(ours)) if part)


def missed(sections: Sequence[Section]) -> list[tuple[str, str]]:
    """The claims of the paper that were not reproduced, in a few words each, and the experiment of each."""
    return [(c.short or c.claim, s.title) for s in sections for c in s.claims if c.holds is False and not c.ours]


def _reproduced(claims: Sequence[Claim]) -> str:
    count = Counter(c.holds for c in claims)
    hold, unknown = count[True], count[None]
    if not claims:
        return ""
    if len(claims) == 1:
        found = {True: "was reproduced", False: "was not reproduced", None: "was not measured at this size"}
        return f"The paper's claim {found[claims[0].holds]}"
    many = "All" if hold == len(claims) else f"{hold} of the"
    words = f"{many} {len(claims)} claims of the paper {'was' if hold == 1 else 'were'} reproduced"
    return words + (f"; {unknown} {'was' if unknown == 1 else 'were'} not measured at this size" if unknown else "")


def _answered(claims: Sequence[Claim]) -> str:
    count = Counter(c.holds for c in claims)
    if not claims:
        return ""
    names = {True: "yes", False: "no", None: "not measured"}
    answers = ", ".join(f"{count[verdict]} {word}" for verdict, word in names.items() if count[verdict])
    return f"Answers to {len(claims)} question{'s' * (len(claims) > 1)} that the paper leaves open: {answers}"


def duration(seconds: float) -> str:
    """Return a duration in words."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def plain(value: Any) -> Any:
    """Convert a value to strict JSON; numbers that JSON lacks become "nan", "inf" and "-inf"."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(plain(k)): plain(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((plain(v) for v in value), key=str)
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return plain(np.asarray(value).tolist())
    if isinstance(value, PurePath):
        # A home directory holds the name of its user.
        home = Path.home()
        return (Path("~") / value.relative_to(home)).as_posix() if value.is_relative_to(home) else value.as_posix()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if value is None or isinstance(value, bool | int | str):
        return value
    # A report must not fail at the end of a long run because of a setting: functions by name, the rest as printed.
    return getattr(value, "__name__", None) or re.sub(r" at 0x[0-9a-fA-F]+", "", str(value))


def _shown(value: Any) -> str:
    """A setting as the page shows it."""
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_shown(v)}" for name, v in value.items())
    if isinstance(value, list):
        return ", ".join(f"[{_shown(v)}]" if isinstance(v, dict | list) else _shown(v) for v in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _figure(out: Path, picture: Picture) -> dict[str, Any]:
    """A picture in both styles, as data addresses, with its size on the page."""
    light, dark = _draw(picture, LIGHT), _draw(picture, DARK)
    _save(out / "figures" / f"{picture.name}.png", light)
    # Where PNG keeps its size; a point of the figure's hundred to the inch is a pixel of the page.
    width, height = (round(100 * pixels / _DPI) for pixels in struct.unpack(">II", light[16:24]))
    addresses = (f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in (light, dark))
    names = ("light", "dark", "width", "height", "caption")
    return dict(zip(names, (*addresses, width, height, picture.caption), strict=True))


def _draw(picture: Picture, palette: Palette) -> bytes:
    """A picture in one style, as PNG; leaves the settings of matplotlib as they were."""
    import matplotlib

    with matplotlib.rc_context():
        # The reader's own matplotlibrc must not change the report.
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(rc(palette))
        figure, file = picture.draw(), io.BytesIO()
        figure.savefig(file, format="png", dpi=_DPI)
        figure.clear()
    return file.getvalue()


def _table(table: Table) -> dict[str, Any]:
    """A table, with the columns marked that hold numbers."""
    number = re.compile(r"[-−+±<>≤≥≈~]?\s?[\d.].{0,23}|[-–—]?|n/a|nan|inf")
    numeric = [all(number.fullmatch(str(row[i])) for row in table.rows) for i in range(len(table.header))]
    return {"table": table, "numeric": numeric}


def _require_different(kind: str, names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{kind} {twice[0]!r} is there twice; each {kind} needs a name of its own")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "legrad": legrad.__version__}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _machine() -> dict[str, Any]:
    """Describe what affects the run time on this machine, and nothing that identifies the machine."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration):  # Linux only, where `platform` knows no more than "x86_64"
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    usable = getattr(os, "sched_getaffinity", None)
    machine = {
        "processor": processor,
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": len(usable(0)) if usable else os.cpu_count(),
        "device": jax.devices()[0].device_kind,
    }
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not every system tells
        machine["memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"
    return machine


def _encode(text: str) -> bytes:
    # A path that was typed may hold bytes that are not Unicode.
    return text.encode("utf-8", "backslashreplace")


def _save(path: Path, content: bytes) -> None:
    """Write a file as a whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            with open(part, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(path if error.errno == errno.EISDIR else path.parent, error) from error
