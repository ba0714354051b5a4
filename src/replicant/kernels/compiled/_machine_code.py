"""What numba's functions lack: memory by address, and calls by address. `_tiles.py` adds products of vectors in registers.

All addresses and strides are whole numbers, in bytes. Numba and llvmlite need not be installed: `_registration.py` imports what
imports this, once a program can use it.
"""

import importlib
from typing import Any

from . import _registers

numba: Any = importlib.import_module("numba")
extending: Any = importlib.import_module("numba.extending")
cgutils: Any = importlib.import_module("numba.core.cgutils")
ir: Any = importlib.import_module("llvmlite.ir")

# Only other compiled functions call these. What Python would need to call them takes long to compile.
jit: Any = numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)

WIDTH = _registers.width() or 8  # float32 numbers in a register: 16 with AVX-512, 8 with AVX2

int64, void = numba.types.int64, numba.types.void
_I8, _I32, _I64, _FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_BYTES = _I8.as_pointer()
VECTOR = ir.VectorType(_FLOAT, WIDTH)


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def loaded(builder: Any, address: Any, kind: Any) -> Any:
    """The value of a type at an address."""
    value = builder.load(_pointer(builder, address, kind))
    value.align = 4
    return value


def stored(builder: Any, value: Any, address: Any) -> None:
    """Write a value at an address."""
    builder.store(value, _pointer(builder, address, value.type)).align = 4


def external(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """A function of another library, or an intrinsic of LLVM."""
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


@extending.intrinsic
def load(_: Any, address: Any) -> Any:
    """The whole number of 8 bytes at an address."""
    return int64(int64), lambda context, builder, signature, args: loaded(builder, args[0], _I64)


@extending.intrinsic
def load_half(_: Any, address: Any) -> Any:
    """The whole number of 4 bytes at an address."""
    return int64(int64), lambda context, builder, signature, args: builder.sext(loaded(builder, args[0], _I32), _I64)


@extending.intrinsic
def load_byte(_: Any, address: Any) -> Any:
    """The whole number of one byte at an address."""
    return int64(int64), lambda context, builder, signature, args: builder.zext(loaded(builder, args[0], _I8), _I64)


@extending.intrinsic
def store(_: Any, address: Any, value: Any) -> Any:
    """Write 8 bytes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        stored(builder, args[1], args[0])
        return context.get_dummy_value()

    return void(int64, int64), generate


@extending.intrinsic
def store_half(_: Any, address: Any, value: Any) -> Any:
    """Write 4 bytes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        stored(builder, builder.trunc(args[1], _I32), args[0])
        return context.get_dummy_value()

    return void(int64, int64), generate


@extending.intrinsic
def fetch_add(_: Any, address: Any, value: Any) -> Any:
    """Add to the number at an address in one indivisible step, and return what it was before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(builder, args[0], _I64), args[1], "seq_cst")

    return int64(int64, int64), generate


@extending.intrinsic
def call(_: Any, function: Any, argument: Any) -> Any:
    """Call the function at an address with one pointer. It returns a pointer."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.call(_pointer(builder, args[0], ir.FunctionType(_I64, [_I64])), [args[1]])

    return int64(int64, int64), generate


@extending.intrinsic
def allocate(_: Any, size: Any) -> Any:
    """`malloc`: an address, or 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(builder.call(external(builder, "malloc", _BYTES, _I64), args), _I64)

    return int64(int64), generate


@extending.intrinsic
def place_for_arguments(_: Any) -> Any:
    """The address of 40 bytes that belong to the function that this is called in, until it returns."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(cgutils.alloca_once(builder, ir.ArrayType(_I64, 5)), _I64)

    return int64(), generate


def make_place(size: int) -> Any:
    """Make the function that returns the address of so many bytes on the stack, where a line of the cache begins.

    They belong to the function that this is called in, until it returns. Unlike those of `allocate`, they stay in the cache from
    call to call, and need no new pages.
    """

    @extending.intrinsic
    def place(_: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            with builder.goto_entry_block():
                room = builder.alloca(ir.ArrayType(_I8, size))  # `alloca_once` would fill it with zeros
            room.align = 64
            return builder.ptrtoint(room, _I64)

        return int64(), generate

    return place


@extending.intrinsic
def free(_: Any, address: Any) -> Any:
    """Free what `allocate` returned."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.call(external(builder, "free", ir.VoidType(), _BYTES), [builder.inttoptr(args[0], _BYTES)])
        return context.get_dummy_value()

    return void(int64), generate


@extending.intrinsic
def yield_processor(_: Any) -> Any:
    """Let another thread run."""
    return numba.types.int32(), lambda context, builder, signature, args: builder.call(external(builder, "sched_yield", _I32), [])


@extending.intrinsic
def copy(_: Any, to: Any, source: Any, size: Any) -> Any:
    """Copy bytes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointers = [builder.inttoptr(address, _BYTES) for address in args[:2]]
        builder.call(external(builder, "memcpy", _BYTES, _BYTES, _BYTES, _I64), [*pointers, args[2]])
        return context.get_dummy_value()

    return void(int64, int64, int64), generate


@extending.intrinsic
def clear(_: Any, to: Any, size: Any) -> Any:
    """Write zeros."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = external(builder, "memset", _BYTES, _BYTES, _I32, _I64)
        builder.call(function, [builder.inttoptr(args[0], _BYTES), _I32(0), args[1]])
        return context.get_dummy_value()

    return void(int64, int64), generate


@extending.intrinsic
def add_vector(_: Any, to: Any, address: Any) -> Any:
    """Add the WIDTH numbers at `address` to those at `to`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first, second = (loaded(builder, address, VECTOR) for address in args)
        stored(builder, builder.fadd(first, second), args[0])
        return context.get_dummy_value()

    return void(int64, int64), generate


@extending.intrinsic
def write_sum(_: Any, to: Any, first: Any, second: Any) -> Any:
    """Write the sums of the WIDTH numbers at two addresses to a third one."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        stored(builder, builder.fadd(*(loaded(builder, address, VECTOR) for address in args[1:])), args[0])
        return context.get_dummy_value()

    return void(int64, int64, int64), generate


@extending.intrinsic
def transpose_square(_: Any, to: Any, to_line: Any, source: Any, line: Any) -> Any:
    """Write the transposition of WIDTH rows of WIDTH numbers. The rows begin so many bytes after each other."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, to_line, source, line = args
        rows = [loaded(builder, builder.add(source, builder.mul(line, _I64(i))), VECTOR) for i in range(WIDTH)]
        distance = WIDTH // 2
        while distance:  # exchange the blocks of this size that lie beside the diagonal
            for i in range(WIDTH):
                if not i & distance:
                    first, second = rows[i], rows[i + distance]
                    upper = [x if not x & distance else WIDTH + x - distance for x in range(WIDTH)]
                    lower = [x + distance if not x & distance else WIDTH + x for x in range(WIDTH)]
                    rows[i], rows[i + distance] = (
                        builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(_I32, WIDTH), mask))
                        for mask in (upper, lower)
                    )
            distance //= 2
        for i, row in enumerate(rows):
            stored(builder, row, builder.add(to, builder.mul(to_line, _I64(i))))
        return context.get_dummy_value()

    return void(int64, int64, int64, int64), generate


@extending.intrinsic
def out_of_memory(_: Any) -> Any:
    """The address of the text of an error."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(context.insert_const_string(builder.module, "no memory for a CPU kernel"), _I64)

    return int64(), generate


@extending.intrinsic
def this_function(_: Any) -> Any:
    """The address of the function that this is called in, which takes and returns one whole number, as C calls it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        name = f"{builder.function.name}.for_c"
        function = ir.Function(builder.module, ir.FunctionType(_I64, [_I64]), name)
        function.linkage = "internal"
        inner = ir.IRBuilder(function.append_basic_block())
        called = context.call_conv.call_function(inner, builder.function, int64, [int64], function.args)
        inner.ret(called[1])
        return builder.ptrtoint(function, _I64)

    return int64(), generate
