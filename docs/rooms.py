"""The rooms of the package and the arrows between them, read from its imports: python docs/rooms.py [--draw].

It prints circles and arrows that run back up, and fails if there are any. Imports inside functions and for types alone count. The
floors are the layers of import-linter in pyproject.toml. ``--draw`` also writes docs/pictures/rooms.svg.
"""

import argparse
import ast
import collections
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pictures import COLOURS, GREY, picture, word

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "replicant"
Arrows = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """All modules of the package by their names; a folder's name stands for its ``__init__``."""
    found = {}
    for path in sorted((ROOT / "src" / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The package's own modules that a module imports, wherever in it."""
    folder = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            parts = folder[: len(folder) - node.level + 1] if node.level else []
            source = ".".join([*parts, *filter(None, [node.module])])
            for alias in node.names:
                yield from [each for each in (f"{source}.{alias.name}", source) if each in known][:1]


def module_arrows() -> Arrows:
    """Who imports whom."""
    known = modules()
    return {name: set(imports(name, path, known)) - {name} for name, path in known.items()}


def room_arrows(arrows: Arrows, folder: str) -> Arrows:
    """The arrows between what lies in a folder: its files, and its folders as a whole."""
    known = modules()

    def room(name: str) -> str:
        rest = name.removeprefix(folder + ".")
        return "__init__" if name == folder else rest.split(".")[0]

    found: Arrows = collections.defaultdict(set)
    inside = [name for name in known if name == folder or name.startswith(folder + ".")]
    for name in inside:
        found[room(name)] |= {room(other) for other in arrows[name] if other in inside} - {room(name)}
    return dict(found)


def circles(arrows: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups in which everybody reaches everybody (Tarjan, 1972)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        numbers[name] = lowest[name] = len(numbers)
        path.append(name)
        for other in sorted(arrows.get(name, ())):
            if other not in numbers:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in path:
                lowest[name] = min(lowest[name], numbers[other])
        if lowest[name] == numbers[name]:
            group = path[path.index(name) :]
            del path[path.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        for name in sorted(arrows):
            if name not in numbers:
                visit(name)
    finally:
        sys.setrecursionlimit(limit)
    return found


def all_circles(arrows: Arrows) -> list[str]:
    """Circles of files, and of the rooms in each folder."""
    folders = [name for name, path in modules().items() if path.stem == "__init__"]
    texts = [f"files: {', '.join(group)}" for group in circles(arrows)]
    for folder in folders:
        texts += [f"{folder}: {', '.join(group)}" for group in circles(room_arrows(arrows, folder))]
    return texts


def floors(folder: str = PACKAGE) -> list[list[str]]:
    """The layers of a folder, from the top, as pyproject.toml has them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each.get("containers") == [folder])
    return [re.findall(r"\w+", layer) for layer in layers]


def arrows_up(arrows: Arrows) -> list[str]:
    """Arrows from a floor to one above it."""
    height = {name: -floor for floor, names in enumerate(floors()) for name in names}
    rooms = room_arrows(arrows, PACKAGE)
    return [
        f"{name} -> {other}"
        for name, others in sorted(rooms.items())
        for other in sorted(others)
        if name in height and other in height and height[other] > height[name]
    ]


def without_shortcuts(arrows: Arrows) -> Arrows:
    """Only those arrows to which there is no longer way."""

    def reached(name: str) -> set[str]:
        return {name}.union(*(reached(other) for other in arrows.get(name, ())))

    return {
        name: {other for other in others if not any(other in reached(third) for third in others - {other})}
        for name, others in arrows.items()
    }


def drawing(arrows: Arrows) -> str:
    """All rooms on their floors, and the arrows without shortcuts."""
    rooms = {name: others for name, others in room_arrows(arrows, PACKAGE).items() if name not in ("__init__", "__main__")}
    rows = [[name for name in floor if name in rooms] for floor in floors()]
    rows = [row for row in rows if row]
    width, box_width, step = 860, 108, 62
    places = {}
    for floor, row in enumerate(rows):
        for i, name in enumerate(row):
            places[name] = (width * (i + 1) / (len(row) + 1), 30 + step * floor)
    parts = [
        f'<path d="M{places[name][0]:.0f},{places[name][1] + 26:.0f} C{places[name][0]:.0f},{places[name][1] + 48:.0f} '
        f'{places[other][0]:.0f},{places[other][1] - 24:.0f} {places[other][0]:.0f},{places[other][1]:.0f}" fill="none" '
        f'stroke="{GREY}" stroke-opacity="0.6"/>'
        for name, others in sorted(without_shortcuts(rooms).items())
        for other in sorted(others)
        if other in places
    ]
    for name, (x, y) in places.items():
        colour = COLOURS[0] if (ROOT / "src" / PACKAGE / name).is_dir() else COLOURS[3]
        parts.append(
            f'<rect x="{x - box_width / 2:.0f}" y="{y:.0f}" width="{box_width}" height="26" rx="4" fill="{colour}"/>'
            f'<text x="{x:.0f}" y="{y + 17:.0f}" text-anchor="middle" fill="#fff">{name}</text>'
        )
    height = 30 + step * len(rows) + 10
    parts.append(
        word(10, height - 8, "An arrow means: imports, directly or through the rooms on its way. Blue: a folder; purple: a file.")
    )
    return picture(width, height, parts, "The rooms of Replicant, and what they import")


def main() -> int:
    """Print what there is, and draw it on request."""
    parser = argparse.ArgumentParser(description="Rooms of the package, and arrows between them.")
    parser.add_argument("--draw", action="store_true", help="write docs/pictures/rooms.svg")
    draw = parser.parse_args().draw
    arrows = module_arrows()
    rooms = room_arrows(arrows, PACKAGE)
    round_trips, up = all_circles(arrows), arrows_up(arrows)
    print(
        f"{len(rooms)} rooms, {sum(map(len, rooms.values()))} arrows, {len(arrows)} files, {sum(map(len, arrows.values()))} imports"
    )
    print(f"{len(round_trips)} circles", *round_trips, sep="\n  ")
    print(f"{len(up)} arrows that run back up", *up, sep="\n  ")
    if draw:
        (ROOT / "docs" / "pictures" / "rooms.svg").write_text(drawing(arrows))
    return 1 if round_trips or up else 0


if __name__ == "__main__":
    sys.exit(main())
