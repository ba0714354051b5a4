"""``replicant checkpoint``: what is in a file, how two differ, and the same weights in another format."""

import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import replicant
from replicant.checkpoint.weights import open_weights, write_own, write_safetensors
from replicant.cli import main

FILES = Path(__file__).parents[1] / "tensorflow_files" / "weights"


def run(capsys, *arguments):
    code = main(["checkpoint", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_show(capsys):
    code, out, _ = run(capsys, "show", FILES / "v1" / "model_v1.ckpt")
    assert code == 0
    assert out.splitlines() == [
        f"{FILES / 'v1' / 'model_v1.ckpt'}: a checkpoint of TensorFlow",
        "  name          called  shape   dtype    bytes",
        "  dense/kernel          3 x 2   float32     24",
        "  n                     scalar  int32        4",
        "2 arrays, 28 bytes",
    ]
    code, out, _ = run(capsys, "show", FILES / "functional", "--json")
    found = json.loads(out)
    assert (code, found["format"]) == (0, "a checkpoint of TensorFlow")
    assert found["arrays"][1] == {
        "name": "layer_with_weights-0/kernel",
        "called": "shared/kernel",
        "shape": [4, 5],
        "dtype": "float32",
        "bytes": 80,
    }
    names = [each["name"] for each in found["arrays"]]
    assert names[-2:] == ["optimizer/_variables/15", "optimizer/_variables/16"]  # 9 before 10


def test_show_what_is_not_there(capsys, tmp_path):
    code, out, err = run(capsys, "show", tmp_path / "none")
    assert (code, out) == (1, "")
    assert err.startswith("replicant checkpoint: There is no ")
    (tmp_path / "a\x1b[2J.txt").write_text("no weights")
    code, _, err = run(capsys, "show", tmp_path / "a\x1b[2J.txt")
    assert code == 1
    assert "\x1b" not in err


@pytest.fixture
def two(tmp_path):
    """Two files: one array is in only one of them, and each other one differs in another way, but for two."""
    first = {
        "equal": np.array([1.0, np.nan], np.float32),
        "half": np.array([1.0, 2.0], ml_dtypes.bfloat16),
        "whole": np.array([2**60, 5]),
        "flag": np.array([True, False]),
        "nan": np.array([1.0, 2.0]),
        "shape": np.zeros((2, 3)),
        "dtype": np.zeros(2),
        "complex": np.array([1 + 1j], np.complex64),
        "old": np.zeros(1),
        "empty": np.zeros((0, 3)),
    }
    second = {
        **first,
        "half": np.array([1.0, 2.5], ml_dtypes.bfloat16),
        "whole": np.array([2**60 + 1, 5]),
        "flag": np.array([True, True]),
        "nan": np.array([1.0, np.nan]),
        "shape": np.zeros((3, 2)),
        "dtype": np.zeros(2, np.float32),
        "complex": np.array([4 + 5j], np.complex64),
        "new": np.zeros(1),
    }
    del second["old"]
    write_own(tmp_path / "a", first)
    write_own(tmp_path / "b", second)
    return tmp_path / "a", tmp_path / "b"


DIFFERENT = [
    ("complex", "1 of 1 values, by at most 5"),
    ("dtype", "dtype"),
    ("flag", "1 of 2 values, by at most 1"),
    ("half", "1 of 2 values, by at most 0.5"),
    ("nan", "1 of 2 values, by at most nan"),
    ("new", "only in B"),
    ("old", "only in A"),
    ("shape", "shape"),
    ("whole", "1 of 2 values, by at most 1"),
]


def test_diff(capsys, two):
    a, b = two
    code, out, _ = run(capsys, "diff", a, b, "--json")
    found = json.loads(out)
    assert code == 1
    assert found["equal"] == 2
    assert [(each["name"], each["kind"]) for each in found["different"]] == DIFFERENT
    code, out, _ = run(capsys, "diff", a, b)
    lines = out.splitlines()
    assert (code, lines[-1]) == (1, "2 equal, 9 different")
    assert lines[2:5] == [
        "  name     difference                     A              B",
        "  complex  1 of 1 values, by at most 5    complex64 1    complex64 1",
        "  dtype    dtype                          float64 2      float32 2",
    ]
    assert run(capsys, "diff", a, a) == (
        0,
        f"A: {a}, a checkpoint of Replicant\nB: {a}, a checkpoint of Replicant\n10 equal, 0 different\n",
        "",
    )
    assert run(capsys, "diff", a, a.with_name("none"))[0] == 1


@pytest.mark.parametrize("ending", ["", ".safetensors", ".v2"])
def test_convert(capsys, tmp_path, ending):
    source, place = FILES / "v1" / "model.ckpt-3000", tmp_path / f"new{ending}"
    code, out, _ = run(capsys, "convert", source, place)
    assert (code, out) == (0, f"{place}: 11 array(s) of {source}\n")
    assert run(capsys, "diff", source, place)[:2] == (0, run(capsys, "diff", source, place)[1])
    assert run(capsys, "convert", source, place) == (
        1,
        "",
        f"replicant checkpoint: DST '{place}' exists. Remove it, or name another.\n",
    )
    if not ending:
        np.testing.assert_array_equal(replicant.load_variable(place, "dense/bias"), replicant.load_variable(source, "dense/bias"))


def test_convert_an_archive_of_keras(capsys, tmp_path):
    place = tmp_path / "new.weights.h5"
    assert run(capsys, "convert", FILES / "sequential.keras", place)[0] == 0
    assert run(capsys, "diff", FILES / "sequential.keras", place)[0] == 0


def test_convert_to_what_cannot_hold_it(capsys, tmp_path):
    code, _, err = run(capsys, "convert", FILES / "functional", tmp_path / "a.weights.h5")
    assert code == 1
    assert "Name the model: replicant checkpoint convert SRC DST --model MODULE:FUNCTION." in err
    for name in ("a.keras", "a.h5", "a.npz", "a.safetensor", "a.weights"):
        code, _, err = run(capsys, "convert", FILES / "functional", tmp_path / name)
        assert code == 1
        assert (
            f"files {Path(name).suffix} are not written. Name a file that ends in .safetensors or .weights.h5, or a folder" in err
        )
    code, _, err = run(capsys, "convert", FILES / "functional", "s3://bucket/a")
    assert code == 1
    assert "DST must be a path on this machine" in err
    assert list(tmp_path.iterdir()) == []


MODEL = """
import keras
from keras import layers


def make():
    a, b = keras.Input((4,)), keras.Input((4,))
    shared = layers.Dense(5, name="shared")
    y = layers.Dense(4, name="hidden")(layers.Concatenate()([shared(a), shared(b)]))
    return keras.Model([a, b], [layers.Dense(2, name="first")(y), layers.Dense(1, name="second")(y)])
"""


@pytest.mark.parametrize(
    ("name", "array"),
    [("new.weights.h5", "layers/dense/vars/0"), ("new.safetensors", "shared/kernel"), ("new", "model/weights/0.kernel")],
)
def test_convert_with_a_model(capsys, tmp_path, monkeypatch, name, array):
    (tmp_path / "made_here.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "made_here", raising=False)
    code, out, err = run(capsys, "convert", FILES / "functional", name, "--model", "made_here:make")
    assert (code, err) == (0, "")
    assert out.startswith(f"{name}: {FILES / 'functional'}: 8 weight(s) taken\n")
    with open_weights("path", tmp_path / name) as file, open_weights("path", FILES / "functional") as old:
        np.testing.assert_array_equal(file.read(array), old.read("layer_with_weights-0/kernel"))
    for model, message in (
        ("made_here:none", "has no function 'none'"),
        ("made_here", "is not MODULE:FUNCTION"),
        ("no:no", "no module"),
    ):
        code, _, err = run(capsys, "convert", FILES / "functional", "other", "--model", model)
        assert (code, message in err) == (1, True)


def test_wrong_usage(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["checkpoint"])
    assert "ACTION" in capsys.readouterr().err


def test_convert_to_safetensors_and_back(capsys, tmp_path):
    pytest.importorskip("safetensors")
    write_safetensors(tmp_path / "a.safetensors", {"x": np.arange(3, dtype=ml_dtypes.bfloat16)})
    assert run(capsys, "convert", tmp_path / "a.safetensors", tmp_path / "own")[0] == 0
    with open_weights("path", tmp_path / "own") as file:
        assert file.read("x").dtype == ml_dtypes.bfloat16
