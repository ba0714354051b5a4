"""An extension for the API pages: doctests in docstrings are code, not quotations."""

import re
from typing import Any

import griffe

# A prompt, up to the next empty line or the end.
_DOCTEST = re.compile(r"^(?P<indent>[ ]*)>>> .*?(?=^\s*$|\Z)", re.DOTALL | re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts fences around them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for everything that has a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """A docstring with its doctests in fences."""
    return _DOCTEST.sub(lambda match: f"{match['indent']}```pycon\n{match[0].rstrip()}\n{match['indent']}```\n", text)
