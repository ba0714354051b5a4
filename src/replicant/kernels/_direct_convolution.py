"""Convolutions of images with channels last, and their filter gradients, as a function that XLA calls. Numba compiles it.

Both are sums of products of two small matrices at a time: rows of the (padded) image, which hold the window's columns and channels
side by side, and the filter or the gradient. `make_tile` keeps the sums in registers.

The function serves two callers. XLA passes a call frame (``xla/ffi/api/c_api.h``), which begins with its size. Then it makes a job,
asks XLA's pool of threads for help, and works on the job itself. It never waits for work that has not begun, so a pool without free
threads delays nothing. The pool's threads pass the job, which begins with JOB. The last one to leave the job frees it.

Results do not depend on the number of threads: each of at most MAX_PARTS parts of the images has sums of its own.
"""

from typing import Any

from ._machine_code import (
    WIDTH,
    add_vector,
    allocate,
    call,
    clear,
    copy,
    fetch_add,
    free,
    load,
    load_half,
    make_tile,
    numba,
    out_of_memory,
    place_for_arguments,
    store,
    store_half,
    this_function,
    yield_processor,
)

JOB = -1
MAX_PARTS = 16
MAX_THREADS = 16
_CACHED_BYTES = 8192  # of images and gradients, for which sums of a filter gradient stay in registers

# The numbers of a job, in order, from byte 8 on. They are followed by the padded images and the sums.
_NEXT, _DONE, _HOLDERS, _SLOTS = 8, 16, 24, 32
_FACTS = 40  # kind, images, other, result, N, H, W, C, window, output, F, stride, top, left, parts, padded image, sums
_HEADER = 256

_FRAME_API, _FRAME_CONTEXT, _ARGUMENTS, _RESULTS, _ATTRIBUTES = 16, 24, 72, 112, 160
_CREATE_ERROR, _DESTROY_ERROR, _SCHEDULE, _NUM_THREADS = 48, 64, 136, 144  # in XLA_FFI_Api

_jit = numba.njit(error_model="numpy")


@_jit
def _no_rows(
    a: Any, aj: Any, ak: Any, al: Any, b: Any, bk: Any, bl: Any, k: Any, m: Any, c: Any, cj: Any, adds: Any, rows: Any
) -> None:
    """What is left to do after tiles of one row."""


def _make_rows(num_vectors: int, heights: tuple[int, ...]) -> Any:
    """Make the function that computes all rows, of so many vectors each: with the first height while it can, then with the next."""
    if not heights:
        return _no_rows
    height, tile, compute_rest = heights[0], make_tile(heights[0], num_vectors), _make_rows(num_vectors, heights[1:])

    @_jit
    def compute(
        a: Any, aj: Any, ak: Any, al: Any, b: Any, bk: Any, bl: Any, k: Any, m: Any, c: Any, cj: Any, adds: Any, rows: Any
    ) -> None:
        j = 0
        while rows - j >= height:
            tile(a + j * aj, aj, ak, al, b, bk, bl, k, m, c + j * cj, cj, adds)
            j += height
        compute_rest(a + j * aj, aj, ak, al, b, bk, bl, k, m, c + j * cj, cj, adds, rows - j)

    return compute


_narrow, _wide = _make_rows(1, (16, 8, 4, 1)), _make_rows(2, (12, 4, 1))


@_jit
def _product(
    a: Any,
    aj: Any,
    ak: Any,
    al: Any,
    b: Any,
    bk: Any,
    bl: Any,
    k: Any,
    m: Any,
    c: Any,
    adds: Any,
    rows: Any,
    columns: Any,
) -> None:
    """All rows and columns: ``c[j, f] (+)= sum over k, m of a[j, k, m] * b[k, m, f]``."""
    column = 0
    while columns - column >= 2 * WIDTH:
        _wide(a, aj, ak, al, b + 4 * column, bk, bl, k, m, c + 4 * column, 4 * columns, adds, rows)
        column += 2 * WIDTH
    if column < columns:
        _narrow(a, aj, ak, al, b + 4 * column, bk, bl, k, m, c + 4 * column, 4 * columns, adds, rows)


@_jit
def _convolve_image(job: Any, image: Any, width: Any, n: Any) -> None:
    filters, result, channels = load(job + _FACTS + 16), load(job + _FACTS + 24), load(job + _FACTS + 56)
    rows, columns = load(job + _FACTS + 64), load(job + _FACTS + 72)
    height_out, width_out = load(job + _FACTS + 80), load(job + _FACTS + 88)
    num_filters, stride = load(job + _FACTS + 96), load(job + _FACTS + 104)
    line = 4 * width * channels
    for y in range(height_out):
        to = result + 4 * (n * height_out + y) * width_out * num_filters
        _product(
            image + y * stride * line,
            4 * stride * channels,
            line,
            4,
            filters,
            4 * columns * channels * num_filters,
            4 * num_filters,
            rows,
            columns * channels,
            to,
            0,
            width_out,
            num_filters,
        )


@_jit
def _add_gradient(job: Any, image: Any, width: Any, n: Any, sums: Any, first: Any) -> None:
    channels, rows, columns = load(job + _FACTS + 56), load(job + _FACTS + 64), load(job + _FACTS + 72)
    height_out, width_out = load(job + _FACTS + 80), load(job + _FACTS + 88)
    num_filters, stride = load(job + _FACTS + 96), load(job + _FACTS + 104)
    line, line_out = 4 * width * channels, 4 * width_out * num_filters
    gradient = load(job + _FACTS + 16) + n * height_out * line_out
    together = max(1, _CACHED_BYTES // (max(channels * stride * stride, num_filters) * width_out * 4))
    for y in range(0, height_out, together):
        for row in range(rows):
            _product(
                image + (y * stride + row) * line,
                4,
                stride * line,
                4 * stride * channels,
                gradient + y * line_out,
                line_out,
                4 * num_filters,
                min(together, height_out - y),
                width_out,
                sums + 4 * row * columns * channels * num_filters,
                0 if first and y == 0 else 1,
                columns * channels,
                num_filters,
            )


@_jit
def _work(job: Any) -> None:
    """Take part after part of the images, until none is left."""
    slot = fetch_add(job + _SLOTS, 1)
    kind, images = load(job + _FACTS), load(job + _FACTS + 8)
    num_images, height, width, channels = (
        load(job + _FACTS + 32),
        load(job + _FACTS + 40),
        load(job + _FACTS + 48),
        load(job + _FACTS + 56),
    )
    top, left, parts = load(job + _FACTS + 112), load(job + _FACTS + 120), load(job + _FACTS + 128)
    size, padded_width, sum_size = load(job + _FACTS + 136), load(job + _FACTS + 144), load(job + _FACTS + 152)
    padded = job + _HEADER + slot * size
    all_sums = job + _HEADER + load(job + _FACTS + 160) * size
    cleared = False
    while True:
        part = fetch_add(job + _NEXT, 1)
        if part >= parts:
            break
        if not cleared:
            clear(padded, size)
            cleared = True
        begin = part * num_images // parts
        for n in range(begin, (part + 1) * num_images // parts):
            for y in range(height):
                to = padded + 4 * ((y + top) * padded_width + left) * channels
                copy(to, images + 4 * (n * height + y) * width * channels, 4 * width * channels)
            if kind == 0:
                _convolve_image(job, padded, padded_width, n)
            else:
                _add_gradient(job, padded, padded_width, n, all_sums + part * sum_size, n == begin)
        fetch_add(job + _DONE, 1)


@_jit
def _release(job: Any) -> None:
    if fetch_add(job + _HOLDERS, -1) == 1:
        free(job)


@_jit
def _buffer(frame: Any, place: Any, number: Any) -> Any:
    return load(load(frame + place) + 8 * number)


@_jit
def _size(buffer: Any, axis: Any) -> Any:
    return load(load(buffer + 40) + 8 * axis)


@_jit
def _attribute(frame: Any, number: Any) -> Any:
    return load(load(_buffer(frame, _ATTRIBUTES, number) + 8))


@_jit
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


@_jit
def _forget(frame: Any, error: Any) -> None:
    arguments = place_for_arguments()
    store(arguments, 24)
    store(arguments + 8, 0)
    store(arguments + 16, error)
    call(load(load(frame + _FRAME_API) + _DESTROY_ERROR), arguments)


@_jit
def _ask_for_help(frame: Any, job: Any, helpers: Any, function: Any) -> None:
    """Give the job to some of XLA's threads. If it lends none, the caller does all of it."""
    arguments = place_for_arguments()
    store(arguments, 40)
    store(arguments + 8, 0)
    store(arguments + 16, load(frame + _FRAME_CONTEXT))
    store(arguments + 24, function)
    store(arguments + 32, job)
    for _ in range(helpers):
        fetch_add(job + _HOLDERS, 1)
        error = call(load(load(frame + _FRAME_API) + _SCHEDULE), arguments)
        if error != 0:
            fetch_add(job + _HOLDERS, -1)
            _forget(frame, error)
            break


@_jit
def _memory_error(frame: Any) -> Any:
    arguments = place_for_arguments()
    store(arguments, 28)
    store(arguments + 8, 0)
    store(arguments + 16, out_of_memory())
    store_half(arguments + 24, 8)  # RESOURCE_EXHAUSTED
    return call(load(load(frame + _FRAME_API) + _CREATE_ERROR), arguments)


@_jit
def _job(frame: Any, threads: Any) -> Any:
    """Allocate a job and write down what is to be done. Returns 0 if there is no memory."""
    images, other, result = _buffer(frame, _ARGUMENTS, 0), _buffer(frame, _ARGUMENTS, 1), _buffer(frame, _RESULTS, 0)
    kind, left, stride, top = _attribute(frame, 0), _attribute(frame, 1), _attribute(frame, 2), _attribute(frame, 3)  # by name
    filters, output = (other, result) if kind == 0 else (result, other)
    num_images, height, width, channels = _size(images, 0), _size(images, 1), _size(images, 2), _size(images, 3)
    padded_height = max((_size(output, 1) - 1) * stride + _size(filters, 0), height + top)
    padded_width = max((_size(output, 2) - 1) * stride + _size(filters, 1), width + left)
    size = 4 * padded_height * padded_width * channels
    size += -size % 64
    parts = min(num_images, MAX_PARTS)
    sum_size = 4 * _size(filters, 0) * _size(filters, 1) * channels * _size(filters, 3)
    job = allocate(_HEADER + threads * size + (parts * sum_size if kind == 1 else 0))
    if job == 0:
        return 0
    facts = (
        (kind, load(images + 24), load(other + 24), load(result + 24), num_images, height, width, channels)
        + (_size(filters, 0), _size(filters, 1), _size(output, 1), _size(output, 2), _size(output, 3), stride)
        + (top, left, parts, size, padded_width, sum_size, threads)
    )
    store(job, JOB)
    store(job + _NEXT, 0)
    store(job + _DONE, 0)
    store(job + _HOLDERS, 1)
    store(job + _SLOTS, 0)
    for i in range(len(facts)):
        store(job + _FACTS + 8 * i, facts[i])
    return job


@_jit
def _run(frame: Any, function: Any) -> Any:
    threads = max(1, min(_num_threads(frame), MAX_THREADS, _size(_buffer(frame, _ARGUMENTS, 0), 0)))
    job = _job(frame, threads)
    if job == 0:
        return _memory_error(frame)
    _ask_for_help(frame, job, threads - 1, function)
    _work(job)
    parts = load(job + _FACTS + 128)
    while fetch_add(job + _DONE, 0) < parts:
        yield_processor()
    if load(job + _FACTS) == 1:
        result, size = load(job + _FACTS + 24), load(job + _FACTS + 152)
        sums = job + _HEADER + threads * load(job + _FACTS + 136)
        copy(result, sums, size)
        for part in range(1, parts):
            for i in range(0, size, 4 * WIDTH):
                add_vector(result + i, sums + part * size + i)
    _release(job)
    return 0


@_jit
def _describe(frame: Any) -> Any:
    """Answer the call with which XLA asks for the version of its interface. Returns whether this was such a call."""
    extension = load(frame + 8)
    if extension == 0 or load_half(extension + 8) != 1:
        return False
    metadata = load(extension + 24)
    store_half(metadata + 24, 0)
    store_half(metadata + 28, 3)
    return True


def handle(pointer: Any) -> Any:
    """What XLA and the threads that it lends call."""
    if load(pointer) == JOB:
        _work(pointer)
        _release(pointer)
        return 0
    if _describe(pointer):
        return 0
    return _run(pointer, this_function())
