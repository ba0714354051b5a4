"""Translates tf.distribute programs.

A program goes through these files: _sources reads it, _rewriter translates it with the help of _names, _ops and _calls, _imports
fixes its imports, and _sources puts it back.
"""

from ._migrate import Migration as Migration
from ._migrate import migrate as migrate
