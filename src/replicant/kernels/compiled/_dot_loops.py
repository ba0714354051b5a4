"""Products of two matrices, and of two batches of them, as a function that XLA calls. Numba compiles it.

The columns of the second matrix are taken in panels. A thread copies up to DEPTH rows of such a panel, so that they lie one after
the other in its first cache, and multiplies rows of the first matrix by them: up to ROWS, whose numbers stay in the second cache
for all panels of a part. A tile of HEIGHT rows and a panel has its sums in registers (`_tiles.py`). `_xla_calls.py` tells how XLA
calls this.

The first matrix is read number by number, so its strides may be any. Its next rows are asked for while those of a tile are
multiplied: in training, a matrix seldom lies in a cache, and the processors that were measured do not foresee rows that lie apart.
In the second matrix, the numbers of a row or of a column must lie side by side. Each number of the result is summed in the same
order, however many threads there are.
"""

from typing import Any

from ._machine_code import WIDTH, allocate, copy, fetch_add, jit, load, load_half, make_place, store, store_half, transpose_square
from ._tiles import HEIGHTS, HEIGHTS_OF_TWO, make_rows
from ._xla_calls import ARGUMENTS, DONE, FACTS, NEXT, PARTS, RESULTS, attribute, begin_job, buffer, data_of, make_handle

PANEL, DEPTH, ROWS = 2 * WIDTH, 256, 256
PARTS_OF_A_THREAD = 4
HEIGHT = HEIGHTS_OF_TWO[0]  # rows of a tile
MIN_ROWS = 96  # of a part, if there are more
PRODUCTS_OF_A_THREAD = 1 << 20  # another thread takes some ten microseconds to begin
MAX_TOGETHER = 128 // PANEL  # panels that are copied at once, and for which rows are read from memory once
NUM_ATTRIBUTES = 13

# The numbers of a job are, from FACTS on: the attributes of the call, sorted by their names in `_dot.py`, which are counts
# and strides in bytes; the two operands and the result; how many rows a part has, how many parts the rows are,
# and the same of the columns.
_HEADER, _VECTOR_BYTES, _PANEL_BYTES = 256, 4 * WIDTH, 4 * PANEL
_BATCH, _INNER, _COLUMNS, _DEPTH = (FACTS + 8 * i for i in range(4))
_LHS_DEPTH, _LHS_INNER, _LHS_OUTER, _LHS_ROWS = (FACTS + 8 * i for i in range(4, 8))
_RHS_COLUMNS, _RHS_DEPTH, _RHS_INNER, _RHS_OUTER, _ROWS = (FACTS + 8 * i for i in range(8, 13))
_LHS, _RHS, _OUT = (FACTS + 8 * i for i in range(13, 16))
_ROWS_TOGETHER, _ROW_GROUPS, _COLUMNS_TOGETHER, _COLUMN_GROUPS = (FACTS + 8 * i for i in range(16, 20))

_place_for_panels = make_place(MAX_TOGETHER * DEPTH * _PANEL_BYTES)
# A step of a tile of AVX2 has 12 products, and with the instructions that read ahead it was slower.
_narrow, _wide = (
    make_rows(vectors, tuple(height for height in heights if height not in {2, 3}), reads_ahead=WIDTH == 16)
    for vectors, heights in ((1, HEIGHTS), (2, HEIGHTS_OF_TWO))
)


@jit
def _copy_panels(to: Any, rhs: Any, k_stride: Any, depth: Any, columns: Any) -> None:
    """Copy so many rows, whose columns lie side by side."""
    for k in range(depth):
        line = rhs + k * k_stride
        for panel in range(columns // PANEL):
            copy(to + (panel * DEPTH + k) * _PANEL_BYTES, line + panel * _PANEL_BYTES, _PANEL_BYTES)
        if columns % PANEL:
            at = columns // PANEL
            copy(to + at * DEPTH * _PANEL_BYTES + k * _VECTOR_BYTES, line + at * _PANEL_BYTES, _VECTOR_BYTES)


@jit
def _copy_turned_panels(to: Any, rhs: Any, column_stride: Any, depth: Any, columns: Any) -> None:
    """Copy so many columns, whose numbers lie side by side."""
    squares = depth // WIDTH
    for column in range(0, columns, WIDTH):
        line = 4 * min(PANEL, columns - column // PANEL * PANEL)
        place = to + column // PANEL * DEPTH * _PANEL_BYTES + 4 * (column % PANEL)
        for k in range(0, squares * WIDTH, WIDTH):
            transpose_square(place + k * line, line, rhs + column * column_stride + 4 * k, column_stride)
        for k in range(squares * WIDTH, depth):
            for i in range(WIDTH):
                store_half(place + k * line + 4 * i, load_half(rhs + (column + i) * column_stride + 4 * k))


@jit
def _multiply(job: Any, lhs: Any, rhs: Any, out: Any, panels: Any, rows: Any, begin: Any, end: Any) -> None:
    """Compute the columns from `begin` to `end` of so many rows of one product."""
    all_depth, line = load(job + _DEPTH), 4 * load(job + _COLUMNS)
    lhs_depth, lhs_rows = load(job + _LHS_DEPTH), load(job + _LHS_ROWS)
    rhs_depth, rhs_columns = load(job + _RHS_DEPTH), load(job + _RHS_COLUMNS)
    for row in range(0, rows, ROWS):
        num_rows = min(ROWS, rows - row)
        for k in range(0, all_depth, DEPTH):
            depth = min(DEPTH, all_depth - k)
            a, b, adds = lhs + row * lhs_rows + k * lhs_depth, rhs + k * rhs_depth + begin * rhs_columns, 1 if k else 0
            if row and all_depth <= DEPTH:
                pass  # the panels of the rows above are the same
            elif rhs_columns == 4:
                _copy_panels(panels, b, rhs_depth, depth, end - begin)
            else:
                _copy_turned_panels(panels, b, rhs_columns, depth, end - begin)
            for column in range(begin, end, PANEL):
                panel, to = panels + 4 * (column - begin) * DEPTH, out + row * line + 4 * column
                if end - column >= PANEL:
                    _wide(a, lhs_rows, 0, lhs_depth, panel, 0, _PANEL_BYTES, 1, depth, to, line, adds, num_rows)
                else:
                    _narrow(a, lhs_rows, 0, lhs_depth, panel, 0, _VECTOR_BYTES, 1, depth, to, line, adds, num_rows)


@jit
def _work(job: Any) -> None:
    """Take part after part of the panels of all products, until none is left."""
    panels = _place_for_panels()
    rows, columns, inner, parts = load(job + _ROWS), load(job + _COLUMNS), load(job + _INNER), load(job + PARTS)
    rows_together, row_groups = load(job + _ROWS_TOGETHER), load(job + _ROW_GROUPS)
    columns_together, column_groups = load(job + _COLUMNS_TOGETHER), load(job + _COLUMN_GROUPS)
    while True:
        part = fetch_add(job + NEXT, 1)
        if part >= parts:
            break
        groups = part // column_groups
        matrix, row, column = groups // row_groups, groups % row_groups * rows_together, part % column_groups * columns_together
        lhs = load(job + _LHS) + matrix // inner * load(job + _LHS_OUTER) + matrix % inner * load(job + _LHS_INNER)
        rhs = load(job + _RHS) + matrix // inner * load(job + _RHS_OUTER) + matrix % inner * load(job + _RHS_INNER)
        _multiply(
            job,
            lhs + row * load(job + _LHS_ROWS),
            rhs,
            load(job + _OUT) + 4 * (matrix * rows + row) * columns,
            panels,
            min(rows_together, rows - row),
            column,
            min(columns, column + columns_together),
        )
        fetch_add(job + DONE, 1)


@jit
def _divide(job: Any, threads: Any) -> Any:
    """Write down what the parts are: some rows, and some panels of columns, of one product. Returns how many there are.

    Rows that lie in memory cost more to read than panels to copy. So there are as many panels in a part as may be, and the rows are
    divided, unless there are too few.
    """
    rows, panels, batch = load(job + _ROWS), (load(job + _COLUMNS) + PANEL - 1) // PANEL, load(job + _BATCH)
    wanted = (PARTS_OF_A_THREAD * threads + batch - 1) // batch if threads > 1 else 1  # parts of each product
    column_groups = (panels + MAX_TOGETHER - 1) // MAX_TOGETHER
    row_groups = max(1, min((wanted + column_groups - 1) // column_groups, rows // MIN_ROWS))
    while column_groups * row_groups * batch % threads and rows // (row_groups + 1) >= MIN_ROWS:
        row_groups += 1  # or some threads have nothing to do at the end
    column_groups = min(panels, max(column_groups, (wanted + row_groups - 1) // row_groups))
    together = (panels + column_groups - 1) // column_groups
    column_groups = (panels + together - 1) // together
    rows_together = (rows + HEIGHT * row_groups - 1) // (HEIGHT * row_groups) * HEIGHT
    row_groups = (rows + rows_together - 1) // rows_together
    store(job + _ROWS_TOGETHER, rows_together)
    store(job + _ROW_GROUPS, row_groups)
    store(job + _COLUMNS_TOGETHER, together * PANEL)
    store(job + _COLUMN_GROUPS, column_groups)
    return batch * row_groups * column_groups


@jit
def _job(frame: Any, threads: Any) -> Any:
    """Allocate a job and write down what is to be done. Returns 0 if there is no memory."""
    job = allocate(_HEADER)
    if job == 0:
        return 0
    for i in range(NUM_ATTRIBUTES):
        store(job + FACTS + 8 * i, attribute(frame, i))
    store(job + _LHS, data_of(buffer(frame, ARGUMENTS, 0)))
    store(job + _RHS, data_of(buffer(frame, ARGUMENTS, 1)))
    store(job + _OUT, data_of(buffer(frame, RESULTS, 0)))
    begin_job(job, _divide(job, threads))
    return job


@jit
def _most_threads(frame: Any) -> Any:
    return attribute(frame, 0) * attribute(frame, 2) * attribute(frame, 3) * attribute(frame, 12) // PRODUCTS_OF_A_THREAD


handle = make_handle(_most_threads, _job, _work)
