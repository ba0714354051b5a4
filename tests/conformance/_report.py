"""Counts the recorded TensorFlow cases that come out the same, and by reason those that differ on purpose."""

from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

PASSED = "passed"
DIFFERENCES = Path(__file__).parents[2] / "docs" / "differences.md"


@cache
def reasons() -> frozenset[str]:
    """Return the first cells of the tables in docs/differences.md."""
    lines = DIFFERENCES.read_text().splitlines()
    return frozenset(line.split("|")[1].strip() for line in lines if line.startswith("| "))


class Report:
    """The outcomes of the cases of one file of figures. Each case counts once, with its last outcome."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def passed(self, case: object) -> None:
        """Count a case in which Replicant gives what TensorFlow gave."""
        self.outcomes[str(case)] = PASSED

    def different(self, case: object, reason: str) -> None:
        """Count a case in which Replicant gives its own answer. ``reason`` is the row of docs/differences.md that explains it."""
        assert reason in reasons(), f"{reason!r} is no row of {DIFFERENCES}"
        self.outcomes[str(case)] = reason

    def count(self, case: object, reason: str | None) -> None:
        """Count a case as different if there is a reason, and else as passed."""
        if reason is None:
            self.passed(case)
        else:
            self.different(case, reason)


REPORTS: dict[str, Report] = defaultdict(Report)


def table() -> list[str]:
    """Return one line per file and reason."""
    lines = []
    for file, report in sorted(REPORTS.items()):
        counts = Counter(report.outcomes.values())
        num_passed = counts.pop(PASSED, 0)
        lines.append(f"{file:<16} {num_passed:>5} as TensorFlow, {sum(counts.values()):>5} deliberately different")
        lines += [f"{'':<16} {count:>5} {reason}" for reason, count in sorted(counts.items())]
    return lines
