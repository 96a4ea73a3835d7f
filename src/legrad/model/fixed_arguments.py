"""Arguments that a model needs as plain numbers while it is compiled, such as groups in `len(np.unique(group))`.

Arrays among the arguments are inputs of compiled programs, so their numbers are not known there. A model that reads
them (for a size, a mask, a table) runs with its arrays as constants instead: `fix` wraps each array, which keeps it
from becoming an input, and `WithFixed` is the model that takes wrapped arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

import jax
import numpy as np


@dataclass(frozen=True, eq=False)
class Fixed:
    """An array that is a constant of every program."""

    array: Any


class WithFixed:
    """A model whose arguments may be wrapped in `Fixed`.

    Attributes:
        model: the model as its user wrote it.
    """

    def __init__(self, model: Callable[..., Any]) -> None:
        self.model = model
        update_wrapper(self, model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model with the arrays themselves."""
        args, kwargs = plain((args, kwargs))
        return self.model(*args, **kwargs)


def fix(tree: Any) -> Any:
    """Wrap the arrays of a tree."""
    return jax.tree.map(lambda x: Fixed(x) if isinstance(x, jax.Array | np.ndarray) else x, tree)


def plain(tree: Any) -> Any:
    """Return a tree with arrays in the place of wrapped ones."""
    return jax.tree.map(lambda x: x.array if isinstance(x, Fixed) else x, tree)
