"""Draw the pictures of the pages: python docs/pictures.py. Text is drawn in the reader's own colour."""

import sys
from pathlib import Path

from replicant.input._rebatch import chunk_sizes

FOLDER = Path(__file__).resolve().parent / "pictures"
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1")
GREY = "#8c8c8c"


def box(x: float, y: float, width: float, colour: str, text: str = "") -> str:
    """A rectangle with a word in it."""
    height = 24
    label = f'<text x="{x + width / 2:g}" y="{y + height / 2 + 4:g}" text-anchor="middle" fill="#fff">{text}</text>' if text else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{colour}"/>{label}'


def word(x: float, y: float, text: str, anchor: str = "start") -> str:
    """Text on the page's own background."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{GREY}">{text}</text>'


def picture(width: int, height: int, parts: list[str], title: str) -> str:
    """An SVG."""
    size = f'viewBox="0 0 {width} {height}" width="{width}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, f"<title>{title}</title>", *parts, "</svg>"]) + "\n"


def sharding() -> str:
    """How batches of 8, 6 and 5 examples are cut for four replicas."""
    parts = [word(150 + 110 * i + 45, 18, f"replica {i}", "middle") for i in range(4)]
    for row, size in enumerate((8, 6, 5)):
        y, number = 30 + 40 * row, 0
        parts.append(word(10, y + 17, f"batch of {size}"))
        for replica, share in enumerate(chunk_sizes(size, 4)):
            for i in range(share):
                parts.append(box(150 + 110 * replica + 46 * i, y, 42, COLOURS[replica], str(number)))
                number += 1
            if not share:
                parts.append(word(150 + 110 * replica + 45, y + 17, "none", "middle"))
    return picture(600, 150, parts, "How a batch is cut for four replicas")


def timeline() -> str:
    """What the host and two replicas do at the same time."""
    rows = ("next batch", "host", "replica 0", "replica 1")
    parts = [word(10, 37 + 34 * i, name) for i, name in enumerate(rows)]
    for step in range(3):
        x = 100 + 160 * step
        ahead = 100 + 95 * step
        parts.append(box(ahead, 20, 90, GREY, f"place {step + 1}"))
        parts.append(box(ahead + 50, 54, 45, COLOURS[3], f"run {step + 1}"))
        for replica in range(2):
            y = 88 + 34 * replica
            parts.append(box(x + 60, y, 110 - 4, COLOURS[replica], f"gradient {step + 1}"))
            parts.append(box(x + 168, y, 50, COLOURS[2], "sum"))
    return picture(640, 150, parts, "Three steps: the host is ahead, the replicas meet at the sum of the gradients")


PICTURES = {"sharding.svg": sharding, "timeline.svg": timeline}


def main() -> int:
    """Write them."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw())
    return 0


if __name__ == "__main__":
    sys.exit(main())
