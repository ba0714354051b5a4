"""Exponentials, logistic functions and hyperbolic tangents of vectors, as instructions of LLVM.

Numba calls a function for each number. These have no calls and no branches. Their results differ from the true ones by a few units
in the last place. What is not a number stays so.
"""

from dataclasses import dataclass
from typing import Any

from ._machine_code import VECTOR, WIDTH, external, ir

_WHOLE = ir.VectorType(ir.IntType(32), WIDTH)

# exp(r) for |r| <= log(2) / 2: its series, with coefficients that spread the error (Cephes, expf).
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
_TO_WHOLE = 12582912.0  # 1.5 * 2**23: added to a small number, it leaves the nearest whole number in the lowest bits
_EXP_LIMITS = -87.0, 88.0  # within them, results are normal numbers

# tanh(x) is x * P(x * x) / Q(x * x) up to the limit, where it is 1 (a rational minimax approximation, as in Eigen).
_TANH_LIMIT = 9.0
_TANH_P = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_TANH_Q = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)


@dataclass(frozen=True)
class Vector:
    """WIDTH float32 numbers in a function that is being built. The other operand of an operation may be a number."""

    builder: Any
    value: Any

    def __add__(self, other: Any) -> "Vector":
        """Add number by number."""
        return Vector(self.builder, self.builder.fadd(self.value, self._value(other)))

    def __sub__(self, other: Any) -> "Vector":
        """Subtract number by number."""
        return Vector(self.builder, self.builder.fsub(self.value, self._value(other)))

    def __rsub__(self, other: Any) -> "Vector":
        """Subtract number by number."""
        return Vector(self.builder, self.builder.fsub(self._value(other), self.value))

    def __mul__(self, other: Any) -> "Vector":
        """Multiply number by number."""
        return Vector(self.builder, self.builder.fmul(self.value, self._value(other)))

    def __truediv__(self, other: Any) -> "Vector":
        """Divide number by number."""
        return Vector(self.builder, self.builder.fdiv(self.value, self._value(other)))

    def __rtruediv__(self, other: Any) -> "Vector":
        """Divide number by number."""
        return Vector(self.builder, self.builder.fdiv(self._value(other), self.value))

    def times_plus(self, factor: Any, summand: Any) -> "Vector":
        """``self * factor + summand``, rounded once."""
        function = external(self.builder, f"llvm.fma.v{WIDTH}f32", VECTOR, VECTOR, VECTOR, VECTOR)
        return Vector(self.builder, self.builder.call(function, [self.value, self._value(factor), self._value(summand)]))

    def within(self, least: float, most: float) -> "Vector":
        """Replace numbers outside of an interval by its ends."""
        value = self.value
        for comparison, limit in (("<", least), (">", most)):
            end = self._value(limit)
            value = self.builder.select(self.builder.fcmp_ordered(comparison, value, end), end, value)
        return Vector(self.builder, value)

    def _value(self, other: Any) -> Any:
        return other.value if isinstance(other, Vector) else ir.Constant(VECTOR, [float(other)] * WIDTH)


def _polynomial(x: Vector, first: Any, coefficients: tuple[float, ...]) -> Vector:
    """``(first * x + c0) * x + c1 ...``."""
    total = first
    for coefficient in coefficients:
        total = x.times_plus(total, coefficient)
    return total


def exp(x: Vector) -> Vector:
    """``e**x``, but no less than ``e**-87`` and no more than ``e**88``."""
    builder, x = x.builder, x.within(*_EXP_LIMITS)
    shifted = x.times_plus(_LOG2_E, _TO_WHOLE)
    power = shifted - _TO_WHOLE
    rest = power.times_plus(-_LN2_LOW, power.times_plus(-_LN2_HIGH, x))
    bits = builder.shl(builder.bitcast(shifted.value, _WHOLE), ir.Constant(_WHOLE, [23] * WIDTH))
    scale = builder.bitcast(builder.add(bits, ir.Constant(_WHOLE, [127 << 23] * WIDTH)), VECTOR)
    series = (rest * rest).times_plus(_polynomial(rest, _EXP[0], _EXP[1:]), rest) + 1.0
    return series * Vector(builder, scale)


def logistic(x: Vector) -> Vector:
    """``1 / (1 + e**-x)``."""
    return 1.0 / (exp(0.0 - x) + 1.0)


def tanh(x: Vector) -> Vector:
    """The hyperbolic tangent."""
    x = x.within(-_TANH_LIMIT, _TANH_LIMIT)
    square = x * x
    return x * _polynomial(square, _TANH_P[0], _TANH_P[1:]) / _polynomial(square, _TANH_Q[0], _TANH_Q[1:])
