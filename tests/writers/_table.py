"""The table of docs/formats.md, made of the cells. ``python tests/writers/_table.py`` writes it anew."""

import itertools
from pathlib import Path

from _cells import Cell, cells, versions

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
BEGIN, END = "<!-- made by tests/writers/_table.py -->\n", "<!-- the end of what is made -->\n"


def table(found: list[Cell]) -> str:
    """Return the table, with a section for each format."""
    lines: list[str] = []
    pinned = {name.lower(): version for name, version in versions().items()}
    for form in dict.fromkeys(cell.form for cell in found):
        lines += [f"## {form}", "", "| writer | version | read | refused, with these words |", "|---|---|---|---|"]
        of_form = [cell for cell in found if cell.form == form]
        for writer in dict.fromkeys(cell.writer for cell in of_form):
            its = [cell for cell in of_form if cell.writer == writer]
            lines.append(f"| {writer} | {pinned[writer.lower()]} | {_read(its)} | {_refused(its)} |")
        lines.append("")
    return "\n".join(lines)


def _read(its: list[Cell]) -> str:
    return "; ".join(_escaped(cell.what) for cell in its if cell.refused is None)


def _refused(its: list[Cell]) -> str:
    refused = sorted((cell for cell in its if cell.refused is not None), key=lambda cell: str(cell.refused))
    groups = itertools.groupby(refused, key=lambda cell: str(cell.refused))
    return "; ".join(f'{", ".join(_escaped(cell.what) for cell in group)}: "{_escaped(words)}"' for words, group in groups)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("`", "\\`").replace("<", "\\<")


def page(text: str) -> str:
    """Return the page with the table as it should be."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n{table(cells())}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
