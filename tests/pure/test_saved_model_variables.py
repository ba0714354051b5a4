"""The variables of SavedModels, in the order in which TensorFlow lists them."""

from pathlib import Path

import numpy as np
import pytest

import replicant
from replicant.errors import CheckpointError

FILES = Path(__file__).parents[1] / "tensorflow_files" / "weights"
NORM = [(f"batch_normalization/{name}", (8,)) for name in ("gamma", "beta", "moving_mean", "moving_variance")]
LISTED = [("dense/kernel", (6, 8)), ("dense/bias", (8,)), *NORM, ("dense_1/kernel", (8, 3)), ("dense_1/bias", (3,))]


@pytest.mark.parametrize(
    ("folder", "prefix", "key"),
    [
        ("export_tf_keras", "", "variables/0"),
        ("export_keras3", "sequential/", "variables/0"),
        ("savedmodel", "", "layer_with_weights-0/kernel"),
    ],
)
def test_names_and_values(folder, prefix, key):
    found = replicant.saved_model_variables(FILES / folder)
    assert [(variable.name, tuple(variable.shape)) for variable in found] == [(prefix + name, shape) for name, shape in LISTED]
    kernel = replicant.load_variable(FILES / folder, f"{key}/.ATTRIBUTES/VARIABLE_VALUE")
    np.testing.assert_array_equal(found[0].numpy(), kernel)


def test_what_lists_no_variables(tmp_path):
    own = replicant.Checkpoint(x=1).save(str(tmp_path / "own"))
    for path in (FILES / "functional", FILES / "v1" / "model_v1.ckpt", own):
        with pytest.raises(
            CheckpointError, match=r"is not a SavedModel whose object lists its variables\. replicant\.load_checkpoint"
        ):
            replicant.saved_model_variables(path)
