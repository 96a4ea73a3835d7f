"""A lost process is recognized by what collectives raise, and a message outlives the process that should say it."""

import subprocess
import sys
from pathlib import Path

import jax
import pytest

from legrad.fitting import last_words
from legrad.fitting.lost_process import broken_connection

GLOO = "INTERNAL: Gloo all-reduce failed: Read error [127.0.0.1]:4711: Connection reset by peer"


def test_what_a_collective_raises_for_want_of_another_process():
    broken = jax.errors.JaxRuntimeError(GLOO)
    assert broken_connection(broken) is broken
    of_jit = ValueError(GLOO.replace("INTERNAL", "UNKNOWN"))
    assert broken_connection(of_jit) is of_jit
    with pytest.raises(ValueError, match="cannot be read") as from_it:
        try:
            raise broken
        except RuntimeError as error:
            raise ValueError("the value of site 'y' cannot be read") from error
    assert broken_connection(from_it.value) is broken
    with pytest.raises(KeyError) as while_closing:
        try:
            raise broken
        finally:
            raise KeyError("closing")
    assert broken_connection(while_closing.value) is broken
    assert broken_connection(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")) is None
    assert broken_connection(ValueError("Connection reset by peer")) is None


@pytest.mark.parametrize(
    ("end", "said"), [("os.abort()", True), ("os.kill(os.getpid(), 9)", True), ("words.keep(); os.abort()", False)]
)
def test_a_message_outlives_its_process(end, said):
    path = str(Path(last_words.__file__))
    code = f"import os, runpy; words = runpy.run_path({path!r})['LastWords']('gone: rerun'); {end}"
    found = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=20)
    assert found.returncode < 0
    assert ("gone: rerun" in found.stderr) == said
