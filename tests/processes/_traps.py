"""A folder of files that are named like the modules that this package could import. Each leaves a mark when it is imported."""

import importlib.metadata
import sys
from pathlib import Path

_TRAP = (
    "import sys\nwith open({marks!r}, 'a') as file:\n    print(__name__, sys.orig_argv, file=file)\nraise ImportError(__file__)\n"
)

# As the file that pip makes for a console script. Python looks in its folder first, and not in the current one.
COMMAND = "import sys\nfrom replicant.cli import main\nsys.exit(main())\n"


class Traps:
    """The folder, and a command `replicant` beside it.

    Args:
        root: An empty folder in which both are made.
    """

    def __init__(self, root: Path):
        self.folder, self.command, self._marks = root / "traps", root / "bin" / "replicant", root / "marks"
        self.folder.mkdir()
        for name in (*sys.stdlib_module_names, *importlib.metadata.packages_distributions(), "sitecustomize", "usercustomize"):
            if name.isidentifier() and name != "replicant":
                (self.folder / f"{name}.py").write_text(_TRAP.format(marks=str(self._marks)))
        self.command.parent.mkdir()
        self.command.write_text(COMMAND)

    def sprung(self) -> list[str]:
        """What was imported, and by which command lines, since this was last asked."""
        found = self._marks.read_text().splitlines() if self._marks.exists() else []
        self._marks.unlink(missing_ok=True)
        return found
