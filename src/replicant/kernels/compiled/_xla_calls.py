"""How a function that numba compiles is called by XLA, and shares its work with XLA's threads.

The function serves two callers. XLA passes a call frame (``xla/ffi/api/c_api.h``), which begins with its size. Then it makes a job,
asks XLA's pool of threads for help, and works on the job itself. It never waits for work that has not begun, so a pool without free
threads delays nothing. The pool's threads pass the job, which begins with _JOB. The last one to leave the job frees it.
"""

from typing import Any

from ._machine_code import (
    call,
    fetch_add,
    free,
    jit,
    load,
    load_half,
    out_of_memory,
    place_for_arguments,
    store,
    store_half,
    this_function,
    yield_processor,
)

_JOB = -1
_MAX_THREADS = 16

# The numbers that each job begins with, in order, from byte 8 on: the next part, how many parts are done, how many threads hold the
# job, how many have begun to work on it, and the number of parts.
NEXT, DONE, HOLDERS, SLOTS, PARTS = 8, 16, 24, 32, 40
FACTS = 48  # where the job's own numbers begin

ARGUMENTS, NUM_ARGUMENTS, RESULTS, NUM_RESULTS = 72, 56, 112, 96  # of the frame
_FRAME_API, _FRAME_CONTEXT, _ATTRIBUTES = 16, 24, 160
_CREATE_ERROR, _DESTROY_ERROR, _SCHEDULE, _NUM_THREADS = 48, 64, 136, 144  # in XLA_FFI_Api


@jit
def begin_job(job: Any, parts: Any) -> None:
    """Write the numbers that each job begins with."""
    store(job, _JOB)
    store(job + NEXT, 0)
    store(job + DONE, 0)
    store(job + HOLDERS, 1)
    store(job + SLOTS, 0)
    store(job + PARTS, parts)


@jit
def _wait(job: Any, parts: Any) -> None:
    """Wait until other threads have ended the parts that they have begun."""
    while fetch_add(job + DONE, 0) < parts:
        yield_processor()


@jit
def _release(job: Any) -> None:
    """Leave a job. The last one frees it."""
    if fetch_add(job + HOLDERS, -1) == 1:
        free(job)


@jit
def buffer(frame: Any, place: Any, number: Any) -> Any:
    """An array of the ARGUMENTS or RESULTS, as XLA describes it."""
    return load(load(frame + place) + 8 * number)


@jit
def size_of(buffer: Any, axis: Any) -> Any:
    """The size of an axis of an array."""
    return load(load(buffer + 40) + 8 * axis)


@jit
def data_of(buffer: Any) -> Any:
    """The address of the numbers of an array."""
    return load(buffer + 24)


@jit
def attribute(frame: Any, number: Any) -> Any:
    """A whole number that the call was given. They are sorted by their names."""
    return load(load(buffer(frame, _ATTRIBUTES, number) + 8))


@jit
def _num_threads(frame: Any) -> Any:
    """How many threads XLA has, or 1 if it does not say."""
    arguments = place_for_arguments()
    store(arguments, 32)
    store(arguments + 8, 0)
    store(arguments + 16, load(frame + _FRAME_CONTEXT))
    store(arguments + 24, arguments + 32)
    store(arguments + 32, 1)
    error = call(load(load(frame + _FRAME_API) + _NUM_THREADS), arguments)
    count = load(arguments + 32)
    if error != 0:
        _forget(frame, error)
        return 1
    return count


@jit
def _forget(frame: Any, error: Any) -> None:
    arguments = place_for_arguments()
    store(arguments, 24)
    store(arguments + 8, 0)
    store(arguments + 16, error)
    call(load(load(frame + _FRAME_API) + _DESTROY_ERROR), arguments)


@jit
def _ask_for_help(frame: Any, job: Any, helpers: Any, function: Any) -> None:
    """Give the job to some of XLA's threads. If it lends none, the caller does all of it."""
    arguments = place_for_arguments()
    store(arguments, 40)
    store(arguments + 8, 0)
    store(arguments + 16, load(frame + _FRAME_CONTEXT))
    store(arguments + 24, function)
    store(arguments + 32, job)
    for _ in range(helpers):
        fetch_add(job + HOLDERS, 1)
        error = call(load(load(frame + _FRAME_API) + _SCHEDULE), arguments)
        if error != 0:
            fetch_add(job + HOLDERS, -1)
            _forget(frame, error)
            break


@jit
def _memory_error(frame: Any) -> Any:
    """What to return if there is no memory for a job."""
    arguments = place_for_arguments()
    store(arguments, 28)
    store(arguments + 8, 0)
    store(arguments + 16, out_of_memory())
    store_half(arguments + 24, 8)  # RESOURCE_EXHAUSTED
    return call(load(load(frame + _FRAME_API) + _CREATE_ERROR), arguments)


@jit
def describe(frame: Any) -> Any:
    """Answer the call with which XLA asks for the version of its interface. Returns whether this was such a call."""
    extension = load(frame + 8)
    if extension == 0 or load_half(extension + 8) != 1:
        return False
    metadata = load(extension + 24)
    store_half(metadata + 24, 0)
    store_half(metadata + 28, 3)
    return True


@jit
def nothing_more(job: Any) -> None:
    """What is left to do for most jobs once all parts are done."""


def make_handle(most_threads: Any, make_job: Any, work: Any, finish: Any = nothing_more) -> Any:
    """Make what XLA and the threads that it lends call.

    Args:
        most_threads: ``most_threads(frame)`` says how many threads are of use.
        make_job: ``make_job(frame, threads)`` allocates a job and writes down what is to be done, or returns 0 without memory.
        work: ``work(job)`` takes part after part, until none is left.
        finish: ``finish(job)`` does what is left once all parts are done.
    """

    @jit
    def run(frame: Any, function: Any) -> Any:
        threads = max(1, min(_num_threads(frame), _MAX_THREADS, most_threads(frame)))
        job = make_job(frame, threads)
        if job == 0:
            return _memory_error(frame)
        parts = load(job + PARTS)
        _ask_for_help(frame, job, min(threads, parts) - 1, function)
        work(job)
        _wait(job, parts)
        finish(job)
        _release(job)
        return 0

    def handle(pointer: Any) -> Any:
        if load(pointer) == _JOB:
            work(pointer)
            _release(pointer)
            return 0
        if describe(pointer):
            return 0
        return run(pointer, this_function())

    return handle
