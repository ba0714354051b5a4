"""Writes summaries for TensorBoard, with the names of ``tf.summary`` and without TensorFlow, and reads scalars.

Event files are written by tensorboardX (``pip install replicant-jax[tensorboard]``). With several workers, only the chief writes.
Reading needs no other package.

    writer = replicant.summary.create_file_writer("logs")
    with writer.as_default():
        for step, batch in enumerate(batches):
            replicant.summary.scalar("loss", train_step(batch), step=step)
"""

from typing import Any

from .. import errors as _errors
from . import experimental as experimental
from ._read import ScalarEvent as ScalarEvent
from ._read import read_scalars as read_scalars
from ._write import histogram as histogram
from ._write import image as image
from ._write import scalar as scalar
from ._write import text as text
from ._writer import SummaryWriter as SummaryWriter
from ._writer import create_file_writer as create_file_writer
from ._writer import create_noop_writer as create_noop_writer
from ._writer import flush as flush
from ._writer import record_if as record_if
from ._writer import should_record_summaries as should_record_summaries

__all__ = [
    "ScalarEvent",
    "SummaryWriter",
    "create_file_writer",
    "create_noop_writer",
    "experimental",
    "flush",
    "histogram",
    "image",
    "read_scalars",
    "record_if",
    "scalar",
    "should_record_summaries",
    "text",
]

_INSTEAD = {
    "audio": "tensorboardX.SummaryWriter(logdir).add_audio",
    "graph": "get_concrete_function(...).as_text() of a replicant.function, or the TensorBoard callback for a Keras model",
    "trace_export": "jax.profiler.stop_trace()",
    "trace_off": "jax.profiler.stop_trace()",
    "trace_on": "jax.profiler.start_trace(logdir)",
    "write": "scalar, text, histogram or image",
}


def __getattr__(name: str) -> Any:
    if name in _INSTEAD:
        raise _errors.MissingNameError(f"replicant.summary has no {name}. Use {_INSTEAD[name]}.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
