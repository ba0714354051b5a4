"""Changes lines of a program, as a hand would."""

from collections.abc import Sequence

Changes = Sequence[tuple[str, str]]


def changed(text: str, by_hand: Changes) -> str:
    """Return the text with each old line, which has to stand there exactly once, replaced by the new one."""
    lines = text.splitlines()
    for old, new in by_hand:
        assert lines.count(old) == 1, f"{old!r} stands {lines.count(old)} times in:\n" + "\n".join(lines)
        lines[lines.index(old)] = new
    return "\n".join(lines) + "\n"
