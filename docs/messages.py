"""Write docs/messages.md: every message of the package, read from its source, with the common ones explained.

    python docs/messages.py

A message is a string in a `raise`, or any other string of at least eight words that is not a docstring: warnings, the
status of a fit, the flags of a diagnosis. Markup of pages, and patterns to search for, are left out. What is filled
in when a message is shown is written as "…".
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "legrad"
_WORDS = 8
_PROSE = ("experiments",)  # whose other strings are the sentences of a report
_HELP = {"help", "description", "epilog"}  # of the command line
_MARKUP = re.compile(r"<!?/?[a-zA-Z][^<>]*>|\{[^{}]*:[^{}]*;\s*\}")  # an HTML tag, or a rule of CSS

AREAS = {
    "model": "Models, guides, data and parameters",
    "fitting": "Fits and their results",
    "guides": "Automatic guides",
    "estimators": "Estimators",
    "diagnostics": "Diagnoses, summaries, predictions, comparisons",
    "marginal": "Discrete latents that are summed out",
    "distributions": "Distributions",
    "singlesite": "One-element changes",
    "exact": "Exact terms: why a term is sampled",
    "natural": "Natural gradients",
    "sklearn": "Estimators for scikit-learn",
    "standard": "Standard models",
    "commands": "The command line",
    "experiments": "The paper's experiments",
    "": "Everywhere",
}

COMMON = """\
# Messages

Every message names the thing that is wrong, the cause and the next step. This page lists all of them, so that a
search for a part of a message ends here; "…" stands for what is filled in. `python docs/messages.py` writes it from
the source.

## The ones that most people meet

**"… decides in Python by the value of a latent"**: the model has an `if`, `while`, `min` or `and` on a latent. A
model is compiled once for all values of its latents, so Python cannot choose. Write `jnp.where(z > 0, a, b)`; for
long computations `jax.lax.cond(z > 0, f, g, x)`.

**"… passes a latent, or what is computed from it, to NumPy"**: `np.exp(z)` needs the numbers of z. Write
`jnp.exp(z)`, with `import jax.numpy as jnp`.

**"argument '…' is nan in row …"**: the data have missing values where the model needs numbers. Drop or impute these
rows; or replace the values by any number and mask their terms: `with numpyro.handlers.mask(mask=~np.isnan(y)):
...`.

**"the data of site '…' is … in row …, which is outside the support of …"**: a Poisson cannot see −3, nor an
Exponential a negative time. Correct the data, or choose a distribution that allows them. A log-density is often
finite outside its support, so that a fit would end with a wrong answer and no sign of it.

**"… cannot hold the discrete latent '…'"**: NumPyro's automatic guides are continuous. `legrad.MeanField(model)`
has a factor for every latent; `legrad.fit(model, args=...)` without a guide chooses one.

**"the logits of … are not finite"**: a hand-written guide gives a value the logit −inf, whose gradient is not a
number. Use −1e9 for a value that is to be impossible.

**"'…' is not a parameter of the model or guide"**: a name in `init_params`, or in the parameters of `compare`, is
misspelt; the message lists the names that there are.

**"result.sample(5): is 5 the random key, or the number of draws?"**: the first argument is the key:
`result.sample(jax.random.key(0), 5)`.

**"key=… is not a random key"**: pass `jax.random.key(0)` or a whole number.

**"column '…' of argument '…' is …, not numbers"**: a data frame has a column of text or dates. Encode it
(`pandas.get_dummies(frame)`), or leave it out.

**"latent site '…' of the model is missing from the guide"**: a hand-written guide must sample every latent of the
model, by the same name.

**"the model does not run with …=None"**: `result.predict(key, X_new)` passes None for arguments that are left out.
Take sizes from X (`numpyro.plate("rows", X.shape[0])`), or pass any array of the right shape: its values are not
read.

**"not converged after …"**: the status of a fit that ended at its limit of steps. It says what was still moving:
more steps, an estimator with less noise, or another step size. See [fitting.md](fitting.md).

**"k-hat is …, above 0.7"**: the guide is too far from the posterior for its draws to be reweighted. Use a richer
guide, more steps or restarts; [trust.md](trust.md) shows what k-hat sees and what it does not.
"""


def template(node: ast.expr) -> str | None:
    """Return the text of a string expression, with "…" for what is filled in; None for other expressions."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) or "…" for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return "…"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = template(node.left), template(node.right)
        return None if left is None and right is None else (left or "…") + (right or "…")
    return None


def messages(tree: ast.AST, raised_only: bool = False) -> Iterator[str]:
    """Yield the messages of a module, in order."""
    if raised_only:
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise):
                yield from _walk(node, set(), raised=True)
        return
    ignored = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            ignored.add(id(node.value))  # a docstring
        if isinstance(node, ast.keyword) and node.arg in _HELP:
            ignored.add(id(node.value))
    yield from _walk(tree, ignored, raised=False)


def _walk(node: ast.AST, ignored: set[int], raised: bool) -> Iterator[str]:
    if id(node) in ignored or _is_pattern(node):
        return
    raised = raised or isinstance(node, ast.Raise)
    text = template(node) if isinstance(node, ast.expr) else None
    if text is not None:
        words = len(re.findall(r"[\w'-]{2,}", text.replace("…", " ")))
        if words >= (4 if raised else _WORDS) and not _MARKUP.search(text):
            yield re.sub(r"…[…\s]*…", "…", " ".join(text.split())).removeprefix(". ")
        return
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, ignored, raised)


def _is_pattern(node: ast.AST) -> bool:
    """Return whether a node is a call of the module `re`, whose strings are patterns."""
    function = node.func if isinstance(node, ast.Call) else None
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "re"


def found() -> dict[str, list[tuple[str, str]]]:
    """Return for each area its messages, each with its file."""
    areas: dict[str, list[tuple[str, str]]] = {area: [] for area in AREAS}
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE)
        area = place.parts[0] if len(place.parts) > 1 else ""
        for text in messages(ast.parse(path.read_text()), raised_only=area in _PROSE):
            areas.setdefault(area, []).append((text, str(place)))
    return areas


def page() -> str:
    """Return the page."""
    parts = [COMMON]
    for area, entries in found().items():
        if entries:
            lines = dict.fromkeys(f"- {_quoted(text)} (`{place}`)" for text, place in entries)
            parts.append(f"## {AREAS[area]}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _quoted(text: str) -> str:
    """Return a message as code, which no Markdown changes."""
    fence = "``" if "`" in text else "`"
    return f"{fence} {text.strip()} {fence}" if fence == "``" else f"`{text.strip()}`"


if __name__ == "__main__":
    (ROOT / "docs" / "messages.md").write_text(page())
