"""``replicant.summary`` against the event files that tf.summary of TensorFlow 2.21 wrote."""

import json
from io import BytesIO
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import tensorboardX  # noqa: F401 - here, because it sets an environment variable when it is first imported
from _compare import same
from PIL import Image
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util

from replicant import summary
from replicant.errors import ArgumentError, ArgumentTypeError

CASES = json.loads((Path(__file__).parent / "figures" / "summary.json").read_text())["cases"]
NAMES = {"np": np, "array": jnp.asarray, **{name: getattr(summary, name) for name in ("scalar", "text", "histogram", "image")}}
ANY_INTEGER = "summary has no audio, graph, trace and write"
DIFFERENT = {"scalar('t', array(2.0), step=array(5))": ANY_INTEGER}


def read(folder):
    """The events of a folder, in the form of the figures."""
    events = event_accumulator.EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    found = []
    for tag in events.Tags()["tensors"]:
        metadata = events.SummaryMetadata(tag)
        for event in events.Tensors(tag):
            tensor = tensor_util.make_ndarray(event.tensor_proto)
            plugin, value = metadata.plugin_data.plugin_name, tensor.tolist()
            if plugin == "images":
                value = [x.decode() for x in value[:2]] + [pixels(x) for x in value[2:]]
            elif tensor.dtype == object:
                value = np.vectorize(bytes.decode, otypes=[object])(tensor).tolist()
            found.append(
                {
                    "tag": tag,
                    "step": event.step,
                    "plugin": plugin,
                    "description": metadata.summary_description,
                    "dtype": "string" if tensor.dtype == object else tensor.dtype.name,
                    "shape": list(tensor.shape),
                    "value": value,
                }
            )
    return found


def pixels(png):
    array = np.asarray(Image.open(BytesIO(png)))
    return (array if array.ndim == 3 else array[..., None]).tolist()


@pytest.mark.parametrize("case", CASES, ids=[case["call"] for case in CASES])
def test_as_recorded(case, tmp_path, report) -> None:
    call = case["call"]
    with summary.create_file_writer(tmp_path).as_default() as writer:
        if "error" in case and call not in DIFFERENT:
            with pytest.raises((ArgumentError, ArgumentTypeError)):
                eval(call, NAMES)
            assert read(tmp_path) == []
        else:
            assert eval(call, NAMES)
    writer.close()
    if "error" not in case:
        assert same(read(tmp_path), case["events"], 1e-6)
    report.count(call, DIFFERENT.get(call))


def test_every_case_is_counted(counted) -> None:
    assert len(counted) == len(CASES)
