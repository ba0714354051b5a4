"""The parts of a plan that are plain arithmetic and reading."""

import math

import pytest

from replicant.errors import ArgumentError
from replicant.plan._chips import CHIPS, parse_target
from replicant.plan._estimate import all_reduce_seconds, scaling, times_of
from replicant.plan._exchanges import Exchange, exchanges_in


@pytest.mark.parametrize(
    ("text", "kind", "devices", "slices", "chip"),
    [
        ("cpu:8", "cpu", 8, 1, None),
        ("gpu:8xh100", "gpu", 8, 1, "h100"),
        (" V5E:16x16 ", "tpu", 256, 1, "v5e"),
        ("v5p:8x8x8", "tpu", 512, 1, "v5p"),
        ("v6e:16x16*4", "tpu", 1024, 4, "v6e"),
    ],
)
def test_topologies(text: str, kind: str, devices: int, slices: int, chip: str | None) -> None:
    target = parse_target(text)
    assert (target.kind, target.num_devices, target.num_slices) == (kind, devices, slices)
    assert target.chip == (CHIPS[chip] if chip else None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpu:8", (1, 8)),
        ("gpu:8xh100", (1, 8)),
        ("gpu:64xa100", (8, 8)),
        ("gpu:12xh200", (1, 12)),
        ("v5e:2x4", (1, 8)),
        ("v6e:2x2", (1, 4)),
        ("v5e:16x16", (64, 4)),
        ("v5p:2x2x2", (2, 4)),
        ("v6e:16x16*4", (256, 4)),
    ],
)
def test_workers_and_their_devices(text: str, expected: tuple[int, int]) -> None:
    assert parse_target(text).workers == expected


@pytest.mark.parametrize(
    "text", ["", "cpu", "cpu:0", "gpu:8", "gpu:8xh900", "v5e", "v5e:16", "v5e:0x4", "v5e:4x4*0", "h100:8", "tpu:8"]
)
def test_what_is_no_topology(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"is not a topology. Write 'cpu:8', 'gpu:8xh100', 'v5e:16x16'"):
        parse_target(text)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "%psum.7 = f32[512,512]{1,0:T(8,128)S(1)} all-reduce(%fusion), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add",
            [Exchange("all-reduce", 512 * 512 * 4, 4)],
        ),
        (
            "%ar = (f32[10]{0}, bf16[3,4]{1,0}) all-reduce(%a, %b), replica_groups=[1,256]<=[256], to_apply=%add",
            [Exchange("all-reduce", 40 + 24, 256)],
        ),
        (
            "ROOT %g = (f32[2]{0}, f32[8]{0}) all-gather-start(%a), replica_groups={{0,2},{1,3}}, dimensions={0}",
            [Exchange("all-gather", 32, 2)],
        ),
        ("%s = pred[16]{0} all-to-all(%a), replica_groups={}", [Exchange("all-to-all", 16, 0)]),
        (
            "%p = (bf16[4,8]{1,0}, bf16[4,8]{1,0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%a), channel_id=1",
            [Exchange("collective-permute", 64, 0)],
        ),
        ("%r = f32[4]{0} reduce-scatter(%a), replica_groups=mesh[2,4]<=[8]", [Exchange("reduce-scatter", 16, 4)]),
        ("%d = f32[4]{0} all-reduce-done(%s)", []),
        ("%x = f32[4]{0} add(%all-reduce, %b)", []),
    ],
)
def test_exchanges_in_a_program(line: str, expected: list[Exchange]) -> None:
    assert exchanges_in(f"HloModule m\n  {line}\n") == expected


def test_a_sum_of_which_a_slice_is_kept_is_a_reduce_scatter() -> None:
    head = "%all-reduce-scatter.7 (input_0: f32[8,4], input_1: f32[4]) -> (f32[2,4], f32[1]) {"
    line = "  %all-reduce.3 = (f32[8,4]{1,0}, f32[4]{0}) all-reduce(%input_0, %input_1), replica_groups={{0,1,2,3}}, to_apply=%add"
    other = "  %all-reduce.4 = f32[4]{0} all-reduce(%x), replica_groups={{0,1,2,3}}, to_apply=%add"
    text = f"{head}\n{line}\n}}\n\nENTRY %main (x: f32[4]) -> f32[4] {{\n{other}\n}}"
    assert exchanges_in(text) == [Exchange("reduce-scatter", 36, 4), Exchange("all-reduce", 16, 4)]


def test_an_exchange_that_stands_in_several_computations_counts_once() -> None:
    gather = "  %g = f32[4]{0} all-gather(%x), replica_groups={{0,1}}\n}"
    begins = "%fused_computation.1 (param_0: f32[2]) -> (f32[2], f32[4], s32[2]) {"
    goes_on = "%async_collective_fusion.2 (param_0: f32[2], param_1: f32[4], param_2: s32[2]) -> (f32[4], f32[8]) {"
    ends = "%fused_computation.3 (param_0: f32[2], param_1: f32[4], param_2: s32[2]) -> f32[4] {"
    entry = "ENTRY %main (batch: s32[2]) -> f32[4] {"
    assert exchanges_in(f"{begins}\n{gather}\n{goes_on}\n{gather}\n{ends}\n{gather}") == [Exchange("all-gather", 16, 2)]
    assert exchanges_in(f"{ends}\n{gather}\n{begins}\n{gather}") == [Exchange("all-gather", 16, 2)]
    assert exchanges_in(f"{entry}\n{gather}") == [Exchange("all-gather", 16, 2)]


@pytest.mark.parametrize(
    ("condition", "rounds"),
    [
        ("  %n = u32[]{:T(128)} constant(4)\n  ROOT %c = pred[] compare(%i, %n), direction=LT", 4),
        ("  %n = s32[] constant(3)\n  ROOT %c = pred[] compare(%i, %n), direction=LT, metadata={}", 3),
        ("  ROOT %c = pred[] compare(%i, %n), direction=LT", 1),  # nobody knows how often
        ("  %n = s32[] constant(3)\n  ROOT %c = pred[] compare(%i, %n), direction=GE", 1),
    ],
)
def test_an_exchange_in_a_loop_counts_each_time(condition: str, rounds: int) -> None:
    fused = "%in_body (x: f32[4]) -> f32[4] {\n  %p = f32[4]{0} collective-permute(%x), source_target_pairs={{0,1},{1,0}}\n}"
    body = "%body.1 (x: f32[4]) -> f32[4] {\n  %f = f32[4]{0} fusion(%x), kind=kCustom, calls=%in_body\n}"
    loop = "  %w = f32[4]{0} while(%x), condition=%cond.1, body=%body.1, metadata={}"
    gather = "  %g = f32[4]{0} all-gather(%w), replica_groups={{0,1}}"
    ends = f"%cond.1 (x: f32[4]) -> pred[] {{\n{condition}\n}}"
    text = f"{fused}\n{body}\n{ends}\nENTRY %main (x: f32[4]) -> f32[4] {{\n{loop}\n{gather}\n}}"
    assert exchanges_in(text) == [Exchange("collective-permute", 16, 0)] * rounds + [Exchange("all-gather", 16, 2)]


def test_a_ring_on_one_group_and_between_groups() -> None:
    chip = CHIPS["h100"]  # 8 joined by links of 450e9 bytes/s, 50e9 beyond; 80 % of both
    assert all_reduce_seconds(chip, 9e9, 1) == 0
    assert math.isclose(all_reduce_seconds(chip, 9e9, 2), 9e9 / 360e9)
    assert math.isclose(all_reduce_seconds(chip, 9e9, 8), 1.75 * 9e9 / 360e9)
    assert math.isclose(all_reduce_seconds(chip, 9e9, 16), 1.75 * 9e9 / 360e9 + 9e9 / 8 / 40e9)


@pytest.mark.parametrize(
    ("work", "bound", "step"),
    [
        ({"flops": 197e12, "memory_bytes": 0.0, "exchanged_bytes": 0.0}, "compute", 2.0),
        ({"flops": 0.0, "memory_bytes": 800e9, "exchanged_bytes": 0.0}, "memory", 1.25),
        ({"flops": 0.0, "memory_bytes": 0.0, "exchanged_bytes": 160e9}, "network", 1.0),
        ({"flops": 197e12, "memory_bytes": 800e9, "exchanged_bytes": 160e9}, "compute", 3.0),
    ],
)
def test_what_takes_longest(work: dict[str, float], bound: str, step: float) -> None:
    times = times_of(CHIPS["v5e"], **work, num_devices=2)
    assert times.bound == bound
    assert math.isclose(times.step, step)


def test_scaling_goes_by_powers_of_two_and_never_up() -> None:
    rows = scaling(CHIPS["v5e"], flops=1e12, memory_bytes=1e9, exchanged_bytes=1e8, most=1024)
    assert [n for n, _, _ in rows] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    efficiencies = [efficiency for _, _, efficiency in rows]
    assert efficiencies[0] == 1
    assert efficiencies == sorted(efficiencies, reverse=True)
    # From 512 devices on there are several slices; each device sends 1/256 of the sum over the network.
    assert efficiencies[-1] < efficiencies[-2] < efficiencies[-3]
