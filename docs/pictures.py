"""Draw the pictures of the pages: python docs/pictures.py. Text is drawn in the reader's own colour."""

import json
import sys
from pathlib import Path

from replicant.input.sharding._rebatch import chunk_sizes
from replicant.plan._chips import CHIPS
from replicant.plan._estimate import scaling

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


def curves() -> str:
    """Estimated efficiency of ResNet-50 on 1 to 1,024 devices, with 64 and with 8 images on each."""
    left, top, width, height, most = 60, 24, 420, 200, 1024
    plan = json.loads((FOLDER / "plan_resnet50.json").read_text())  # written with the plan's transcript, by transcripts.py
    planned_images = plan["batch_per_replica"][0][0]
    parts = []
    for percent in (0, 25, 50, 75, 100):
        y = top + height * (1 - percent / 100)
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y:g}" y2="{y:g}" stroke="{GREY}" stroke-opacity="0.3"/>')
        parts.append(word(left - 8, y + 4, f"{percent} %", "end"))
    parts += [word(left + width * i / 10, top + height + 18, str(2**i), "middle") for i in range(0, 11, 2)]
    parts.append(word(left + width / 2, top + height + 38, "devices", "middle"))
    lines = [(chip, images) for chip in ("v5e", "h100") for images in (64, 8)]
    for number, ((chip, images), colour) in enumerate(zip(lines, COLOURS, strict=True)):
        work = {name: plan[name] * images / planned_images for name in ("flops", "memory_bytes")}
        work["exchanged_bytes"] = plan["exchanged_bytes"]
        rows = scaling(CHIPS[chip], **work, most=most)
        points = [(left + width * i / (len(rows) - 1), top + height * (1 - row[2])) for i, row in enumerate(rows)]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = top + height * 0.4 + 20 * number  # below the curves, which lie close together
        parts.append(f'<line x1="{left + 20}" x2="{left + 44}" y1="{y:g}" y2="{y:g}" stroke="{colour}" stroke-width="2"/>')
        parts.append(word(left + 52, y + 4, f"{CHIPS[chip].name}, {images} images on each"))
    return picture(500, 280, parts, "Estimated efficiency of ResNet-50 on 1 to 1,024 devices")


PICTURES = {"sharding.svg": sharding, "timeline.svg": timeline, "scaling.svg": curves}


def main() -> int:
    """Write them."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw())
    return 0


if __name__ == "__main__":
    sys.exit(main())
