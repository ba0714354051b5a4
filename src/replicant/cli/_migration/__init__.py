"""Translates tf.distribute programs.

A program goes through these files: _folders finds it, _sources and _cells read it, _rewriter translates it with the help of _scan,
_names, _ops, _calls, _functions, _files, _seeds, _conditions and _branches, _imports fixes its imports, and _sources puts it back.
What has no translation is explained by _advice.
"""

from ._migrate import Migration as Migration
from ._migrate import migrate as migrate
from ._translator import Translation as Translation
from ._translator import Translator as Translator
from .sources._folders import tasks_of as tasks_of
