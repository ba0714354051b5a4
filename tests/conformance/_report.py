"""Counts the recorded TensorFlow cases: those that come out the same, and those that differ on purpose, by reason."""

from collections import Counter, defaultdict

PASSED = "passed"


class Report:
    """What became of the cases of one file of figures. A case is counted once, under the last thing said about it."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def passed(self, case: object) -> None:
        """Replicant gives what TensorFlow gave."""
        self.outcomes[str(case)] = PASSED

    def different(self, case: object, reason: str) -> None:
        """Replicant gives its own documented answer, which the test has asserted; ``reason`` is a row of docs/differences.md."""
        self.outcomes[str(case)] = reason


REPORTS: dict[str, Report] = defaultdict(Report)


def table() -> list[str]:
    """One line per file and reason."""
    lines = []
    for file, report in sorted(REPORTS.items()):
        counts = Counter(report.outcomes.values())
        num_passed = counts.pop(PASSED, 0)
        lines.append(f"{file:<12} {num_passed:>5} as TensorFlow, {sum(counts.values()):>5} deliberately different")
        lines += [f"{'':<12} {count:>5} {reason}" for reason, count in sorted(counts.items())]
    return lines
