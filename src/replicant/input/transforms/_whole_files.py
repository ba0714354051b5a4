"""Files that are one example each: a source of their names and labels, and the transform that reads them."""

import dataclasses
from typing import Any

from ..files._files import FileNames
from .elements._map import Map


@dataclasses.dataclass(frozen=True, eq=False)
class ExampleFiles(FileNames):
    """File names, with a number each in a second table if they have labels. Workers may share the files (FILE)."""


@dataclasses.dataclass(frozen=True, eq=False)
class WholeFiles(Map):
    """The example in each file. Its spec is known, so no file is read to find it out."""

    known_spec: Any = None
    reads: str = "read_file"

    @property
    def label(self) -> str:
        return self.reads

    @property
    def spec(self) -> Any:
        return self.known_spec
