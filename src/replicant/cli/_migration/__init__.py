"""Translate tf.distribute programs.

The program's path: _sources reads it -> _rewriter translates, asking _names, _ops and _calls -> _imports -> _sources.
"""

from ._migrate import Migration as Migration
from ._migrate import migrate as migrate
