"""Fits on several devices and in several processes are those of one; a wrong mesh or a lost process says so."""

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest

import legrad
import mesh_fits
from legrad.fitting.row_order import LISTED, permuted
from legrad.trace import devices

MODELS = ("sbn", "logistic", "spike", "mixture", "ising")


# --- in this process, on one device -----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 23, 4096, 5000])
def test_the_formula_permutes_the_rows(rows):
    orders = [permuted(np.arange(rows), rows, 7, epoch) for epoch in range(3)]
    assert all(sorted(order) == list(range(rows)) for order in orders)
    assert rows < 23 or not np.array_equal(orders[0], orders[1])
    part = permuted(np.arange(rows)[rows // 2 :], rows, 7, 0)
    np.testing.assert_array_equal(part, orders[0][rows // 2 :])


def test_the_formula_shuffles():
    """Where rows end up, and how far neighbours are apart: chi-square of 16 bins, at more rows than are listed."""
    rows = 5 * LISTED + 3
    orders = np.concatenate([permuted(np.arange(2000), rows, 7, epoch) for epoch in range(50)])
    apart = np.diff(orders.reshape(50, 2000), axis=1).ravel() % rows
    for numbers, most in ((orders, rows), (apart, rows), (orders % 96, 96)):
        counts = np.histogram(numbers, 16, (0, most))[0]
        expected = counts.sum() / 16
        assert np.sum((counts - expected) ** 2 / expected) < 45  # 15 degrees of freedom


class Records:
    """A data source like Grain's: records one at a time."""

    def __init__(self, *columns):
        self.columns, self.taken = columns, []

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, i):
        self.taken.append(int(i))
        return tuple(column[i] for column in self.columns)


def test_a_source_of_records_reads_like_arrays():
    x, y = np.arange(40.0).reshape(20, 2), np.arange(20)
    source = Records(x, y)
    batches, arrays = legrad.Minibatches(source, size=6), legrad.Minibatches(x, y, size=6)
    source.taken.clear()
    rows = np.stack([batches.at(5, step) for step in (0, 3)])
    np.testing.assert_array_equal(rows, np.stack([arrays.at(5, step) for step in (0, 3)]))
    for one, other in zip(batches.read(rows), arrays.read(rows), strict=True):
        np.testing.assert_array_equal(one, other)
    assert source.taken == rows.ravel().tolist()  # each record once, and no other
    assert "float64[20, 2]" in repr(batches)
    with pytest.raises(TypeError, match=r"row 0 of the Records holds <U1, not numbers"):
        legrad.Minibatches(Records(np.array(["a", "b"])), size=1)
    with pytest.raises(ValueError, match=r"the Records has no rows"):
        legrad.Minibatches(Records([]), size=1)
    with pytest.raises(ValueError, match=r"row 1 of the Records has parts of shapes \[\(3,\)\], the first row of"):
        legrad.Minibatches(Records([np.zeros(2), np.zeros(3), np.zeros(2)]), size=1)


def test_parts_of_an_axis():
    with devices.cut_across(4, {8, 10}):
        assert (devices.parts(8), devices.parts(10), devices.parts(16), devices.devices()) == (4, 1, 1, 4)
    assert devices.parts(8) == devices.devices() == 1


def test_a_mesh_of_one_device_is_no_mesh():
    model, guide, args, _ = mesh_fits.models()["logistic"]
    settings = {"args": args, "key": 3, "steps": 2, "estimator": legrad.Reparameterized(), "progress": False}
    alone = legrad.fit(model, guide, **settings)
    on_mesh = legrad.fit(model, guide, mesh=jax.make_mesh((1,), ("data",)), **settings)
    for name, value in alone.params.items():
        np.testing.assert_allclose(on_mesh.params[name], value, rtol=1e-12)
    with pytest.raises(TypeError, match=r"mesh=8 is a int, not a mesh of devices: pass mesh=jax.make_mesh"):
        legrad.fit(model, guide, mesh=8, **settings)


# --- on several devices of a process of its own -----------------------------------------------------------------


def _found(path):
    with np.load(path) as file:
        return dict(file)


def _assert_alike(found, alone, names):
    """Compare with the fit on one device; a fault of 1e-4 in one number is noticed."""
    compared = 0
    for key, value in found.items():
        name, number, what = key.split(" ", 2)
        if number != "None":
            np.testing.assert_allclose(value, alone[f"{name} None {what}"], rtol=1e-5, atol=1e-9, err_msg=key)
            compared += 1
    assert compared >= 3 * len(names)


@pytest.fixture(scope="module")
def devices_of_one_process(tmp_path_factory):
    """What 1, 2 and 8 devices of one process make of the models: fits, steps, wrong meshes, data in parts."""
    out = tmp_path_factory.mktemp("fits") / "devices"
    codes, said, _ = mesh_fits.finish([mesh_fits.start("fits,parts,errors,programs", out, devices=8)])
    assert codes == [0], said
    return out


@pytest.fixture(scope="module")
def alone(devices_of_one_process):
    """The fits on one device, on 2 and on 8 devices of one process."""
    return _found(f"{devices_of_one_process}.npz")


def _json(out, what):
    return json.loads(Path(f"{out}.{what}.json").read_text())


@pytest.mark.long
def test_2_and_8_devices_give_the_fit_of_one(alone):
    _assert_alike(alone, alone, MODELS)
    key = next(key for key in alone if key.startswith("ising") and " 8 z_logits" in key)
    wrong = {key: alone[key] * (1 + 1e-4 * (np.arange(alone[key].size).reshape(alone[key].shape) == 7))}
    with pytest.raises(AssertionError):
        _assert_alike(wrong, alone, ())


@pytest.mark.long
def test_data_in_parts_on_a_mesh_of_either_kind(devices_of_one_process):
    """`jax.make_mesh` makes Explicit axes; so data that lie on such a mesh are what one passes."""
    found = _json(devices_of_one_process, "parts")
    assert set(found) == {"Auto 1", "Auto 0", "Explicit 1", "Explicit 0"}
    assert max(found.values()) < 1e-12, found


@pytest.mark.long
@pytest.mark.parametrize(("processes", "names"), [(2, MODELS), (4, ("mixture",))])
def test_processes_give_the_fit_of_one(alone, tmp_path, processes, names):
    what = "fits,errors" if processes == 2 else "fits"
    codes, said, _ = mesh_fits.finish(mesh_fits.start_all(what, tmp_path / "out", names, processes=processes))
    assert codes == [0] * processes, said
    for i in range(processes):
        _assert_alike(_found(tmp_path / f"out-{i}.npz"), alone, names)
    if processes == 2:
        for i in (0, 1):
            found = _json(tmp_path / f"out-{i}", "errors")
            assert "the processes of this fit differ in args[0]: process 0 has float64[16]" in found["shapes"]
            assert "too few devices, 1 of 2: process 1 of 2 has none in it" in found["process without"]


@pytest.mark.long
def test_a_step_gathers_neither_data_nor_members(devices_of_one_process):
    """The compiled step: nothing is gathered, and what is shared is added up over the devices once."""
    found = _json(devices_of_one_process, "programs")
    assert {label.split()[0] for label in found} == set(MODELS)
    shared = {"sbn": ["f64[3,6]", "f64[6,3]"], "spike": ["f64[5]"], "mixture": ["f64[3]"], "logistic": ["f64[5]"]}
    for label, collectives in found.items():
        name = label.split()[0]
        kinds = Counter(kind for kind, _ in collectives)
        gathered = [shape for kind, shape in collectives if kind == "all-gather"]
        assert not [shape for shape in gathered if not shape.startswith("pred")], (name, gathered)
        moved = [shape for kind, shape in collectives if kind not in ("all-reduce", "all-gather")]
        assert name == "ising" or not moved, (name, moved)  # a grid passes on its border
        assert kinds["all-reduce"], name
        for shape in shared.get(name, []):
            reduced = [shapes for kind, shapes in collectives if kind == "all-reduce" and shape in shapes]
            assert len(reduced) <= 2, (name, shape, reduced)  # the gradient, and the terms of changed latents
        if name == "sbn" and label.endswith("False"):  # exact terms add up the model's parameters apart
            assert len([s for k, s in collectives if k == "all-reduce" and "f64[3,6]" in s and "f64[6,3]" in s]) == 1


@pytest.mark.long
def test_a_wrong_mesh_is_named_before_the_first_step(devices_of_one_process):
    found = _json(devices_of_one_process, "errors")
    for name, words in {
        "divides nothing": ["mesh axis 'data' of 8 devices does not divide plate 'rows' of 15", "mesh of 5 devices"],
        "few members": [
            "plate 'rows' has 4 members, fewer than the 8 devices of mesh axis 'data'",
            "mesh of 4 devices",
        ],
        "subsample": ["plate 'rows' takes 4 members a step, fewer than the 8 devices", "subsample_size=8 or more"],
        "minibatch": ["minibatches of 4 of 64 rows", "fewer than the 8 devices", "size=8 or more"],
        "minibatch divides": ["does not divide minibatches of 12 of 64 rows", "size=8"],
        "two axes": ["the mesh has 2 axes", "jax.make_mesh((8,), ('data',))"],
        "no mesh": ["mesh=8 is a int, not a mesh of devices"],
    }.items():
        assert all(word in found[name] for word in words), (name, found[name])


def _progress(process):
    """Wait until a fit has taken some steps."""
    for line in process.stdout:
        if line.strip().isdigit():
            return int(line)
    raise AssertionError(process.stderr.read())


@pytest.mark.long
def test_a_killed_process_ends_the_others_and_the_fit_resumes(tmp_path):
    """SIGKILL, also of the process that coordinates; one process resumes, and ends where a whole fit ends."""
    out, chance = tmp_path / "killed", random.Random(0)
    reached = 0
    for victim in (1, 0, 1):
        running = mesh_fits.start_all("quick,killed", out, processes=2)
        assert _progress(running[0]) > reached  # it resumed
        time.sleep(chance.uniform(0.1, 1.0))
        os.kill(running[victim].pid, signal.SIGKILL)
        begun = time.monotonic()
        codes, said, printed = mesh_fits.finish(running, seconds=60)
        assert time.monotonic() - begun < 60
        assert codes[victim] == -signal.SIGKILL
        assert codes[1 - victim] != 0
        assert "ends its fit" in said[1 - victim], said[1 - victim]
        assert "resumes from" in said[1 - victim], said[1 - victim]
        reached = max(reached, printed - 200)  # the checkpoint is that of the last step that was printed, or before
    steps = [str(reached + 600)]
    running = [*mesh_fits.start_all("killed", out, steps, processes=1),
               *mesh_fits.start_all("killed", tmp_path / "whole", steps, processes=1)]  # fmt: skip
    codes, said, _ = mesh_fits.finish(running)
    assert codes == [0, 0], said
    whole = _found(tmp_path / "whole.npz")
    for name, value in _found(tmp_path / "killed.npz").items():
        np.testing.assert_allclose(value, whole[name], rtol=1e-9, atol=1e-12)


@pytest.mark.long
def test_a_silent_process_ends_the_others(tmp_path):
    """SIGSTOP: the connection stays open, and no collective fails."""
    running = mesh_fits.start_all("quick,killed", tmp_path / "silent", processes=2)
    try:
        _progress(running[0])
        os.kill(running[1].pid, signal.SIGSTOP)
        begun = time.monotonic()
        said = running[0].communicate(timeout=60)[1]
        assert running[0].returncode == 1
        assert time.monotonic() - begun < 60
        assert "process 1 has given no sign of life for" in said
    finally:
        os.kill(running[1].pid, signal.SIGKILL)
        for process in running:
            process.communicate()
