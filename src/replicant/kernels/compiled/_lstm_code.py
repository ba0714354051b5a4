"""The loop over time of an LSTM, and of its gradient, as a function that XLA calls. Numba compiles it.

The rows of a batch do not depend on each other, so a thread computes all steps of some rows, and none waits for another. Each step
is a product of these rows and the recurrent kernel, whose sums stay in registers, followed by the gates. The recurrent kernel is
copied once, in panels of PANEL columns, so that each product reads it from front to back. `_xla_calls.py` tells how XLA calls this.

Arrays are as in `functions/_lstm.py`: the first axis is time, then come the rows. Numbers do not depend on which rows are computed
together.
"""

from typing import Any

from ._lstm_cells import compute_gradient, compute_state
from ._machine_code import (
    WIDTH,
    add_vector,
    allocate,
    clear,
    copy,
    fetch_add,
    jit,
    load,
    load_byte,
    load_half,
    store,
    store_half,
    write_sum,
)
from ._tiles import make_rows
from ._xla_calls import (
    ARGUMENTS,
    DONE,
    FACTS,
    NEXT,
    NUM_ARGUMENTS,
    PARTS,
    RESULTS,
    attribute,
    begin_job,
    buffer,
    data_of,
    make_handle,
    size_of,
)

FORWARD, GRADIENT = range(2)
PANEL = 2 * WIDTH
_FEW_ROWS, _MANY_ROWS = 8, 16  # of a part: few, if there are not many for each thread

# The numbers of a job are followed by the panels. From FACTS on, they are: kind, steps, rows, units, rows of a part, mask or 0,
# panels, the other arrays that are given but for the recurrent kernel, up to five, and the three results (see _lstm_loops.py).
_HEADER, _PANEL_BYTES, _VECTOR_BYTES = 256, 4 * PANEL, 4 * WIDTH

_add_product = make_rows(2, (8, 4, 1) if WIDTH == 16 else (4, 1))


@jit
def _is_kept(mask: Any, row: Any) -> Any:
    """Whether a row's state stays as it is."""
    return mask != 0 and load_byte(mask + row) == 0


@jit
def _forward(job: Any, begin: Any, rows: Any) -> None:
    """Compute all steps of some rows."""
    steps, batch, units = load(job + FACTS + 8), load(job + FACTS + 16), load(job + FACTS + 24)
    mask, panels = load(job + FACTS + 40), load(job + FACTS + 48)
    inputs, h, c, bias = load(job + FACTS + 56), load(job + FACTS + 64), load(job + FACTS + 72), load(job + FACTS + 80)
    outputs, carries, gates = load(job + FACTS + 96), load(job + FACTS + 104), load(job + FACTS + 112)
    line = 4 * units
    h, c = h + begin * line, c + begin * line
    for step in range(steps):
        first = step * batch + begin
        to_h, to_c, sums = outputs + first * line, carries + first * line, gates + 4 * first * line
        for row in range(rows):
            for at in range(0, 4 * line, _VECTOR_BYTES):
                write_sum(sums + 4 * row * line + at, inputs + 4 * (first + row) * line + at, bias + at)
        for panel in range(4 * units // PANEL):
            product = panels + panel * units * _PANEL_BYTES
            _add_product(h, line, 0, 4, product, 0, _PANEL_BYTES, 1, units, sums + panel * _PANEL_BYTES, 4 * line, 1, rows)
        for row in range(rows):
            for at in range(row * line, (row + 1) * line, _VECTOR_BYTES):
                compute_state(sums + 3 * row * line + at, line, c + at, to_c + at, to_h + at)
            if _is_kept(mask, first + row):
                copy(to_c + row * line, c + row * line, line)
                copy(to_h + row * line, h + row * line, line)
        h, c = to_h, to_c


@jit
def _gradient(job: Any, begin: Any, rows: Any) -> None:
    """Compute the gradients of all steps of some rows, from the last step to the first."""
    steps, batch, units = load(job + FACTS + 8), load(job + FACTS + 16), load(job + FACTS + 24)
    mask, panels = load(job + FACTS + 40), load(job + FACTS + 48)
    of_outputs, of_carries, gates = load(job + FACTS + 56), load(job + FACTS + 64), load(job + FACTS + 72)
    carries, carry, of_sums = load(job + FACTS + 80), load(job + FACTS + 88), load(job + FACTS + 96)
    line = 4 * units
    dh, dc = load(job + FACTS + 104) + begin * line, load(job + FACTS + 112) + begin * line
    clear(dh, rows * line)
    clear(dc, rows * line)
    for step in range(steps - 1, -1, -1):
        first = step * batch + begin
        before = carries + (first - batch) * line if step else carry + begin * line
        sums = of_sums + 4 * first * line
        for row in range(rows):
            kept = _is_kept(mask, first + row)
            if kept:
                clear(sums + 4 * row * line, 4 * line)
            for at in range(row * line, (row + 1) * line, _VECTOR_BYTES):
                of_h, of_c, four = of_outputs + first * line + at, of_carries + first * line + at, 3 * row * line + at
                if kept:
                    add_vector(dh + at, of_h)
                    add_vector(dc + at, of_c)
                else:
                    now = gates + 4 * first * line + four
                    compute_gradient(of_h, of_c, dh + at, dc + at, now, line, before + at, carries + first * line + at, sums + four)
        for panel in range(units // PANEL):
            product = panels + 4 * panel * units * _PANEL_BYTES
            _add_product(sums, 4 * line, 0, 4, product, 0, _PANEL_BYTES, 1, 4 * units, dh + panel * _PANEL_BYTES, line, 1, rows)


@jit
def _work(job: Any) -> None:
    """Take part after part of the rows, until none is left."""
    batch, rows, parts = load(job + FACTS + 16), load(job + FACTS + 32), load(job + PARTS)
    while True:
        part = fetch_add(job + NEXT, 1)
        if part >= parts:
            break
        begin = part * rows
        if load(job + FACTS) == FORWARD:
            _forward(job, begin, min(rows, batch - begin))
        else:
            _gradient(job, begin, min(rows, batch - begin))
        fetch_add(job + DONE, 1)


@jit
def _copy_panels(to: Any, weights: Any, units: Any) -> None:
    """Copy the columns of the recurrent kernel, PANEL by PANEL."""
    for panel in range(4 * units // PANEL):
        for k in range(units):
            copy(to + (panel * units + k) * _PANEL_BYTES, weights + 16 * k * units + panel * _PANEL_BYTES, _PANEL_BYTES)


@jit
def _copy_turned_panels(to: Any, weights: Any, units: Any) -> None:
    """Copy the rows of the recurrent kernel as columns, PANEL by PANEL."""
    for row in range(units):
        place = to + 4 * (row // PANEL) * units * _PANEL_BYTES + 4 * (row % PANEL)
        for k in range(4 * units):
            store_half(place + k * _PANEL_BYTES, load_half(weights + 4 * (4 * row * units + k)))


@jit
def _job(frame: Any, threads: Any) -> Any:
    """Allocate a job and write down what is to be done. Returns 0 if there is no memory."""
    kind, weights, steps = attribute(frame, 0), buffer(frame, ARGUMENTS, 0), buffer(frame, ARGUMENTS, 1)
    units, batch = size_of(weights, 0), size_of(steps, 1)
    job = allocate(_HEADER + _VECTOR_BYTES + 16 * units * units)
    if job == 0:
        return 0
    panels = (job + _HEADER + _VECTOR_BYTES - 1) // _VECTOR_BYTES * _VECTOR_BYTES
    if kind == FORWARD:
        _copy_panels(panels, data_of(weights), units)
    else:
        _copy_turned_panels(panels, data_of(weights), units)
    num_arrays = 5 if kind == FORWARD else 6
    rows = _MANY_ROWS if batch >= threads * _MANY_ROWS else _FEW_ROWS
    begin_job(job, (batch + rows - 1) // rows)
    facts = kind, size_of(steps, 0), batch, units, rows
    for i in range(len(facts)):
        store(job + FACTS + 8 * i, facts[i])
    masked = load(frame + NUM_ARGUMENTS) > num_arrays
    store(job + FACTS + 40, data_of(buffer(frame, ARGUMENTS, num_arrays)) if masked else 0)
    store(job + FACTS + 48, panels)
    for i in range(1, num_arrays):
        store(job + FACTS + 48 + 8 * i, data_of(buffer(frame, ARGUMENTS, i)))
    for i in range(3):
        store(job + FACTS + 96 + 8 * i, data_of(buffer(frame, RESULTS, i)))
    return job


@jit
def _num_parts(frame: Any) -> Any:
    return (size_of(buffer(frame, ARGUMENTS, 1), 1) + _FEW_ROWS - 1) // _FEW_ROWS


handle = make_handle(_num_parts, _job, _work)
