#!/bin/sh
# Runs `make test-all` on each Python version given; one that is not on the machine is skipped with a reason.
set -u
status=0
for version in "$@"; do
    python=$(command -v "python$version" || true)
    if [ -n "$python" ] && ! "$python" -c '' 2>/dev/null; then python=; fi  # a pyenv shim of another version
    if [ -z "$python" ] && command -v pyenv >/dev/null 2>&1; then
        python=$(ls "$(pyenv root)/versions/$version"*/bin/python 2>/dev/null | head -n 1)
    fi
    if [ -z "$python" ]; then
        echo "Python $version: skipped, no python$version on PATH and none from pyenv"
        continue
    fi
    echo "Python $version: $python"
    if make test-all PYTHON="$python" VENV=".venv-$version"; then
        echo "Python $version: passed, $(".venv-$version/bin/python" -m pip list 2>/dev/null | awk '/^(jax|arviz) / {printf "%s %s  ", $1, $2}')"
    else
        echo "Python $version: failed"
        status=1
    fi
done
exit $status
