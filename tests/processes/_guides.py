"""Extracts the code cells of TensorFlow's guides from pages that were saved as text. No code of the guides is kept here.

Saving the pages lost the levels of indentation, which are restored here.
"""

import ast
import re
from pathlib import Path

CJK = re.compile(r"[\u3000-\u9fff\uff00-\uffef]")
OUTPUT = re.compile(
    r"""^(\s*\d{4}-\d\d-\d\d\s\d\d:|[A-Z]\d{4}\s\d\d:|INFO:|WARNING|Downloading\sdata|\d+/\d+\s|Epoch\s\d+|Learning\srate\sfor|Number\sof
    |\d+\.\d+\.\d+(-rc\d)?$|Accuracy\safter|Eval\sloss|total\s\d|\d\.\dK|checkpoint\s{2}|ckpt_\d|<keras|To\senable|op:\s|attr\s\{|input:
    |/tmpfs|\s+warnings\.warn\(|tf\.distribute\.\S*\s\S|%|!|ls\s)""",
    re.VERBOSE,
)
ENDS = re.compile(r"^\s*(break|continue|return\b|raise\b|\w+\.extend\()")


def code_of(path: Path) -> str:
    """Return the program of a page."""
    text = path.read_text(encoding="utf-8")
    if "```python" in text:
        cells = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        code = "\n\n".join(_indented(cell) for cell in cells)
    else:
        code = _between_sentences(text)
    ast.parse(code)
    return code


def _between_sentences(text: str) -> str:
    """Return the lines that are neither sentences nor output."""
    kept: list[str] = []
    depth = 0  # of the braces in TensorFlow's logs of graphs
    for line in text.splitlines():
        if depth or re.match(r"^(attr|\s*(list|shape|dim)) \{", line):
            depth += line.count("{") - line.count("}")
        elif not kept and not re.match(r"(import|#) ?\w", line):
            continue  # the head of the page
        elif not CJK.search(line.partition("#")[0]) and not OUTPUT.match(line) and not re.match(r"^\s*[•]", line):
            kept.append(line)
    return "\n".join(kept)


def _indented(cell: str) -> str:
    """Restore the indentation, of which one space was saved: a colon opens a level, and a statement that ends a block closes it."""
    lines: list[str] = []
    level, brackets, opened, closed = 0, 0, False, False
    for line in cell.splitlines():
        text = line.strip()
        if brackets == 0 and text and not text.startswith("#"):
            level = 0 if not line.startswith(" ") else level + opened - closed
            closed = bool(ENDS.match(line))
            opened = text.partition(" #")[0].rstrip().endswith(":")
        lines.append("    " * (level + (brackets > 0)) + text if text else "")
        brackets += sum(text.partition(" #")[0].count(x) for x in "([{") - sum(text.partition(" #")[0].count(x) for x in ")]}")
        if brackets == 0 and text.endswith(":"):
            opened = True
    return "\n".join(lines)
