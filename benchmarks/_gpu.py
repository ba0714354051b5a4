"""Lowers training steps for GPUs on a machine that has none, and reads what XLA is given.

Keras and JAX ask the machine which kernels of cuDNN it has. ``as_on_a_gpu`` answers as a machine with Hopper GPUs does, so that
they choose what they would choose there. XLA's compiler for GPUs is not needed, because nothing is compiled for them.
"""

import dataclasses
import functools
import importlib
import re
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import rnn
from jax.interpreters import mlir

from replicant import kernels
from replicant.plan._chips import CHIPS, Target
from replicant.plan._compile import find_step
from replicant.replicas._placement import Placement

# Inner modules of JAX and Keras, which decide by the hardware.
cudnn: Any = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
gpu_rnn: Any = importlib.import_module("jaxlib.gpu_rnn")
keras_rnn: Any = importlib.import_module("keras.src.backend.jax.rnn")

CUDNN, CAPABILITY = 91200, (9, 0)  # cuDNN 9.12, and an H100
_EXCHANGES = re.compile(r"stablehlo\.(all_reduce|all_gather|reduce_scatter|all_to_all|collective_permute|collective_broadcast)\b")
_CALL = re.compile(r"stablehlo\.custom_call @([\w$]+|\"[^\"]+\")")
_ROWS = re.compile(r"stablehlo\.custom_call @\S*(?:fmha|cudnn_rnn)\S*\(.* : \(tensor<(\d+)x")  # of the first input
_CUT = re.compile(r" = (\(.*?\)|\S+) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")
_MOVES = re.compile(r"stablehlo\.(infeed|outfeed|send|recv)\b")
_PRODUCTS = re.compile(r"stablehlo\.(?:dot_general|convolution)\b.* : \(tensor<(?:\w+x)*(\w+)>, tensor<(?:\w+x)*(\w+)>\) -> ")
_MAIN = re.compile(r"func\.func public @main\((.*)\) -> ")
_PARTITIONED = "CustomSPMDPartitioning"  # an operation that JAX cuts for the devices when XLA compiles


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a lowered step does.

    Args:
        exchanges: How often it exchanges with other devices, by kind, before XLA cuts what is left in the global view.
        donated: The number of inputs whose memory it may overwrite.
        state: The number of arrays of its state.
        inputs: The number of all inputs.
        calls: How often it calls functions outside of XLA, by name.
        moves: The number of transfers between host and device, and of arrays placed in the host's memory.
        has_float64: Whether it has values of 64-bit floats.
        rows: The numbers of rows that its kernels of cuDNN are given on each device. Those that JAX cuts later are not among them.
        products: How many products of matrices and convolutions it has, by the dtypes of what is multiplied, such as "bf16".
    """

    exchanges: dict[str, int]
    donated: int
    state: int
    inputs: int
    calls: dict[str, int]
    moves: int
    has_float64: bool
    rows: tuple[int, ...]
    products: dict[str, int]

    @property
    def callbacks(self) -> int:
        """The number of calls of Python on the host."""
        return sum(number for name, number in self.calls.items() if "callback" in name)

    @property
    def kernels(self) -> str:
        """The kernels of cuDNN: "flash", "lstm", or "-"."""
        flash = any("fmha" in name or name == _PARTITIONED for name in self.calls)
        return "flash" if flash else "lstm" if any("rnn" in name for name in self.calls) else "-"


@dataclasses.dataclass(frozen=True)
class Cut:
    """What devices exchange in a step that XLA has cut for them.

    Args:
        exchanges: How often they exchange, by kind.
        arrays: The number of arrays that they exchange, by kind.
        rows: The numbers of rows that kernels of cuDNN are given on each device.
    """

    exchanges: dict[str, int]
    arrays: dict[str, int]
    rows: tuple[int, ...]


class Kept(Placement):
    """A placement on virtual devices whose programs are those of devices with a memory of their own."""

    on_cpu = False  # type: ignore[assignment]  # a property there; here no device decides it


def lower(program: Callable[[], Any], num_devices: int) -> Facts:
    """Lower the first training step of a program for so many GPUs, and read it."""
    with as_on_a_gpu():
        step = find_step(program, _target(num_devices))
        text = step.lower(Placement(_devices(num_devices), platform="cuda")).as_text()
    return facts(text, sum(x.kind != "batch" for x in step.held(_target(num_devices))))


def partition(program: Callable[[], Any], num_devices: int) -> Cut:
    """Let XLA cut the same step for virtual devices, and read what it exchanges.

    XLA's partitioner is the same for all kinds of devices, and so is the way in which it joins exchanges.
    """
    with as_on_a_gpu(), kernels_on_cpu() as rows, kernels.disabled():
        step = find_step(program, _target(num_devices))
        compiled = step.lower(Kept(_devices(num_devices))).compile()
    exchanges, arrays = Counter[str](), Counter[str]()
    for shapes, kind in _CUT.findall(compiled.as_text()):
        exchanges[kind] += 1
        arrays[kind] += shapes.count("[")
    return Cut(dict(exchanges), dict(arrays), tuple(sorted(rows)))


def facts(text: str, state: int) -> Facts:
    """Read the text of a lowered program with so many arrays of state."""
    head = _MAIN.search(text)
    assert head is not None, "a lowered program has a main function"
    calls = Counter(name.strip('"') for name in _CALL.findall(text))
    return Facts(
        dict(Counter(_EXCHANGES.findall(text))),
        len(re.findall(r"tf\.aliasing_output|jax\.buffer_donor", head[1])),
        state,
        len(re.findall(r"%arg\d+: ", head[1])),
        dict(calls),
        len(_MOVES.findall(text)) + calls["annotate_device_placement"],
        re.search(r"\bf64\b|xf64\b", text) is not None,
        tuple(sorted({int(number) for number in _ROWS.findall(text)})),
        dict(Counter(" x ".join(dict.fromkeys(pair)) for pair in _PRODUCTS.findall(text))),
    )


def _target(num_devices: int) -> Target:
    return Target(f"gpu:{num_devices}xh100", "gpu", num_devices, CHIPS["h100"])


def _devices(number: int) -> tuple[Any, ...]:
    found = jax.devices("cpu")
    assert len(found) >= number, f"replicant.set_virtual_devices({number}) comes first"
    return tuple(found[:number])


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Answer what Keras and JAX ask about GPUs and cuDNN as a machine with H100s and cuDNN 9.12 does."""

    def at_least(capability: str) -> bool:
        return tuple(map(int, capability.split("."))) <= CAPABILITY

    answers: list[tuple[Any, str, Any]] = [
        (cudnn, "check_cudnn_version", lambda: CUDNN),
        (cudnn, "check_compute_capability", at_least),
        (cudnn, "is_cuda_compute_capability_equal", lambda text: text == ".".join(map(str, CAPABILITY))),
        (gpu_rnn, "compute_rnn_workspace_reserve_space_sizes", lambda *_: (1, 1)),
        (keras_rnn, "_is_gpu_available", lambda: True),
    ]
    for primitive, rule in ((rnn.rnn_fwd_p, gpu_rnn._rnn_fwd_lowering), (rnn.rnn_bwd_p, gpu_rnn._rnn_bwd_lowering)):
        plugin = types.SimpleNamespace(build_rnn_descriptor=lambda *_: b"")  # JAX's plugin for CUDA has the real one
        mlir.register_lowering(primitive, functools.partial(rule, plugin, "cu"), platform="cuda")
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in answers if name in vars(owner)]
    for owner, name, answer in answers:
        setattr(owner, name, answer)
    try:
        yield
    finally:
        for owner, name, _ in answers:
            delattr(owner, name)
        for owner, name, original in before:
            setattr(owner, name, original)


@contextmanager
def kernels_on_cpu() -> Iterator[set[int]]:
    """Let CPU devices compute what kernels of cuDNN compute. Yields the numbers of rows that each device was given."""
    rows: set[int] = set()

    def attention(*args: Any, is_training: bool, **options: Any) -> tuple[jax.Array, ...]:
        rows.add(args[0].shape[0])
        return _attention(*args[:4], **options)[: 2 if is_training else 1]

    def attention_back(*args: Any, **options: Any) -> tuple[jax.Array, ...]:
        _, pull = jax.vjp(lambda *inputs: _attention(*inputs, **options)[0], *args[:4])
        return pull(args[12])[: 4 if options["variadic_args"][1] else 3]

    def lstm(*args: Any, **options: Any) -> tuple[jax.Array, ...]:
        rows.add(args[0].shape[0])
        return (*_lstm(*args, **options), jnp.zeros(1))

    def lstm_back(*args: Any, **options: Any) -> tuple[jax.Array, ...]:
        # The gradients of the outputs; the inputs; the outputs and the kernel's notes, which are not needed here.
        _, pull = jax.vjp(lambda x, h, c, weights: _lstm(x, h, c, weights, args[-1], **options), *args[3:7])
        return pull(args[:3])

    rules = {
        cudnn._dot_product_attention_fwd_p: attention,
        cudnn._dot_product_attention_bwd_p: attention_back,
        rnn.rnn_fwd_p: lstm,
        rnn.rnn_bwd_p: lstm_back,
    }
    for primitive, rule in rules.items():
        mlir.register_lowering(primitive, mlir.lower_fun(rule, multiple_results=True), platform="cpu")
    yield rows


def _attention(query: Any, key: Any, value: Any, bias: Any, *, scale: float, variadic_args: Any, mask_type: Any, **_: Any) -> Any:
    """Compute attention of (batch, length, heads, size), and the logarithms of the sums that its gradient uses."""
    logits = jnp.einsum("BTNH,BSNH->BNTS", query, key, preferred_element_type=jnp.float32) * scale
    if variadic_args[0]:
        logits += bias.astype(jnp.float32)
    if mask_type == cudnn.MaskType.CAUSAL:
        logits = jnp.where(jnp.tril(jnp.ones(logits.shape[2:], bool)), logits, -jnp.inf)
    output = jnp.einsum("BNTS,BSNH->BTNH", jax.nn.softmax(logits).astype(value.dtype), value)
    return output, jax.scipy.special.logsumexp(logits, axis=-1)


def _lstm(x: Any, h: Any, c: Any, weights: Any, lengths: Any, *, input_size: int, hidden_size: int, **options: Any) -> Any:
    layers, both = options["num_layers"], options["bidirectional"]
    parts = rnn.unpack_lstm_weights(weights, input_size, hidden_size, layers, both)
    compute: Any = rnn.lstm_ref  # type checkers do not see through its jax.jit
    return compute(x, h, c, *parts, lengths, input_size, hidden_size, layers, options["dropout"], both)
