"""Convolutions of images with channels last, and their filter gradients, as a function that XLA calls. Numba compiles it.

`_direct_products.py` computes them for one image. Here is how the images of a batch are divided among threads.

The function serves two callers. XLA passes a call frame (``xla/ffi/api/c_api.h``), which begins with its size. Then it makes a job,
asks XLA's pool of threads for help, and works on the job itself. It never waits for work that has not begun, so a pool without free
threads delays nothing. The pool's threads pass the job, which begins with JOB. The last one to leave the job frees it.

Results do not depend on the number of threads: each of at most MAX_PARTS parts of the images has sums of its own.
"""

from typing import Any

from ._direct_products import FACTS, add_gradient, add_gradient_of_channels, convolve_channels, convolve_image
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
    numba,
    out_of_memory,
    place_for_arguments,
    store,
    store_half,
    this_function,
    yield_processor,
)

CONVOLUTION, FILTER_GRADIENT, DEPTHWISE, DEPTHWISE_GRADIENT = range(4)
JOB = -1
MAX_PARTS = 16
MAX_THREADS = 16

# The numbers of a job, in order, from byte 8 on. They are followed by the padded images and the sums.
_NEXT, _DONE, _HOLDERS, _SLOTS = 8, 16, 24, 32
# From FACTS on: kind, images, other, result, N, H, W, C, window, output, F, stride, top, left, parts, size and width of a padded
# image, size of the sums, threads, dilation.
_HEADER = 256

_FRAME_API, _FRAME_CONTEXT, _ARGUMENTS, _RESULTS, _ATTRIBUTES = 16, 24, 72, 112, 160
_CREATE_ERROR, _DESTROY_ERROR, _SCHEDULE, _NUM_THREADS = 48, 64, 136, 144  # in XLA_FFI_Api

_jit = numba.njit(error_model="numpy")


@_jit
def _spread(to: Any, line: Any, width: Any, size: Any, dilation: Any) -> None:
    """Copy the pixels of a line, with others between them that are left as they are."""
    if dilation == 1:
        copy(to, line, width * size)
    else:
        for x in range(width):
            copy(to + x * dilation * size, line + x * size, size)


@_jit
def _work(job: Any) -> None:
    """Take part after part of the images, until none is left."""
    slot = fetch_add(job + _SLOTS, 1)
    kind, images = load(job + FACTS), load(job + FACTS + 8)
    num_images, height, width, channels = (
        load(job + FACTS + 32),
        load(job + FACTS + 40),
        load(job + FACTS + 48),
        load(job + FACTS + 56),
    )
    top, left, parts = load(job + FACTS + 112), load(job + FACTS + 120), load(job + FACTS + 128)
    dilation = load(job + FACTS + 168)
    size, padded_width, sum_size = load(job + FACTS + 136), load(job + FACTS + 144), load(job + FACTS + 152)
    padded = job + _HEADER + slot * size
    all_sums = job + _HEADER + load(job + FACTS + 160) * size
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
                to = padded + 4 * ((y * dilation + top) * padded_width + left) * channels
                _spread(to, images + 4 * (n * height + y) * width * channels, width, 4 * channels, dilation)
            if kind == CONVOLUTION:
                convolve_image(job, padded, padded_width, n)
            elif kind == DEPTHWISE:
                convolve_channels(job, padded, padded_width, n)
            elif kind == FILTER_GRADIENT:
                add_gradient(job, padded, padded_width, n, all_sums + part * sum_size, n == begin)
            else:
                add_gradient_of_channels(job, padded, padded_width, n, all_sums + part * sum_size, n == begin)
        fetch_add(job + _DONE, 1)


@_jit
def _sums_up(kind: Any) -> Any:
    return kind in (FILTER_GRADIENT, DEPTHWISE_GRADIENT)


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
    dilation, kind, left = _attribute(frame, 0), _attribute(frame, 1), _attribute(frame, 2)  # by name
    stride, top = _attribute(frame, 3), _attribute(frame, 4)
    filters, output = (result, other) if _sums_up(kind) else (other, result)
    num_images, height, width, channels = _size(images, 0), _size(images, 1), _size(images, 2), _size(images, 3)
    padded_height = max((_size(output, 1) - 1) * stride + _size(filters, 0), (height - 1) * dilation + 1 + top)
    padded_width = max((_size(output, 2) - 1) * stride + _size(filters, 1), (width - 1) * dilation + 1 + left)
    size = 4 * padded_height * padded_width * channels
    size += -size % 64
    parts = min(num_images, MAX_PARTS)
    sum_size = 4 * _size(filters, 0) * _size(filters, 1) * channels * _size(filters, 3)
    job = allocate(_HEADER + threads * size + (parts * sum_size if _sums_up(kind) else 0))
    if job == 0:
        return 0
    facts = (
        (kind, load(images + 24), load(other + 24), load(result + 24), num_images, height, width, channels)
        + (_size(filters, 0), _size(filters, 1), _size(output, 1), _size(output, 2), _size(output, 3), stride)
        + (top, left, parts, size, padded_width, sum_size, threads, dilation)
    )
    store(job, JOB)
    store(job + _NEXT, 0)
    store(job + _DONE, 0)
    store(job + _HOLDERS, 1)
    store(job + _SLOTS, 0)
    for i in range(len(facts)):
        store(job + FACTS + 8 * i, facts[i])
    return job


@_jit
def _run(frame: Any, function: Any) -> Any:
    threads = max(1, min(_num_threads(frame), MAX_THREADS, _size(_buffer(frame, _ARGUMENTS, 0), 0)))
    job = _job(frame, threads)
    if job == 0:
        return _memory_error(frame)
    _ask_for_help(frame, job, threads - 1, function)
    _work(job)
    parts = load(job + FACTS + 128)
    while fetch_add(job + _DONE, 0) < parts:
        yield_processor()
    if _sums_up(load(job + FACTS)):
        result, size = load(job + FACTS + 24), load(job + FACTS + 152)
        sums = job + _HEADER + threads * load(job + FACTS + 136)
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
