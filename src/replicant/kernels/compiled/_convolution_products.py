"""Convolutions and filter gradients of one image with channels last, as sums of products that stay in registers.

All are sums of products of two small matrices at a time: rows of the (padded) image, which hold the window's columns and channels
side by side, and the filter or the gradient. Depthwise convolutions and their filter gradients multiply the same rows number by
number, in each channel. The numbers of the job that they read are listed in `_convolution_loops.py`.
"""

from typing import Any

from ._machine_code import WIDTH, clear, jit, load
from ._tiles import HEIGHTS, HEIGHTS_OF_TWO, make_rows
from ._xla_calls import FACTS

_CACHED_BYTES = 16384  # of images or gradients, for which sums of a filter gradient stay in registers
_LEAST_PIXELS = 64  # for which they do, even if those are more bytes
_CACHED_BYTES_OF_EACH = 1 << 17  # the same for a depthwise one, which reads them once for each row of the window


_narrow, _wide = make_rows(1, HEIGHTS), make_rows(2, HEIGHTS_OF_TWO)
_OF_EACH = (8 if WIDTH == 16 else 6, 3, 1)
_narrow_of_each, _wide_of_each = make_rows(1, _OF_EACH, of_each=True), make_rows(2, _OF_EACH, of_each=True)


@jit
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


@jit
def _rows_inside(first: Any, rows: Any, height: Any) -> Any:
    """Which of the window's rows lie in the image and not in its padding, if the window begins in row `first`: at least one."""
    begin = min(max(0, -first), rows - 1)
    return begin, max(begin + 1, min(rows, height - first))


@jit
def convolve_image(job: Any, image: Any, width: Any, n: Any) -> None:
    """Convolve an image. Rows of zeros, which are padding, are not multiplied."""
    filters, result, channels = load(job + FACTS + 16), load(job + FACTS + 24), load(job + FACTS + 56)
    height, top = load(job + FACTS + 40), load(job + FACTS + 112)
    rows, columns = load(job + FACTS + 64), load(job + FACTS + 72)
    height_out, width_out = load(job + FACTS + 80), load(job + FACTS + 88)
    num_filters, stride = load(job + FACTS + 96), load(job + FACTS + 104)
    line, line_of_filters = 4 * width * channels, 4 * columns * channels * num_filters
    for y in range(height_out):
        begin, end = _rows_inside(y * stride - top, rows, height)
        to = result + 4 * (n * height_out + y) * width_out * num_filters
        _product(
            image + (y * stride + begin) * line,
            4 * stride * channels,
            line,
            4,
            filters + begin * line_of_filters,
            line_of_filters,
            4 * num_filters,
            end - begin,
            columns * channels,
            to,
            0,
            width_out,
            num_filters,
        )


@jit
def add_gradient(job: Any, image: Any, width: Any, n: Any, sums: Any, first: Any) -> None:
    """Add an image's part of the filter gradient, or write it if it is the first. Rows of padding are not multiplied."""
    channels, rows, columns = load(job + FACTS + 56), load(job + FACTS + 64), load(job + FACTS + 72)
    height, top, sum_size = load(job + FACTS + 40), load(job + FACTS + 112), load(job + FACTS + 144)
    height_out, width_out = load(job + FACTS + 80), load(job + FACTS + 88)
    num_filters, stride = load(job + FACTS + 96), load(job + FACTS + 104)
    line, line_out = 4 * width * channels, 4 * width_out * num_filters
    gradient = load(job + FACTS + 16) + n * height_out * line_out
    together = _CACHED_BYTES // (max(channels * stride * stride, num_filters) * width_out * 4)
    together = max(together, (_LEAST_PIXELS + width_out - 1) // width_out)
    if first:
        clear(sums, sum_size)
    for y in range(0, height_out, together):
        for row in range(rows):
            begin = max(y, (top - row + stride - 1) // stride)
            end = min(y + together, height_out, (height + top - row + stride - 1) // stride)
            if begin < end:
                _product(
                    image + (begin * stride + row) * line,
                    4,
                    stride * line,
                    4 * stride * channels,
                    gradient + begin * line_out,
                    line_out,
                    4 * num_filters,
                    end - begin,
                    width_out,
                    sums + 4 * row * columns * channels * num_filters,
                    1,
                    columns * channels,
                    num_filters,
                )


@jit
def _product_of_each(
    a: Any, aj: Any, ak: Any, al: Any, b: Any, bk: Any, bl: Any, k: Any, m: Any, c: Any, adds: Any, rows: Any, channels: Any
) -> None:
    """All rows and channels: ``c[j, f] (+)= sum over k, m of a[j, k, m, f] * b[k, m, f]``."""
    channel = 0
    while channels - channel >= 2 * WIDTH:
        at = 4 * channel
        _wide_of_each(a + at, aj, ak, al, b + at, bk, bl, k, m, c + at, 4 * channels, adds, rows)
        channel += 2 * WIDTH
    if channel < channels:
        at = 4 * channel
        _narrow_of_each(a + at, aj, ak, al, b + at, bk, bl, k, m, c + at, 4 * channels, adds, rows)


@jit
def convolve_channels(job: Any, image: Any, width: Any, n: Any) -> None:
    """Convolve an image with a filter for each channel."""
    filters, result, channels = load(job + FACTS + 16), load(job + FACTS + 24), load(job + FACTS + 56)
    rows, columns = load(job + FACTS + 64), load(job + FACTS + 72)
    height_out, width_out, stride = load(job + FACTS + 80), load(job + FACTS + 88), load(job + FACTS + 104)
    numbers = 4 * channels
    for y in range(height_out):
        _product_of_each(
            image + y * stride * width * numbers,
            stride * numbers,
            width * numbers,
            numbers,
            filters,
            columns * numbers,
            numbers,
            rows,
            columns,
            result + (n * height_out + y) * width_out * numbers,
            0,
            width_out,
            channels,
        )


@jit
def add_gradient_of_channels(job: Any, image: Any, width: Any, n: Any, sums: Any, first: Any) -> None:
    """Do what `add_gradient` does, for a convolution with a filter for each channel."""
    channels, rows, columns = load(job + FACTS + 56), load(job + FACTS + 64), load(job + FACTS + 72)
    height_out, width_out, stride = load(job + FACTS + 80), load(job + FACTS + 88), load(job + FACTS + 104)
    numbers = 4 * channels
    line, line_out = width * numbers, width_out * numbers
    gradient = load(job + FACTS + 16) + n * height_out * line_out
    together = max(1, _CACHED_BYTES_OF_EACH // (stride * line + line_out))
    for y in range(0, height_out, together):
        for row in range(rows):
            _product_of_each(
                image + (y * stride + row) * line,
                numbers,
                stride * line,
                stride * numbers,
                gradient + y * line_out,
                line_out,
                numbers,
                min(together, height_out - y),
                width_out,
                sums + row * columns * numbers,
                0 if first and y == 0 else 1,
                columns,
                channels,
            )
