"""The rules of `single_site` that random programs do not meet, against brute force."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import legrad
from legrad.singlesite import report
from legrad.singlesite.plan import Plan

pytestmark = pytest.mark.usefixtures("strict_ranks")

rng = np.random.default_rng(0)
X, Y, *CANDIDATES = jnp.asarray(rng.uniform(0.1, 0.9, (4, 3, 4)))
# Averages of rows and columns: numbers stay between 0.1 and 0.9.
L, R = jnp.asarray(rng.dirichlet(np.ones(3), 3)), jnp.asarray(rng.dirichlet(np.ones(4), 4).T)


def whole(v):
    """Integers from 5 to 45."""
    return lax.convert_element_type(50 * v, np.int32)


def reduced(function):
    """A reduction of rows by a bitwise function, of 0 or of all bits and those of the row."""
    start = -1 if function is lax.bitwise_and else 0
    return lambda v: lax.reduce(v, np.asarray(start).astype(v.dtype), function, (1,))


# The primitive's name: a function that meets it, of one or two arrays of shape (3, 4). Some of lax take settings too,
# so that only a lambda shows how many.
ROWS = {
    "acos": lambda v: lax.acos(v),
    "acosh": lambda v: lax.acosh(1 + v),
    "add_any": jax.grad(lambda v: jnp.sum(v * (v * Y))),  # linear, as the rule is
    "asin": lambda v: lax.asin(v),
    "asinh": lambda v: lax.asinh(v),
    "atan": lambda v: lax.atan(v),
    "atan2": lambda u, v: lax.atan2(u, v),
    "atanh": lambda v: lax.atanh(v),
    "bessel_i0e": lambda v: lax.bessel_i0e(v),
    "bessel_i1e": lambda v: lax.bessel_i1e(v),
    "cbrt": lambda v: lax.cbrt(v),
    "ceil": lambda v: lax.ceil(9 * v),
    "conj": lambda u, v: lax.imag(lax.complex(v, v) * lax.conj(lax.complex(u, v))),
    "copy": lambda v: jnp.copy(v),
    "cos": lambda v: lax.cos(v),
    "cosh": lambda v: lax.cosh(v),
    "digamma": lambda v: lax.digamma(v),
    "erf_inv": lambda v: lax.erf_inv(v),
    "erfc": lambda v: lax.erfc(v),
    "exp2": lambda v: lax.exp2(v),
    "expm1": lambda v: lax.expm1(v),
    "floor": lambda v: lax.floor(9 * v),
    "igamma": lambda u, v: lax.igamma(u, v),
    "igammac": lambda u, v: lax.igammac(u, v),
    "imag": lambda u, v: lax.imag(lax.complex(u, v) * 2j),
    "lgamma": lambda v: lax.lgamma(v),
    "nextafter": lambda u, v: lax.nextafter(u, v),
    "not": lambda v: lax.bitwise_not(whole(v)) + lax.bitwise_not(v > 0.4),
    "or": lambda u, v: lax.bitwise_or(whole(u), whole(v)) + lax.bitwise_or(u > 0.4, v > 0.6),
    "polygamma": lambda v: lax.polygamma(np.full(v.shape, 2.0), v),
    "real": lambda u, v: lax.real(lax.complex(u, v) * 2),
    "reduce_and": lambda v: lax.reduce_and(v > 0.3, (1,)) + reduced(lax.bitwise_and)(whole(v)),
    "reduce_or": lambda v: lax.reduce_or(v > 0.7, (0,))[:3] + reduced(lax.bitwise_or)(whole(v)),
    "reduce_precision": lambda v: lax.reduce_precision(v, 8, 10),
    "reduce_xor": lambda v: reduced(lax.bitwise_xor)(whole(v)) + reduced(lax.bitwise_xor)(v > 0.4),
    "regularized_incomplete_beta": lambda u, v: lax.betainc(u, v, u),
    "round": lambda v: lax.round(9 * v),
    "rsqrt": lambda v: lax.rsqrt(v),
    "shift_left": lambda u, v: lax.shift_left(whole(u), whole(v) // 9),
    "shift_right_arithmetic": lambda u, v: lax.shift_right_arithmetic(-whole(u), whole(v) // 9),
    "shift_right_logical": lambda u, v: lax.shift_right_logical(-whole(u), whole(v) // 9),
    "sinh": lambda v: lax.sinh(v),
    "sqrt": lambda v: lax.sqrt(v),
    "stop_gradient": lambda v: lax.stop_gradient(v),
    "tan": lambda v: lax.tan(v),
    "xor": lambda u, v: lax.bitwise_xor(whole(u), whole(v)) + lax.bitwise_xor(u > 0.4, v > 0.6),
    "zeta": lambda u, v: lax.zeta(1 + u, v),
}
SLOW = {"igamma", "igammac", "regularized_incomplete_beta"}  # to compile, seconds for each call


@pytest.mark.parametrize("name", ROWS)
def test_rule(name, monkeypatch):
    monkeypatch.setattr(Plan, "brute", False)
    row, found = ROWS[name], []
    operands = len(inspect.signature(row).parameters)

    def f(x):
        # A change along a row, or along a row and a column; and one in its own position, of one operand.
        places = [(x @ R, L @ x), (x, Y)]
        return [row(*place[:operands]) for place in places[: 1 if name in SLOW else 2]]

    @jax.jit
    def both(x, candidates):
        with report.listening() as explanation:
            auto = legrad.single_site_differences(f, x, candidates)
        found.extend(explanation.of(name))
        return auto, legrad.single_site_differences(f, x, candidates, "brute")

    auto, brute = both(X, jnp.stack(CANDIDATES))
    assert len(found) >= len(auto), f"f does not meet {name}"
    assert not any(r.note.startswith("no rule") for r in found)
    for a, b in zip(auto, brute, strict=True):
        assert np.ptp(b) > 0, "no difference, so none could be wrong"
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
