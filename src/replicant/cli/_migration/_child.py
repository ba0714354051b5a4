"""The process that translates files for ``_translator``: ``python -m ..._child BYTES``. Requests and answers are lines of JSON."""

import base64
import json
import math
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import CommandError
from ._migrate import Migration, migrate

_SPARE_SECONDS = 10  # by which the deadline here is later than that of the process that asks


def main(memory: int) -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks, which then ends this one
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _limit(memory)
    _send(answers, {})
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.alarm(math.ceil(request["seconds"]) + _SPARE_SECONDS)  # ends this process even if nobody waits for it any more
        _send(answers, _answer(Path(request["path"]), only_diff=request["only diff"]))
        signal.alarm(0)


def _limit(memory: int) -> None:
    """Let this process have so many bytes more than now, and write no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # not Linux: other systems do not keep to this limit
        return
    limit = pages * resource.getpagesize() + memory
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY or limit < most:
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def _answer(path: Path, *, only_diff: bool) -> dict[str, Any]:
    try:
        migration = migrate(path)
        return {
            "changed": migration.text != migration.source.text,
            "places": _places(migration),
            "diff": migration.diff() if only_diff else "",
            "data": "" if only_diff else base64.b64encode(migration.data()).decode(),
        }
    except CommandError as error:
        return {"error": str(error)}
    except MemoryError:
        return {"memory": True}
    except RecursionError:
        return {"error": f"{path} was not translated: its code is nested too deeply. Translate it by hand."}
    except Exception as error:  # noqa: BLE001 - it must not keep others from being translated
        return {"error": f"{path} was not translated: {type(error).__name__}: {error}. Please report this."}


def _places(migration: Migration) -> list[tuple[str, str, str, str]]:
    place = migration.source.place
    return [(finding.kind, place(finding.line), finding.construct, finding.advice) for finding in migration.findings]


def _send(answers: BinaryIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
