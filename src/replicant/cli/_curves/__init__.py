"""Curves of event files, for ``replicant report --events``: those of several programs in one picture for each tag."""

from ._curves import Curves, read_curves
from ._page import section_of
from ._text import text_of

__all__ = ["Curves", "read_curves", "section_of", "text_of"]
