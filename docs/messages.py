"""Write docs/messages.md: every message of the package, read from its source, with the common ones explained.

    python docs/messages.py

A message is a text that reaches somebody: what is raised, what is warned of, the status of a fit, the flags of a
diagnosis, a line that a command prints for people. From each of these places the source is read backwards, through
names, attributes, parameters and the functions that return them, to the strings that they are made of; strings that
reach none of them (titles of pages and plots, HTML, names of files) are no messages. What is filled in when a message
is shown is written as "…".
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "legrad"
_TELLERS = {"warn", "note", "fail", "say"}  # functions that tell people what they are given
_RESULTS = {"status", "note", "method", "flags", "quadrature"}  # attributes that tell how a fit went
_WORDS = 3  # fewer are a name or a unit
_ADDS = {"append", "extend", "insert"}
_KEEPS = {  # calls whose result holds the strings that they are given
    "join", "strip", "rstrip", "removeprefix", "removesuffix", "replace", "format", "capitalize", "str", "get",
    "items", "values", "pop", "list", "tuple", "sorted", "reversed", "next", "iter", "filter", "enumerate", "zip",
    "dict", "fromkeys", "max", "min", "error", "indent", "dedent", "fill",
}  # fmt: skip
_REPORT = "experiments/"  # whose other strings are the sentences of a report
_MARKUP = re.compile(
    r"<!?/?[a-zA-Z][^<>]*>|src=|\{[^{}]*:[^{}]*;\s*\}|->|\\w|^\||^[\w/]+\.py$"
)  # HTML, CSS, einsum, patterns

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


Scope = tuple[str, int]  # a file, and the line of a function in it (0: outside functions)


class Source:
    """The package, as what is needed to follow a message backwards to its strings.

    Attributes:
        functions: the functions of each name, each with its scope.
        inside: the function of each scope.
        calls: the calls of each name, each with its scope.
        values: the expressions that a name is given in a scope, and that an attribute or a keyword is given anywhere.
        ends: the expressions that reach people, each with its scope.
        fields: the fields of each class that declares some.
    """

    def __init__(self) -> None:
        self.functions: dict[str, list[tuple[ast.FunctionDef, Scope]]] = defaultdict(list)
        self.calls: dict[str, list[tuple[ast.Call, Scope]]] = defaultdict(list)
        self.values: dict[Any, list[tuple[ast.expr, Scope]]] = defaultdict(list)
        self.ends: list[tuple[ast.expr, Scope]] = []
        self.fields: dict[str, list[str]] = {}
        self.inside: dict[Scope, ast.FunctionDef] = {}
        trees = {str(p.relative_to(SOURCE)): ast.parse(p.read_text()) for p in sorted(SOURCE.rglob("*.py"))}
        for node in (node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            declared = [part.target for part in node.body if isinstance(part, ast.AnnAssign)]
            self.fields[node.name] = [target.id for target in declared if isinstance(target, ast.Name)]
        for place, tree in trees.items():
            self._read(tree, (place, 0))
        for name, fields in self.fields.items():
            for call, scope in self.calls[name]:
                for field, value in zip(fields, call.args, strict=False):
                    self.values[field].append((value, scope))
        for name in sorted(_RESULTS):
            self.ends += [end for end in self.values[name] if not end[1][0].startswith(_REPORT)]

    def _read(self, node: ast.AST, scope: Scope) -> None:
        for child in ast.iter_child_nodes(node):
            inner = scope
            match child:
                case ast.FunctionDef():
                    inner = (scope[0], child.lineno)
                    self.functions[child.name].append((child, inner))
                    self.inside[inner] = child
                case ast.Return(value=ast.expr()) if scope in self.inside and self.inside[scope].name == "__str__":
                    self.ends += [] if scope[0].startswith(_REPORT) else [(child.value, scope)]
                case ast.Raise(exc=ast.expr()):
                    self.ends.append((child.exc, scope))
                case ast.Call():
                    self._read_call(child, scope)
                case ast.Assign():
                    for target in child.targets:
                        self._give(target, child.value, scope)
                case ast.AnnAssign(value=ast.expr()) | ast.AugAssign() | ast.NamedExpr():
                    self._give(child.target, child.value, scope)
                case ast.For() | ast.comprehension():
                    self._give(child.target, child.iter, scope)
            self._read(child, inner)

    def _read_call(self, call: ast.Call, scope: Scope) -> None:
        name = _name(call.func)
        self.calls[name].append((call, scope))
        for keyword in call.keywords:
            if keyword.arg and (name in self.fields or name in ("replace", "_replace")):
                self.values[keyword.arg].append((keyword.value, scope))
        if scope[0].startswith(_REPORT):
            return
        if name in _TELLERS and call.args:
            self.ends.append((call.args[0], scope))
        if name == "print" and any(k.arg == "file" for k in call.keywords):
            self.ends.append((call.args[0], scope))
        if name in _ADDS and isinstance(call.func, ast.Attribute):
            for value in call.args:
                self._give(call.func.value, value, scope)

    def _give(self, target: ast.expr, value: ast.expr, scope: Scope) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            parts = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else []
            for i, part in enumerate(target.elts):
                self._give(part, parts[i] if parts else value, scope)
        elif isinstance(target, ast.Name):
            self.values[scope, target.id].append((value, scope))
            if scope[1] == 0:
                self.values["module", target.id].append((value, scope))
        elif isinstance(target, ast.Attribute):
            self.values[target.attr].append((value, scope))
        elif isinstance(target, ast.Subscript):
            self._give(target.value, value, scope)

    def messages(self) -> Iterator[tuple[str, str]]:
        """Yield the strings that reach people, each with its file."""
        seen: set[int] = set()
        left = [(*end, end[1][0].startswith(_REPORT)) for end in reversed(self.ends)]
        while left:
            node, scope, of_report = left.pop()
            if id(node) in seen or (scope[0].startswith(_REPORT) and not of_report):
                continue
            seen.add(id(node))
            if (text := template(node)) is not None:
                yield scope[0], text
            left += [(*source, of_report) for source in self._sources(node, scope)]

    def _sources(self, node: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
        """Yield the expressions that a value is made of."""
        match node:
            case ast.Name():
                here = (scope, (scope[0], 0), "module")  # of the function, of the file, of another file
                yield from next((found for place in here if (found := self.values.get((place, node.id)))), [])
                yield from self._given(node.id, scope)
            case ast.Attribute():
                yield from self.values[node.attr]
                yield from self._returned(node.attr, properties=True)
            case ast.Call():
                name = _name(node.func)
                yield from self._returned(name)
                if name in _KEEPS and isinstance(node.func, ast.Attribute):
                    yield node.func.value, scope
                if name in _KEEPS or name[:1].isupper():  # an error, a record of strings
                    yield from ((part, scope) for part in [*node.args, *(k.value for k in node.keywords)])
            case ast.JoinedStr():
                yield from ((p.value, scope) for p in node.values if isinstance(p, ast.FormattedValue))
            case ast.IfExp():
                yield from ((part, scope) for part in (node.body, node.orelse))
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                yield node.elt, scope
            case ast.Subscript():
                yield node.value, scope
            case ast.Dict():
                yield from ((part, scope) for part in node.values)
            case _:
                yield from ((part, scope) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))

    def _returned(self, name: str, properties: bool = False) -> Iterator[tuple[ast.expr, Scope]]:
        for function, scope in self.functions[name]:
            if properties and not any("property" in ast.unparse(d) for d in function.decorator_list):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) and node.value is not None:
                    yield node.value, scope

    def _given(self, name: str, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
        """Yield what calls give for a parameter of the function of a scope."""
        function = self.inside.get(scope)
        if function is None:
            return
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        if name not in [*names, *(a.arg for a in function.args.kwonlyargs)]:
            return
        names = names[1:] if names[:1] in (["self"], ["cls"]) else names
        for call, where in self.calls[function.name]:
            if scope[0].startswith(_REPORT) != where[0].startswith(_REPORT):
                continue  # a function of the same name
            if name in names[: len(call.args)]:
                yield call.args[names.index(name)], where
            yield from ((k.value, where) for k in call.keywords if k.arg == name)


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


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


def found() -> dict[str, list[tuple[str, str]]]:
    """Return for each area its messages, each with its file."""
    areas: dict[str, dict[tuple[str, str], None]] = {area: {} for area in AREAS}
    for place, text in sorted(Source().messages()):
        words = re.findall(r"[\w'-]{2,}", text.replace("…", " "))
        if len(words) >= _WORDS and not _MARKUP.search(text):
            text = re.sub(r"…[…\s]*…", "…", " ".join(text.split())).removeprefix(". ")
            areas.setdefault(place.split("/")[0] if "/" in place else "", {})[text, place] = None
    return {area: list(entries) for area, entries in areas.items()}


def page() -> str:
    """Return the page."""
    parts = [COMMON]
    for area, entries in found().items():
        if entries:
            lines = [f"- {_quoted(text)} (`{place}`)" for text, place in entries]
            parts.append(f"## {AREAS[area]}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _quoted(text: str) -> str:
    """Return a message as code, which no Markdown changes."""
    fence = "``" if "`" in text else "`"
    return f"{fence} {text.strip()} {fence}" if fence == "``" else f"`{text.strip()}`"


if __name__ == "__main__":
    (ROOT / "docs" / "messages.md").write_text(page())
