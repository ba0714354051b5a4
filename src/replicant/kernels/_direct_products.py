"""Convolutions and filter gradients of one image with channels last, as sums of products that stay in registers.

All are sums of products of two small matrices at a time: rows of the (padded) image, which hold the window's columns and channels
side by side, and the filter or the gradient. Depthwise convolutions and their filter gradients multiply the same rows number by
number, in each channel. The numbers of the job that they read are listed in `_direct_convolution.py`.
"""

from typing import Any

from ._frames import FACTS
from ._machine_code import WIDTH, load, make_tile, numba

_CACHED_BYTES = 8192  # of images and gradients, for which sums of a filter gradient stay in registers
_CACHED_BYTES_OF_EACH = 1 << 17  # the same for a depthwise one, which reads them once for each row of the window

_jit = numba.njit(error_model="numpy")


@_jit
def _no_rows(
    a: Any, aj: Any, ak: Any, al: Any, b: Any, bk: Any, bl: Any, k: Any, m: Any, c: Any, cj: Any, adds: Any, rows: Any
) -> None:
    """What is left to do after tiles of one row."""


def make_rows(num_vectors: int, heights: tuple[int, ...], *, of_each: bool = False) -> Any:
    """Make the function that computes all rows, of so many vectors each: with the first height while it can, then with the next."""
    if not heights:
        return _no_rows
    height, tile = heights[0], make_tile(heights[0], num_vectors, of_each=of_each)
    compute_rest = make_rows(num_vectors, heights[1:], of_each=of_each)

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


_narrow, _wide = make_rows(1, (16, 8, 4, 1)), make_rows(2, (12, 4, 1))
_narrow_of_each, _wide_of_each = make_rows(1, (8, 3, 1), of_each=True), make_rows(2, (8, 3, 1), of_each=True)


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
def convolve_image(job: Any, image: Any, width: Any, n: Any) -> None:
    """Convolve an image."""
    filters, result, channels = load(job + FACTS + 16), load(job + FACTS + 24), load(job + FACTS + 56)
    rows, columns = load(job + FACTS + 64), load(job + FACTS + 72)
    height_out, width_out = load(job + FACTS + 80), load(job + FACTS + 88)
    num_filters, stride = load(job + FACTS + 96), load(job + FACTS + 104)
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
def add_gradient(job: Any, image: Any, width: Any, n: Any, sums: Any, first: Any) -> None:
    """Add an image's part of the filter gradient, or write it if it is the first."""
    channels, rows, columns = load(job + FACTS + 56), load(job + FACTS + 64), load(job + FACTS + 72)
    height_out, width_out = load(job + FACTS + 80), load(job + FACTS + 88)
    num_filters, stride = load(job + FACTS + 96), load(job + FACTS + 104)
    line, line_out = 4 * width * channels, 4 * width_out * num_filters
    gradient = load(job + FACTS + 16) + n * height_out * line_out
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


@_jit
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


@_jit
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
