"""The default step, with the names of ``tf.summary.experimental``."""

from typing import Any

from . import _writer

__all__ = ["get_step", "set_step"]


def set_step(step: Any) -> None:
    """Set the step of summaries on this thread that are given none: a number, or a variable that is read at each summary."""
    _writer.current().step = step


def get_step() -> Any:
    """Return what `set_step` or ``as_default`` has set; None without it."""
    return _writer.current().step
