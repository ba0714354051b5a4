"""Products of small matrices whose sums stay in registers, as instructions of LLVM.

All addresses and strides are whole numbers, in bytes. A tile is some rows of the result, with one or two vectors each.
"""

from collections.abc import Callable
from typing import Any

from ._machine_code import VECTOR, WIDTH, extending, external, int64, ir, jit, loaded, stored, void

# Tiles whose sums and operands fit into the registers: 32 of AVX-512, or 16 of AVX2. First with one vector, then with two.
HEIGHTS = (16, 8, 4, 3, 2, 1) if WIDTH == 16 else (8, 4, 3, 2, 1)
HEIGHTS_OF_TWO = (12, 8, 4, 3, 2, 1) if WIDTH == 16 else (6, 4, 3, 2, 1)

_BYTES = ir.IntType(8).as_pointer()
_FLOAT, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)


def multiply_add(builder: Any, first: Any, second: Any, third: Any) -> Any:
    """The product of two vectors, number by number, plus a third one."""
    return builder.call(external(builder, f"llvm.fma.v{WIDTH}f32", VECTOR, VECTOR, VECTOR, VECTOR), [first, second, third])


def spread(builder: Any, number: Any) -> Any:
    """A vector of one number."""
    undefined, everywhere = ir.Constant(VECTOR, ir.Undefined), ir.Constant(ir.VectorType(_I32, WIDTH), [0] * WIDTH)
    return builder.shuffle_vector(builder.insert_element(undefined, number, _I32(0)), undefined, everywhere)


def _sums(builder: Any, sums: list[Any], first: Any, first_rows: list[Any], second: Any) -> list[Any]:
    """Add the products of some numbers with each of some vectors."""
    num_vectors = len(sums) // len(first_rows)
    vectors = [loaded(builder, builder.add(second, _I64(v * 4 * WIDTH)), VECTOR) for v in range(num_vectors)]
    result = []
    for j, row in enumerate(first_rows):
        number = spread(builder, loaded(builder, builder.add(first, row), _FLOAT))
        result += [multiply_add(builder, number, x, sums[j * num_vectors + v]) for v, x in enumerate(vectors)]
    return result


def _sums_of_each(builder: Any, sums: list[Any], first: Any, first_rows: list[Any], second: Any) -> list[Any]:
    """Add the products of some vectors with one vector each, number by number."""
    places = [_I64(v * 4 * WIDTH) for v in range(len(sums) // len(first_rows))]
    vectors = [loaded(builder, builder.add(second, place), VECTOR) for place in places]
    result = []
    for j, row in enumerate(first_rows):
        for v, (place, x) in enumerate(zip(places, vectors, strict=True)):
            y = loaded(builder, builder.add(builder.add(first, row), place), VECTOR)
            result.append(multiply_add(builder, y, x, sums[j * len(places) + v]))
    return result


def loop(builder: Any, start: list[Any], count: Any, body: Any) -> list[Any]:
    """Call ``body(number, *values) -> next values`` `count` times, at least once, with numbers from 0. Returns the last values."""
    before, inside, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(inside)
    builder.position_at_end(inside)
    values = [builder.phi(value.type) for value in (_I64(0), *start)]
    following = [builder.add(values[0], _I64(1)), *body(*values)]
    for phi, first, later in zip(values, (_I64(0), *start), following, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, builder.block)
    builder.cbranch(builder.icmp_signed("<", following[0], count), inside, after)
    builder.position_at_end(after)
    return following[1:]


def _prefetch(builder: Any, address: Any, *, writes: bool) -> None:
    """Begin to read the line at an address: into the first cache if it is about to be written, or else into the second."""
    function = external(builder, "llvm.prefetch.p0", ir.VoidType(), _BYTES, _I32, _I32, _I32)
    kind = [_I32(1), _I32(3)] if writes else [_I32(0), _I32(2)]
    builder.call(function, [builder.inttoptr(address, _BYTES), *kind, _I32(1)])


def _while(builder: Any, start: list[Any], condition: Callable[..., Any], body: Callable[..., list[Any]]) -> list[Any]:
    """Call ``body(*values) -> next values`` as long as ``condition(*values)``. Returns the last values."""
    before, test, inside, after = builder.block, *(builder.append_basic_block() for _ in range(3))
    builder.branch(test)
    builder.position_at_end(test)
    values = [builder.phi(value.type) for value in start]
    builder.cbranch(condition(*values), inside, after)
    builder.position_at_end(inside)
    for phi, first, later in zip(values, start, body(*values), strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, builder.block)
    builder.branch(test)
    builder.position_at_end(after)
    return values


def _next_lines(builder: Any, num_rows: int, first: Any, first_j: Any, first_l: Any) -> Callable[[Any], Any]:
    """Make the function that says at which address to read ahead at step l, so that the tile below lies in the cache in time.

    If the numbers of a row lie side by side, a line of the cache has those of 16 steps, so 16 steps read a line of each of the next
    16 rows. Otherwise the rows lie side by side, and each step reads the line that has its own numbers of the next rows.
    """
    side_by_side = builder.icmp_signed("==", first_l, _I64(4))
    near, far = builder.select(side_by_side, first_j, first_l), builder.shl(first_l, _I64(4))
    begin = builder.add(first, builder.mul(first_j, builder.select(side_by_side, _I64(num_rows), _I64(2 * num_rows - 1))))

    def address(step: Any) -> Any:
        line, part = builder.and_(step, _I64(15)), builder.lshr(step, _I64(4))
        return builder.add(begin, builder.add(builder.mul(line, near), builder.mul(part, far)))

    return address


def _tile(builder: Any, num_rows: int, num_vectors: int, add: Any, args: Any, *, reads_ahead: bool) -> None:
    """Compute `num_rows` rows of what `make_rows` computes, with sums in registers."""
    first, first_j, first_k, first_l, second, second_k, second_l, num_k, num_l, out, out_j, adds = args
    cells = [(j, v) for j in range(num_rows) for v in range(num_vectors)]
    places = [builder.add(out, builder.add(builder.mul(out_j, _I64(j)), _I64(v * 4 * WIDTH))) for j, v in cells]
    rows = [builder.mul(first_j, _I64(j)) for j in range(num_rows)]
    present, zero = builder.icmp_signed("!=", adds, _I64(0)), ir.Constant(VECTOR, [0.0] * WIDTH)

    next_lines = _next_lines(builder, num_rows, first, first_j, first_l) if reads_ahead else None

    def of_l(step: Any, first: Any, second: Any, *sums: Any) -> list[Any]:
        if next_lines:
            _prefetch(builder, next_lines(step), writes=False)
        added = add(builder, list(sums), first, rows, second)
        return [builder.add(first, first_l), builder.add(second, second_l), *added]

    def of_k(_: Any, first: Any, second: Any, *sums: Any) -> list[Any]:
        added = loop(builder, [first, second, *sums], num_l, of_l)[2:]
        return [builder.add(first, first_k), builder.add(second, second_k), *added]

    for place in places:  # or the last loads wait for memory
        _prefetch(builder, place, writes=True)
    totals = loop(builder, [first, second, *[zero] * len(cells)], num_k, of_k)[2:]
    for place, total in zip(places, totals, strict=True):
        before = builder.select(present, loaded(builder, place, VECTOR), zero)
        stored(builder, builder.fadd(before, total), place)


def make_rows(num_vectors: int, heights: tuple[int, ...], *, of_each: bool = False, reads_ahead: bool = False) -> Any:
    """Make the function that computes ``out[j, v] (+)= sum over k, l of first[j, k, l] * second[k, l, v]``.

    There are `num_vectors` vectors v. As many rows j as the first of the `heights` says are computed at once as long as there are
    so many, and then as many as the next one says. The last height is 1. If the products are `of_each`, ``first[j, k, l]`` is no
    number but vectors, and each number in them is multiplied by that in ``second[k, l, v]`` at the same place. The arguments are:
    the address of `first`, and the strides of j, k and l in it; the address of `second`, and the strides of k and l in it; the
    numbers of k and l; the address of `out`, and the stride of j in it; whether to add (1) or to write (0); and the number of rows.

    If it `reads_ahead`, the rows of `first` begin to come into the second cache while those above them are multiplied. This is of
    use if they lie far apart, or else the processor sees by itself what is read next.

    All of it is one function, because numba optimizes each one again wherever it is called.
    """
    add = _sums_of_each if of_each else _sums

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first, first_j, first_k, first_l, second, second_k, second_l, num_k, num_l, out, out_j, adds, num_rows = args

        def with_height(height: int, first: Any, out: Any, left: Any) -> list[Any]:
            numbers = (first_j, first_k, first_l, second, second_k, second_l, num_k, num_l)
            _tile(builder, height, num_vectors, add, (first, *numbers, out, out_j, adds), reads_ahead=reads_ahead)
            steps = (builder.mul(stride, _I64(height)) for stride in (first_j, out_j))
            return [*map(builder.add, (first, out), steps), builder.sub(left, _I64(height))]

        values = [first, out, num_rows]
        for height in heights:
            values = _while(
                builder,
                values,
                lambda _first, _out, left, height=height: builder.icmp_signed(">=", left, _I64(height)),
                lambda *values, height=height: with_height(height, *values),
            )
        return context.get_dummy_value()

    @extending.intrinsic
    def rows(
        _: Any, f: Any, fj: Any, fk: Any, fl: Any, s: Any, sk: Any, sl: Any, k: Any, m: Any, o: Any, oj: Any, adds: Any, n: Any
    ) -> Any:
        return void(*[int64] * 13), generate

    @jit
    def compiled(
        f: Any, fj: Any, fk: Any, fl: Any, s: Any, sk: Any, sl: Any, k: Any, m: Any, o: Any, oj: Any, adds: Any, n: Any
    ) -> None:
        rows(f, fj, fk, fl, s, sk, sl, k, m, o, oj, adds, n)

    return compiled
