#!/bin/sh
# Installs the wheel in dist/ into a fresh environment, without extras, and checks that the package imports, that it
# carries what it needs, and that the command runs. PYTHON chooses the interpreter.
set -eu
dist=$(cd "$(dirname "$0")/../dist" && pwd)
set -- "$dist"/*.whl
[ $# -eq 1 ] && [ -f "$1" ] || { echo "dist/ must hold one wheel: $*" >&2; exit 1; }
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
"${PYTHON:-python3}" -m venv "$fresh/venv"
PATH="$fresh/venv/bin:$PATH"
cd "$fresh"  # away from the sources
python -m pip install --quiet --disable-pip-version-check "$1"
python -m pip check --disable-pip-version-check
python - <<'END'
from importlib import metadata, resources

import legrad

assert metadata.version("legrad") == legrad.__version__, (metadata.version("legrad"), legrad.__version__)
for package, name in (("legrad", "py.typed"), ("legrad.experiments", "report.html")):
    assert resources.files(package).joinpath(name).is_file(), f"the wheel lacks {name} of {package}"
missing = [name for name in legrad.__all__ if not hasattr(legrad, name)]
assert not missing, missing
END
# What the README shows first works without extras.
python - <<'END'
import numpyro
import numpyro.distributions as dist

import legrad


def model():
    z = numpyro.sample("z", dist.Bernoulli(0.4))
    numpyro.sample("y", dist.Normal(z, 1.0), obs=0.7)


result = legrad.fit(model, legrad.MeanField(model), key=0, steps=50, progress=False)
print(result, result.summary(0), result.diagnose(0, 1000), result.predict(0, n=10)["y"].shape)
END
legrad --help
legrad --version
# Without the extras, the experiments say what to install.
if legrad reproduce gaussian --quick 2>"$fresh/said"; then
    echo "legrad reproduce ran without its extras" >&2
    exit 1
fi
grep -F "pip install 'legrad[experiments]'" "$fresh/said" || { cat "$fresh/said" >&2; exit 1; }
echo "$(basename "$1"): installs, imports and runs"
