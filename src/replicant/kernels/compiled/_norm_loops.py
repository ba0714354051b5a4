"""Means, variances and sums of the columns of arrays, as a function that XLA calls. Numba compiles it.

The arrays have the shape (batches, rows, channels). Each is read once, in blocks that stay in the first cache: a block's variance
is that of its numbers around their own mean, and those of several blocks are put together (Chan, Golub and LeVeque, 1979). Until
the end, means are distances from that of the first rows, so that large ones take nothing from a variance. `_xla_calls.py` tells how
XLA calls the function.

Results do not depend on the number of threads: each of at most MAX_PARTS parts of the rows has sums of its own.
"""

from typing import Any

from ._column_sums import clear_if_not_finite, divide_vector, join_moments, moments_of_block, sums_of_block, sums_where_positive
from ._machine_code import WIDTH, add_vector, allocate, clear, copy, fetch_add, jit, load, store
from ._xla_calls import ARGUMENTS, DONE, FACTS, NEXT, PARTS, RESULTS, attribute, begin_job, buffer, data_of, make_handle, size_of

MOMENTS, SUMS, SUMS_WHERE_POSITIVE = range(3)
MAX_PARTS = 16
_LEAST_BYTES = 1 << 17  # of a part
_ROWS_OF_ORIGIN = 32
_BLOCK_BYTES, _LEAST_ROWS = 1 << 14, 8
_SIDE_BY_SIDE = 4  # vectors: rows that are shorter are taken several at a time, so that more sums are made at once

# The numbers of a job are followed by the two sums of each part, and by the factors of each batch, all as long as a line.
# From FACTS on: kind, first, second, both results, rows, channels, parts of a batch, rows side by side.
_HEADER = 128


@jit
def _block(kind: Any, first: Any, second: Any, scale: Any, shift: Any, line: Any, rows: Any, sums: Any, before: Any) -> None:
    """Add `rows` lines of so many bytes to sums. There were `before` lines already."""
    if kind == MOMENTS:
        moments_of_block(first, scale, line, rows, sums, before)
    elif kind == SUMS:
        sums_of_block(first, second, line, rows, sums)
    else:
        sums_where_positive(first, second, scale, shift, line, rows, sums)


@jit
def _factors(job: Any, batch: Any, line: Any) -> Any:
    """Where the scales of a batch are, as often as there are rows in a line, and then its shifts. For moments, an origin."""
    return job + _HEADER + 2 * (load(job + PARTS) + batch) * line


@jit
def _part(job: Any, part: Any) -> None:
    """Make the sums of a part of the rows of a batch."""
    kind, rows, channels = load(job + FACTS), load(job + FACTS + 40), load(job + FACTS + 48)
    parts, side = load(job + FACTS + 56), load(job + FACTS + 64)
    batch, line = part // parts, 4 * side * channels
    sums, scale = job + _HEADER + 2 * part * line, _factors(job, batch, line)
    clear(sums, 2 * line)
    lines = rows // side
    begin, end = part % parts * lines // parts, (part % parts + 1) * lines // parts
    at = 4 * batch * rows * channels + begin * line
    first, second = load(job + FACTS + 8) + at, load(job + FACTS + 16) + at
    step = max(_LEAST_ROWS, _BLOCK_BYTES // line)
    for done in range(0, end - begin, step):
        here = done * line
        _block(kind, first + here, second + here, scale, scale + line, line, min(step, end - begin - done), sums, done)


@jit
def _work(job: Any) -> None:
    """Take part after part, until none is left."""
    while True:
        part = fetch_add(job + NEXT, 1)
        if part >= load(job + PARTS):
            break
        _part(job, part)
        fetch_add(job + DONE, 1)


@jit
def _parts_of_batch(frame: Any) -> Any:
    first = buffer(frame, ARGUMENTS, 0)
    return max(1, min(MAX_PARTS, size_of(first, 1) * size_of(first, 2) * 4 // _LEAST_BYTES))


@jit
def _write_origin(to: Any, first: Any, rows: Any, size: Any) -> None:
    """Write the means of some rows, as far as they are finite."""
    copy(to, first, size)
    for at in range(0, size, 4 * WIDTH):
        for row in range(1, rows):
            add_vector(to + at, first + row * size + at)
        divide_vector(to + at, rows)
        clear_if_not_finite(to + at)


@jit
def _write_factors(frame: Any, kind: Any, batch: Any, rows: Any, size: Any, to: Any, side: Any) -> None:
    """Write what a batch's rows are shifted and scaled by, for each of the rows of a line."""
    if kind == MOMENTS:
        _write_origin(to, data_of(buffer(frame, ARGUMENTS, 0)) + batch * rows * size, min(rows, _ROWS_OF_ORIGIN), size)
        for i in range(1, side):
            copy(to + i * size, to, size)
    elif kind == SUMS_WHERE_POSITIVE:
        for i in range(side):
            copy(to + i * size, data_of(buffer(frame, ARGUMENTS, 2)) + batch * size, size)
            copy(to + (side + i) * size, data_of(buffer(frame, ARGUMENTS, 3)) + batch * size, size)


@jit
def _job(frame: Any, threads: Any) -> Any:
    """Allocate a job and write down what is to be done. Returns 0 if there is no memory."""
    kind, first = attribute(frame, 0), buffer(frame, ARGUMENTS, 0)
    second = first if kind == MOMENTS else buffer(frame, ARGUMENTS, 1)
    batches, rows, channels, parts = size_of(first, 0), size_of(first, 1), size_of(first, 2), _parts_of_batch(frame)
    side = max(1, min(_SIDE_BY_SIDE * WIDTH // channels, rows))
    job = allocate(_HEADER + 2 * batches * (parts + 1) * 4 * side * channels)
    if job == 0:
        return 0
    begin_job(job, batches * parts)
    results = data_of(buffer(frame, RESULTS, 0)), data_of(buffer(frame, RESULTS, 1))
    facts = (kind, data_of(first), data_of(second), results[0], results[1], rows, channels, parts, side)
    for i in range(len(facts)):
        store(job + FACTS + 8 * i, facts[i])
    for batch in range(batches):
        _write_factors(frame, kind, batch, rows, 4 * channels, _factors(job, batch, 4 * side * channels), side)
    return job


@jit
def _add_up(job: Any) -> None:
    """Put the sums of all parts together."""
    kind, rows, channels = load(job + FACTS), load(job + FACTS + 40), load(job + FACTS + 48)
    parts, side = load(job + FACTS + 56), load(job + FACTS + 64)
    size, lines = 4 * channels, rows // side
    for batch in range(load(job + PARTS) // parts):
        to, also_to = load(job + FACTS + 24) + batch * size, load(job + FACTS + 32) + batch * size
        total = 0
        for part in range(parts):
            of_part = (part + 1) * lines // parts - part * lines // parts
            for i in range(side):
                sums = job + _HEADER + 2 * (batch * parts + part) * side * size + i * size
                _join(kind, to, also_to, sums, sums + side * size, size, total, of_part)
                total += of_part
        rest, scale = job + _HEADER, _factors(job, batch, side * size)  # the sums of the first part are not needed any more
        for row in range(lines * side, rows):
            at = 4 * (batch * rows + row) * channels
            clear(rest, 2 * size)
            _block(kind, load(job + FACTS + 8) + at, load(job + FACTS + 16) + at, scale, scale + side * size, size, 1, rest, 0)
            _join(kind, to, also_to, rest, rest + size, size, total, 1)
            total += 1
        if kind == MOMENTS:
            for i in range(0, size, 4 * WIDTH):
                add_vector(to + i, scale + i)
                divide_vector(also_to + i, rows)


@jit
def _join(kind: Any, to: Any, also_to: Any, sums: Any, other_sums: Any, size: Any, before: Any, count: Any) -> None:
    """Add two sums of `count` rows to those of `before` rows, or write them if there were none."""
    if before == 0:
        copy(to, sums, size)
        copy(also_to, other_sums, size)
    elif count > 0:
        for i in range(0, size, 4 * WIDTH):
            if kind == MOMENTS:
                join_moments(to + i, also_to + i, sums + i, other_sums + i, before, count)
            else:
                add_vector(to + i, sums + i)
                add_vector(also_to + i, other_sums + i)


@jit
def _most_threads(frame: Any) -> Any:
    return size_of(buffer(frame, ARGUMENTS, 0), 0) * _parts_of_batch(frame)


handle = make_handle(_most_threads, _job, _work, _add_up)
