"""Convolutions of images with channels last, and their filter gradients, as a function that XLA calls. Numba compiles it.

`_convolution_products.py` computes them for one image. Here is how the images of a batch are divided among threads. `_xla_calls.py`
tells how XLA calls the function.

Results do not depend on the number of threads: each of at most MAX_PARTS parts of the images has sums of its own.
"""

from typing import Any

from ._convolution_products import add_gradient, add_gradient_of_channels, convolve_channels, convolve_image
from ._machine_code import WIDTH, add_vector, allocate, clear, copy, fetch_add, jit, load, store
from ._xla_calls import (
    ARGUMENTS,
    DONE,
    FACTS,
    NEXT,
    PARTS,
    RESULTS,
    SLOTS,
    attribute,
    begin_job,
    buffer,
    data_of,
    make_handle,
    size_of,
)

CONVOLUTION, FILTER_GRADIENT, DEPTHWISE, DEPTHWISE_GRADIENT = range(4)
MAX_PARTS = 16

# The numbers of a job are followed by the padded images and the sums.
# From FACTS on: kind, images, other, result, N, H, W, C, window, output, F, stride, top, left, size and width of a padded
# image, size of the sums, threads, dilation.
_HEADER = 256


@jit
def _spread(to: Any, line: Any, width: Any, size: Any, dilation: Any) -> None:
    """Copy the pixels of a line, with others between them that are left as they are."""
    if dilation == 1:
        copy(to, line, width * size)
    else:
        for x in range(width):
            copy(to + x * dilation * size, line + x * size, size)


@jit
def _work(job: Any) -> None:
    """Take part after part of the images, until none is left."""
    slot = fetch_add(job + SLOTS, 1)
    kind, images = load(job + FACTS), load(job + FACTS + 8)
    num_images, height, width, channels = (
        load(job + FACTS + 32),
        load(job + FACTS + 40),
        load(job + FACTS + 48),
        load(job + FACTS + 56),
    )
    top, left, parts = load(job + FACTS + 112), load(job + FACTS + 120), load(job + PARTS)
    size, padded_width, sum_size = load(job + FACTS + 128), load(job + FACTS + 136), load(job + FACTS + 144)
    dilation = load(job + FACTS + 160)
    padded = job + _HEADER + slot * size
    all_sums = job + _HEADER + load(job + FACTS + 152) * size
    cleared = False
    while True:
        part = fetch_add(job + NEXT, 1)
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
        fetch_add(job + DONE, 1)


@jit
def _sums_up(kind: Any) -> Any:
    return kind in (FILTER_GRADIENT, DEPTHWISE_GRADIENT)


@jit
def _job(frame: Any, threads: Any) -> Any:
    """Allocate a job and write down what is to be done. Returns 0 if there is no memory."""
    images, other, result = buffer(frame, ARGUMENTS, 0), buffer(frame, ARGUMENTS, 1), buffer(frame, RESULTS, 0)
    dilation, kind, left = attribute(frame, 0), attribute(frame, 1), attribute(frame, 2)  # by name
    stride, top = attribute(frame, 3), attribute(frame, 4)
    filters, output = (result, other) if _sums_up(kind) else (other, result)
    num_images, height, width, channels = size_of(images, 0), size_of(images, 1), size_of(images, 2), size_of(images, 3)
    padded_height = max((size_of(output, 1) - 1) * stride + size_of(filters, 0), (height - 1) * dilation + 1 + top)
    padded_width = max((size_of(output, 2) - 1) * stride + size_of(filters, 1), (width - 1) * dilation + 1 + left)
    size = 4 * padded_height * padded_width * channels
    size += -size % 64
    parts = min(num_images, MAX_PARTS)
    sum_size = 4 * size_of(filters, 0) * size_of(filters, 1) * channels * size_of(filters, 3)
    job = allocate(_HEADER + threads * size + (parts * sum_size if _sums_up(kind) else 0))
    if job == 0:
        return 0
    facts = (
        (kind, data_of(images), data_of(other), data_of(result), num_images, height, width, channels)
        + (size_of(filters, 0), size_of(filters, 1), size_of(output, 1), size_of(output, 2), size_of(output, 3), stride)
        + (top, left, size, padded_width, sum_size, threads, dilation)
    )
    begin_job(job, parts)
    for i in range(len(facts)):
        store(job + FACTS + 8 * i, facts[i])
    return job


@jit
def _add_up(job: Any) -> None:
    """Add up the sums of all parts."""
    if _sums_up(load(job + FACTS)):
        result, size = load(job + FACTS + 24), load(job + FACTS + 144)
        sums = job + _HEADER + load(job + FACTS + 152) * load(job + FACTS + 128)
        copy(result, sums, size)
        for part in range(1, load(job + PARTS)):
            for i in range(0, size, 4 * WIDTH):
                add_vector(result + i, sums + part * size + i)


@jit
def _num_images(frame: Any) -> Any:
    return size_of(buffer(frame, ARGUMENTS, 0), 0)


handle = make_handle(_num_images, _job, _work, _add_up)
