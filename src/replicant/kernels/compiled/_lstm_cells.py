"""A step of an LSTM and of its gradient for WIDTH units, as instructions of LLVM, without the products of matrices.

All arguments are addresses, but for `line`, the number of bytes of a row of one gate: the gates of a row lie one after the other.
"""

from typing import Any

from ._machine_code import VECTOR, WIDTH, extending, int64, loaded, stored, void
from ._vector_math import Vector, logistic, tanh


@extending.intrinsic
def compute_state(_: Any, gates: Any, line: Any, before: Any, carry: Any, output: Any) -> Any:
    """Make a vector of each of the four gates of their sums, in place, and the new carry and output of the carry before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        gates, line, before, carry, output = args
        places = [gates]
        for _gate in range(3):
            places.append(builder.add(places[-1], line))
        sums = [Vector(builder, loaded(builder, place, VECTOR)) for place in places]
        i, f, g, o = logistic(sums[0]), logistic(sums[1]), tanh(sums[2]), logistic(sums[3])
        c = f.times_plus(Vector(builder, loaded(builder, before, VECTOR)), i * g)
        for vector, place in zip((i, f, g, o, c, o * tanh(c)), (*places, carry, output), strict=True):
            stored(builder, vector.value, place)
        return context.get_dummy_value()

    return void(*[int64] * 5), generate


@extending.intrinsic
def compute_gradient(
    _: Any,
    of_output: Any,
    of_carry: Any,
    next_output: Any,
    next_carry: Any,
    gates: Any,
    line: Any,
    before: Any,
    carry: Any,
    to: Any,
) -> Any:
    """Make a vector of the gradients of each gate's sum, and of the carry before, of those of the output and the carry.

    Those that come from the next step are at `next_output`, where zeros are left, and at `next_carry`, where the result is left.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        of_output, of_carry, next_output, next_carry, gates, line, before, carry, to = args

        def vector(place: Any) -> Vector:
            return Vector(builder, loaded(builder, place, VECTOR))

        lines = [line.type(0), line, builder.add(line, line), builder.add(builder.add(line, line), line)]
        i, f, g, o = (vector(builder.add(gates, place)) for place in lines)
        t, dh = tanh(vector(carry)), vector(of_output) + vector(next_output)
        dc = (o * (1.0 - t * t)).times_plus(dh, vector(of_carry) + vector(next_carry))
        sums = (
            dc * (g * i * (1.0 - i)),
            dc * (vector(before) * f * (1.0 - f)),
            dc * (i * (1.0 - g * g)),
            dh * (t * o * (1.0 - o)),
        )
        for total, place in zip(sums, lines, strict=True):
            stored(builder, total.value, builder.add(to, place))
        stored(builder, VECTOR([0.0] * WIDTH), next_output)
        stored(builder, (f * dc).value, next_carry)
        return context.get_dummy_value()

    return void(*[int64] * 9), generate
