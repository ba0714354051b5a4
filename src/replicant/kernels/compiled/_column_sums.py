"""Sums of the columns of a block of rows, as instructions of LLVM, with the sums in registers.

All addresses are in bytes. Sums of a line are followed in memory by their second sums: those of squares, or of the second array.
"""

from collections.abc import Callable
from typing import Any

from ._machine_code import VECTOR, WIDTH, extending, int64, ir, jit, loaded, stored, void
from ._tiles import loop, multiply_add, spread

_AT_ONCE = (4, 1)  # vectors
_FLOAT, _I64 = ir.FloatType(), ir.IntType(64)
_ZERO = ir.Constant(VECTOR, [0.0] * WIDTH)


def _count(builder: Any, number: Any) -> Any:
    """A vector of one whole number."""
    return spread(builder, builder.sitofp(number, _FLOAT))


def _joined(builder: Any, mean: Any, squares: Any, other: Any, other_squares: Any, before: Any, count: Any) -> tuple[Any, Any]:
    """The mean, and the sum of squares around it, of `before` rows and of `count` others."""
    change = builder.fsub(other, mean)
    share = builder.fdiv(count, builder.fadd(before, count))
    weight = builder.fmul(builder.fmul(change, change), builder.fmul(before, share))
    return multiply_add(builder, change, share, mean), builder.fadd(builder.fadd(squares, other_squares), weight)


def _moments(builder: Any, count: int, args: list[Any]) -> None:
    """Join the means of `count` vectors of columns, and the sums of squares around them, to those at `sums`.

    All means are distances from the numbers at `origin`. As they are small, little is lost when they are rounded.
    """
    first, origin, line, rows, sums, before = args
    places = [_I64(v * 4 * WIDTH) for v in range(count)]
    origins = [loaded(builder, builder.add(origin, place), VECTOR) for place in places]

    def distances(row: Any) -> list[Any]:
        values = [loaded(builder, builder.add(row, place), VECTOR) for place in places]
        return list(map(builder.fsub, values, origins))

    def add(_: Any, row: Any, *totals: Any) -> list[Any]:
        return [builder.add(row, line), *map(builder.fadd, totals, distances(row))]

    num_rows, present = _count(builder, rows), _count(builder, before)
    means = [builder.fdiv(total, num_rows) for total in loop(builder, [first, *[_ZERO] * count], rows, add)[1:]]

    def add_squares(_: Any, row: Any, *totals: Any) -> list[Any]:
        apart = map(builder.fsub, distances(row), means)
        return [builder.add(row, line), *(multiply_add(builder, d, d, total) for d, total in zip(apart, totals, strict=True))]

    squares = loop(builder, [first, *[_ZERO] * count], rows, add_squares)[1:]
    for place, mean, square in zip(places, means, squares, strict=True):
        at = builder.add(sums, place)
        also_at = builder.add(at, line)
        both = _joined(builder, loaded(builder, at, VECTOR), loaded(builder, also_at, VECTOR), mean, square, present, num_rows)
        stored(builder, both[0], at)
        stored(builder, both[1], also_at)


def _sums(builder: Any, count: int, args: list[Any], factors: tuple[list[Any], list[Any]] | None = None) -> None:
    """Add the sums of products of `count` vectors of columns in two arrays, and the sums of the first array.

    With `factors`, scales and shifts, what counts is only where the scaled second array is positive.
    """
    first, second, line, rows, sums = args
    places = [_I64(v * 4 * WIDTH) for v in range(count)]

    def add(_: Any, row: Any, other: Any, *totals: Any) -> list[Any]:
        values = [loaded(builder, builder.add(row, place), VECTOR) for place in places]
        others = [loaded(builder, builder.add(other, place), VECTOR) for place in places]
        if factors:
            outputs = [multiply_add(builder, x, *both) for x, *both in zip(others, *factors, strict=True)]
            counts = [builder.fcmp_ordered(">", out, _ZERO) for out in outputs]
            values = [builder.select(count, x, _ZERO) for count, x in zip(counts, values, strict=True)]
        products = [multiply_add(builder, x, y, total) for x, y, total in zip(values, others, totals[:count], strict=True)]
        return [builder.add(row, line), builder.add(other, line), *products, *map(builder.fadd, totals[count:], values)]

    totals = loop(builder, [first, second, *[_ZERO] * (2 * count)], rows, add)[2:]
    for number, total in enumerate(totals):
        at = builder.add(sums, places[number % count])
        at = builder.add(at, line) if number >= count else at
        stored(builder, builder.fadd(loaded(builder, at, VECTOR), total), at)


def _sums_where_positive(builder: Any, count: int, args: list[Any]) -> None:
    """The same, of the numbers where the second array, scaled and shifted, is positive."""
    scale, shift, *others = args
    places = [_I64(v * 4 * WIDTH) for v in range(count)]
    scales, shifts = ([loaded(builder, builder.add(address, place), VECTOR) for place in places] for address in (scale, shift))
    _sums(builder, count, others, (scales, shifts))


def _make(compute: Callable[[Any, int, list[Any]], None], count: int) -> Any:
    """Make the function that computes `count` vectors of columns."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        compute(builder, count, list(args))
        return context.get_dummy_value()

    @extending.intrinsic
    def of_five(_: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        return void(*[int64] * 5), generate

    @extending.intrinsic
    def of_six(_: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
        return void(*[int64] * 6), generate

    @extending.intrinsic
    def of_seven(_: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any) -> Any:
        return void(*[int64] * 7), generate

    @jit
    def sums(a: Any, b: Any, c: Any, d: Any, e: Any) -> None:
        of_five(a, b, c, d, e)

    @jit
    def moments(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> None:
        of_six(a, b, c, d, e, f)

    @jit
    def where_positive(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any) -> None:
        of_seven(a, b, c, d, e, f, g)

    return {_sums: sums, _moments: moments, _sums_where_positive: where_positive}[compute]


_moments_4, _moments_1 = (_make(_moments, count) for count in _AT_ONCE)
_sums_4, _sums_1 = (_make(_sums, count) for count in _AT_ONCE)
_positive_4, _positive_1 = (_make(_sums_where_positive, count) for count in _AT_ONCE)


@jit
def moments_of_block(first: Any, origin: Any, line: Any, rows: Any, sums: Any, before: Any) -> None:
    """Join the means of a block's columns, and the sums of squares around them, to those at `sums` of the rows before it.

    Means are distances from the numbers at `origin`.
    """
    at = 0
    while line - at >= 16 * WIDTH:
        _moments_4(first + at, origin + at, line, rows, sums + at, before)
        at += 16 * WIDTH
    while at < line:
        _moments_1(first + at, origin + at, line, rows, sums + at, before)
        at += 4 * WIDTH


@jit
def sums_of_block(first: Any, second: Any, line: Any, rows: Any, sums: Any) -> None:
    """Add to the sums of the products of two blocks' columns, and to those of the first block's, at `sums`."""
    at = 0
    while line - at >= 16 * WIDTH:
        _sums_4(first + at, second + at, line, rows, sums + at)
        at += 16 * WIDTH
    while at < line:
        _sums_1(first + at, second + at, line, rows, sums + at)
        at += 4 * WIDTH


@jit
def sums_where_positive(first: Any, second: Any, scale: Any, shift: Any, line: Any, rows: Any, sums: Any) -> None:
    """The same, of the numbers where the second block, scaled and shifted, is positive."""
    at = 0
    while line - at >= 16 * WIDTH:
        _positive_4(scale + at, shift + at, first + at, second + at, line, rows, sums + at)
        at += 16 * WIDTH
    while at < line:
        _positive_1(scale + at, shift + at, first + at, second + at, line, rows, sums + at)
        at += 4 * WIDTH


@extending.intrinsic
def join_moments(_: Any, to: Any, squares_to: Any, mean: Any, squares: Any, before: Any, count: Any) -> Any:
    """Join the mean of `count` rows, and the sum of squares around it, to those of `before` rows: a vector of each."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vectors = [loaded(builder, address, VECTOR) for address in args[:4]]
        both = _joined(builder, *vectors, *(_count(builder, number) for number in args[4:]))
        for value, address in zip(both, args[:2], strict=True):
            stored(builder, value, address)
        return context.get_dummy_value()

    return void(*[int64] * 6), generate


@extending.intrinsic
def divide_vector(_: Any, to: Any, number: Any) -> Any:
    """Divide the WIDTH numbers at `to` by a whole number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        stored(builder, builder.fdiv(loaded(builder, args[0], VECTOR), _count(builder, args[1])), args[0])
        return context.get_dummy_value()

    return void(int64, int64), generate


@extending.intrinsic
def clear_if_not_finite(_: Any, address: Any) -> Any:
    """Write zeros for those of the WIDTH numbers at an address that are not finite."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = loaded(builder, args[0], VECTOR)
        difference = builder.fsub(value, value)  # not a number if the value is not finite
        stored(builder, builder.select(builder.fcmp_ordered("==", difference, _ZERO), value, _ZERO), args[0])
        return context.get_dummy_value()

    return void(int64), generate
