"""The benchmark of training: who takes part, what its tables say, and what becomes of a contender that dies."""

import argparse
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import training
from _rounds import Contender, ContenderError
from contenders._cases import CASES, DATA, GPU_CASES, GPU_DATA, data
from contenders._energy import Counter, energy, used

EVERYWHERE = {None, "tensorflow", "torch"}


def options(**chosen: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"all_contenders": False, "contenders": None} | chosen)


def result(losses: dict[str, float | None], **figures: Any) -> dict[str, Any]:
    contenders = {
        name: {"first_loss": loss, "seconds": [0.2, 0.4], "processor": [0.3, 0.3], "libraries": {}, "failed": None} | figures
        for name, loss in losses.items()
    }
    return {"case": "cnn", "replicas": 1, "batch": 128, "steps": 2, "contenders": contenders}


@pytest.mark.parametrize("name", CASES)
def test_examples_and_labels_of_a_case(name: str) -> None:
    case = CASES[name]
    x, y = data(case, 2)
    again, _ = data(case, 2)
    np.testing.assert_array_equal(x, again)
    assert x.shape == (2 * case.batch, *case.shape)
    assert (x.dtype, y.dtype) == (case.dtype, np.int32)
    assert len(x) == len(y)
    assert case.batch % 2 == 0, "two replicas take equal shares"
    assert y.min() == 0
    assert 1 <= y.max() < 256
    assert {*DATA} <= {*CASES}


@pytest.mark.parametrize("name", GPU_CASES)
def test_examples_of_a_case_for_a_gpu(name: str) -> None:
    case = GPU_CASES[name]
    x, y = data(case, 1)
    assert x.shape == (case.batch, *case.shape)
    assert (x.dtype, y.dtype) == (case.dtype, np.int32)
    assert (case.gpu, case.policy) == (True, "mixed_bfloat16")
    assert y.shape == ((case.batch, 1024) if name == "gpt2" else (case.batch,))
    assert {*GPU_DATA} <= {*GPU_CASES}


def test_cases_for_a_gpu_take_part_only_if_they_are_named() -> None:
    assert not any(case.gpu for case in CASES.values())
    assert not {*CASES} & {*GPU_CASES}


def test_contenders_share_a_gpu() -> None:
    peers = training.chosen(GPU_CASES["gpt2"], {None, "torch"}, options(contenders=["Replicant", "PyTorch", "hand-written"]))
    environment = training.gpu_environment(peers, 0.6, "/folder")
    assert environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.200"  # three with JAX
    assert environment["XLA_FLAGS"].endswith("--xla_gpu_per_fusion_autotune_cache_dir=/folder")
    assert training.gpu_environment([], 2.0, "/folder")["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.750"


def test_what_cannot_be_measured_is_told_before_anything_starts() -> None:
    tiny, gpt2 = CASES["tiny"], GPU_CASES["gpt2"]
    some, found = {"tiny": [*training.CONTENDERS], "gpt2": [*training.CONTENDERS]}, {"gpu": "NVIDIA H100"}
    assert training.nothing_to_measure([(tiny, 1), (gpt2, 1)], some, found) is None
    assert training.nothing_to_measure([(tiny, 1), (gpt2, 1)], some, {"gpu": None}) == (
        "gpt2 need an NVIDIA GPU, and nvidia-smi shows none. Leave them out of --models."
    )
    assert training.nothing_to_measure([(tiny, 2)], some, found) == (
        "gpt2 are measured on one GPU, with one replica. Add 1 to --replicas."
    )
    told = training.nothing_to_measure([(tiny, 1)], {"tiny": []}, {})
    assert told is not None
    assert told.startswith("no contender for tiny. --contenders takes parts of: Replicant fit, Replicant loop, TensorFlow")


def test_a_table_of_a_gpu() -> None:
    told = training.table(result({training.FIT: 2.3, "PyTorch": 2.3}, memory=5e6, gpu_memory=7e6, joules=[]) | {"case": "cnn_bf16"})
    assert told.startswith("**Fashion-MNIST CNN, bfloat16**, one GPU, global batch 128")
    assert "peak memory, MB | GPU memory, MB |" in told
    assert "| 5 | 7 |" in told


def test_compiled_peers_take_part_where_a_case_or_the_user_asks() -> None:
    few = [peer.name for peer in training.chosen(CASES["cnn"], EVERYWHERE, options())]
    assert few == [peer.name for peer in training.CONTENDERS if not peer.compiled]
    assert training.chosen(CASES["unet"], EVERYWHERE, options()) == [*training.CONTENDERS]
    assert training.chosen(CASES["cnn"], EVERYWHERE, options(all_contenders=True)) == [*training.CONTENDERS]


def test_peers_without_their_library_are_left_out_and_parts_of_names_choose() -> None:
    assert {peer.needs for peer in training.chosen(CASES["vit"], {None, "torch"}, options())} == {None, "torch"}
    asked = training.chosen(CASES["vit"], EVERYWHERE, options(contenders=["replicant", "torch.compile"]))
    assert [peer.name for peer in asked] == [training.FIT, training.LOOP, "PyTorch, torch.compile"]


def test_the_estimate_counts_starts_and_rounds() -> None:
    case, peers = CASES["cnn"], training.CONTENDERS[:2]
    starts = sum(peer.start for peer in peers)
    three = training.estimate(case, peers, 3)
    assert three == pytest.approx(starts + 2 * 5 * case.steps * case.milliseconds / 1e3)
    assert training.estimate(case, peers, 3, steps=1) < three < training.estimate(case, peers, 15)


def test_an_unknown_model_is_named() -> None:
    assert training.listed(CASES)("unet,vit") == ["unet", "vit"]
    with pytest.raises(argparse.ArgumentTypeError, match=r"unknown: vgg \(choose from cnn, .*vit\)"):
        training.listed(CASES)("unet,vgg")


def test_a_contender_whose_first_loss_differs_is_named() -> None:
    assert not training.differing(result({"a": 2.3, "b": 2.3002, "c": 2.3001}))
    told = training.differing(result({"a": 2.3, "b": 2.3, "c": 2.3, "far": 2.31, "nan": math.nan, "dead": None}))
    assert told == "**First loss more than 0.2 % away from the median of all, 2.3000:** far, nan."
    assert told in training.table(result({"a": 2.3, "b": 2.3, "c": 2.3, "far": 2.31, "nan": math.nan}))
    assert not training.differing(result({"dead": None}))


def test_a_table_has_columns_for_what_the_machine_tells() -> None:
    losses: dict[str, float | None] = {training.FIT: 2.3, "PyTorch": 2.3}
    bare = training.table(result(losses))
    assert "memory" not in bare
    assert "J/step" not in bare
    full = training.table(result(losses, memory=1_234_000_000, joules=[4.0, 6.0])).splitlines()
    assert full[2].startswith(
        "| | ms/step | least | examples/s | processor ms/step | peak memory, MB | J/step | fit is x times as fast"
    )
    assert full[4].startswith("| Replicant fit | 150 | 100 | 853 | 150 | 1,234 | 2.5 |  |  | 2.3000 |")
    assert full[5].startswith("| PyTorch | 150 | 100 | 853 | 150 | 1,234 | 2.5 | 1.00 [1.00, 1.00] | - | 2.3000 |")
    assert {line.count("|") for line in full[2:]} == {11}


def test_a_failed_contender_has_a_row_with_its_reason() -> None:
    found = result({training.FIT: 2.3, "PyTorch": None})
    found["contenders"]["PyTorch"] |= {"failed": "died: ValueError: 1 | 2", "seconds": [], "processor": []}
    rows = training.table(found).splitlines()
    assert rows[-1].startswith("| PyTorch | failed: died: ValueError: 1 \\| 2 |")
    assert rows[-1].replace("\\|", "").count("|") == rows[2].count("|")


def counters(folder: Path, joules: dict[str, tuple[str, int]]) -> Path:
    for zone, (name, value) in joules.items():
        (folder / zone).mkdir(exist_ok=True)
        for file, text in {"name": name, "energy_uj": value, "max_energy_range_uj": 9_000_000}.items():
            (folder / zone / file).write_text(f"{text}\n")
    return folder


def test_energy_is_that_of_all_packages_without_their_parts(tmp_path: Path) -> None:
    zones = {"intel-rapl:0": ("package-0", 5), "intel-rapl:0:0": ("core", 3), "intel-rapl:1": ("package-1", 7), "dtpm": ("psys", 9)}
    assert energy(counters(tmp_path, zones)) == {"intel-rapl:0": Counter(5, 9_000_000), "intel-rapl:1": Counter(7, 9_000_000)}


def test_energy_of_a_machine_that_does_not_tell(tmp_path: Path) -> None:
    assert energy(tmp_path / "absent") == {}
    (counters(tmp_path, {"intel-rapl:0": ("package-0", 5)}) / "intel-rapl:0" / "energy_uj").unlink()
    assert energy(tmp_path) == {}
    assert used({}, {}) is None
    assert used({"a": Counter(1, 9)}, {}) is None
    assert used({"a": Counter(8_000_000, 9_000_000)}, {"a": Counter(1_000_000, 9_000_000)}) == 2.0


DEATHS = {
    "raise ValueError('no such weights')": r"^died: ValueError: no such weights$",
    "sys.exit('needs a compiler')": r"^died: needs a compiler$",
    "os.kill(os.getpid(), 9)": r"^killed by SIGKILL: begun$",
    "sys.stdin.read()": r"^no answer within 1 s$",
}


@pytest.mark.parametrize("program", DEATHS)
def test_a_contender_that_ends_is_told_with_its_last_line(program: str, tmp_path: Path) -> None:
    script = tmp_path / "contender.py"
    script.write_text(f"import os, sys\nprint('begun', file=sys.stderr, flush=True)\n{program}\n")
    contender = Contender(sys.executable, str(script), [])
    with pytest.raises(ContenderError, match=DEATHS[program]):
        contender.answer(1 if "stdin" in program else 30)
    contender.stop()


def test_a_contender_that_ignores_the_end_of_its_input_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "contender.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    contender = Contender(sys.executable, str(script), [])
    pid: Any = contender.answer(30)
    before = signal.getsignal(signal.SIGINT)
    contender.close_input()
    contender.kill(0)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_summary_compares_with_the_fastest_form_of_each_library() -> None:
    names = ["Replicant fit", "Replicant loop", "PyTorch", "PyTorch, torch.compile", "hand-written JAX"]
    losses: dict[str, float | None] = {**dict.fromkeys(names, 2.3), "PyTorch, torch.compile": 2.4}
    found = result(losses)
    seconds = {"Replicant loop": [0.1, 0.2], "PyTorch": [0.6, 0.8], "PyTorch, torch.compile": [0.3, 0.3], "hand-written JAX": [0.1]}
    for name, times in seconds.items():
        found["contenders"][name]["seconds"] = times
    found["contenders"]["hand-written JAX"]["failed"] = "died"
    assert training.summary([found]).splitlines()[2:] == [
        "| Fashion-MNIST CNN of the guides | 1 | 150 | 75 | -, - | 1.12, 2.25 | -, - | -, - |",
        "",
        "* cnn, 1: **First loss more than 0.2 % away from the median of all, 2.3000:** PyTorch, torch.compile.",
    ]
