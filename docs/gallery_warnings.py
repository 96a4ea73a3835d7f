"""Warnings of the gallery's examples, on the pages of the site.

A module of its own: Sphinx keeps its configuration in a file and cannot write a function of docs/conf.py there, so
the configuration names this one by the string "gallery_warnings.without_paths".
"""

import warnings
from typing import Any


def without_paths(gallery_conf: dict[str, Any], name: str) -> None:
    """Let warnings of an example show what they say, and not where the files of the machine that builds are."""
    warnings.formatwarning = lambda message, category, *place: f"{category.__name__}: {message}\n"
