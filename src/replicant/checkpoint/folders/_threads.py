"""Tasks that read or write files, on several threads at a time."""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

_Result = TypeVar("_Result")

MOST = max(2, min(8, os.cpu_count() or 1))  # threads; more do not make a disk faster


def run_all(tasks: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """Return the results of all tasks. This thread works too, so it goes on alone where no other thread can be started.

    Raises:
        BaseException: What the first task raised that failed. Tasks that have not begun then are left out.
    """
    left = deque(enumerate(tasks))
    results: dict[int, _Result] = {}
    errors: list[BaseException] = []

    def work() -> None:
        while left and not errors:
            try:
                number, task = left.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                results[number] = task()
            except BaseException as error:  # noqa: BLE001 - raised below, in the thread that asked
                errors.append(error)

    threads: list[threading.Thread] = []
    for _ in range(min(MOST, len(tasks)) - 1):
        thread = threading.Thread(target=work, name="replicant-checkpoint-part")
        try:
            thread.start()
        except RuntimeError:  # the program is ending
            break
        threads.append(thread)
    work()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(tasks))]
