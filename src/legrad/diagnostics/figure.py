"""The figures that pictures are drawn in: matplotlib's, without its global state, and yet shown by notebooks.

By itself a notebook shows a `matplotlib.figure.Figure` only if `matplotlib.pyplot` has been imported; an object with
`_repr_png_` it always shows.
"""

from __future__ import annotations

import io
from typing import Any


def new_figure(**options: Any) -> Any:
    """Return a figure that a notebook shows; raise an ImportError that says what to install.

    Args:
        **options: those of `matplotlib.figure.Figure`.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'legrad[plots]'") from error

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=100)
            return file.getvalue()

    return Shown(**options)
