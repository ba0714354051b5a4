"""Which settings `replicant run` chooses, as a table, and its mistakes in words."""

from pathlib import Path

import pytest

from replicant.errors import ArgumentError, ConfigurationError
from replicant.launch import _cpu
from replicant.launch._cpu import Machine, Wishes, check_preload, choose, library_folders, parse_cores, shown_cores

KEEP = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=2147483647"}


def machine(*accelerators: str, platform: str = "linux", folders: tuple[Path, ...] = ()) -> Machine:
    return Machine(platform, frozenset({0, 1, 4}), accelerators, folders)


CASES = [
    ({}, {}, KEEP, {}),
    ({}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}, {}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}),
    ({}, {"GLIBC_TUNABLES": ""}, {}, {"GLIBC_TUNABLES": ""}),
    ({}, {"MALLOC_TRIM_THRESHOLD_": "1", "MALLOC_ARENA_MAX": "2"}, {}, {"MALLOC_ARENA_MAX": "2", "MALLOC_TRIM_THRESHOLD_": "1"}),
    ({}, {"LD_PRELOAD": "/lib/libjemalloc.so.2"}, {}, {"LD_PRELOAD": "/lib/libjemalloc.so.2"}),
    ({}, {"LD_PRELOAD": "/lib/libother.so"}, KEEP, {"LD_PRELOAD": "/lib/libother.so"}),
    ({"threads": 3}, {}, KEEP | {"NPROC": "3"}, {}),
    ({"threads": 3}, {"NPROC": "3"}, KEEP, {"NPROC": "3"}),
    ({"threads": 3}, {"NPROC": ""}, KEEP | {"NPROC": "3"}, {}),
    ({"devices": 2}, {}, KEEP | {"JAX_NUM_CPU_DEVICES": "2"}, {}),
    ({"devices": 2}, {"JAX_NUM_CPU_DEVICES": "2"}, KEEP, {"JAX_NUM_CPU_DEVICES": "2"}),
    ({"devices": 4}, {"REPLICANT_FUSE_REPLICAS": "0"}, KEEP | {"JAX_NUM_CPU_DEVICES": "4", "NPROC": "16"}, {}),
    ({"devices": 1}, {"REPLICANT_FUSE_REPLICAS": "0"}, KEEP | {"JAX_NUM_CPU_DEVICES": "1"}, {}),
    (
        {"devices": 4, "threads": 20},
        {"REPLICANT_FUSE_REPLICAS": "0"},
        KEEP | {"JAX_NUM_CPU_DEVICES": "4", "NPROC": "20"},
        {},
    ),
    ({"devices": 4}, {"REPLICANT_FUSE_REPLICAS": "0", "NPROC": "9"}, KEEP | {"JAX_NUM_CPU_DEVICES": "4"}, {"NPROC": "9"}),
    ({"unfused": True}, {}, KEEP | {"REPLICANT_FUSE_REPLICAS": "0"}, {}),
    (
        {"devices": 4, "unfused": True},
        {},
        KEEP | {"REPLICANT_FUSE_REPLICAS": "0", "JAX_NUM_CPU_DEVICES": "4", "NPROC": "16"},
        {},
    ),
    ({"unfused": True}, {"REPLICANT_FUSE_REPLICAS": "0"}, KEEP, {}),
    ({"cores": frozenset({1, 4})}, {}, KEEP, {}),
    ({"cache": "/programs"}, {}, KEEP | {"REPLICANT_COMPILATION_CACHE": "/programs"}, {}),
    ({}, {"REPLICANT_COMPILATION_CACHE": "0"}, KEEP, {"REPLICANT_COMPILATION_CACHE": "0"}),
]


@pytest.mark.parametrize(("wishes", "environ", "variables", "kept"), CASES)
def test_what_is_chosen(wishes: dict, environ: dict, variables: dict, kept: dict) -> None:
    chosen = choose(Wishes(**wishes), environ, machine())
    assert (chosen.variables, chosen.kept) == (variables, kept)


def test_accelerators_have_their_own_memory() -> None:
    assert choose(Wishes(), {}, machine("0", "1")).variables == {}


@pytest.mark.parametrize("name", ["libjemalloc.so.2", "libjemalloc.so"])
def test_an_allocator_is_found_by_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    here = machine(folders=(tmp_path / "empty", tmp_path))
    library = str(tmp_path / name)
    assert choose(Wishes(allocator="jemalloc"), {}, here).variables == {"LD_PRELOAD": library}
    assert choose(Wishes(allocator=library), {}, here).variables == {"LD_PRELOAD": library}
    assert choose(Wishes(allocator="jemalloc"), {"LD_PRELOAD": "/lib/a.so"}, here).variables == {
        "LD_PRELOAD": f"{library}:/lib/a.so"
    }
    chosen = choose(Wishes(allocator="jemalloc"), {"LD_PRELOAD": f"/lib/a.so {library}"}, here)
    assert (chosen.variables, chosen.kept) == ({}, {"LD_PRELOAD": f"/lib/a.so {library}"})


WRONG = [
    (
        {"allocator": "fast"},
        {},
        "--allocator 'fast' is not known. It is one of jemalloc, mimalloc, tcmalloc, or the path of a library.",
    ),
    ({"allocator": "no/lib.so"}, {}, "--allocator no/lib.so: there is no such file. Give the path of a shared library."),
    (
        {"allocator": "mimalloc"},
        {},
        (
            "--allocator mimalloc: none of libmimalloc.so.3, libmimalloc.so.2, libmimalloc.so is in /a, /b. "
            "Install mimalloc, or give the path of its library."
        ),
    ),
    ({"threads": 2}, {"NPROC": "4"}, "--threads 2: the environment sets NPROC=4. Unset it, or leave --threads out."),
    (
        {"devices": 2},
        {"JAX_NUM_CPU_DEVICES": "4"},
        "--devices 2: the environment sets JAX_NUM_CPU_DEVICES=4. Unset it, or leave --devices out.",
    ),
    (
        {"devices": 2},
        {"XLA_FLAGS": "--a=1 --xla_force_host_platform_device_count=2"},
        (
            "--devices 2: XLA_FLAGS contains --xla_force_host_platform_device_count=2, which also sets the number. "
            "Remove one of the two."
        ),
    ),
    (
        {"cache": "/a"},
        {"REPLICANT_COMPILATION_CACHE": "0"},
        "--cache /a: the environment sets REPLICANT_COMPILATION_CACHE=0. Unset it, or leave --cache out.",
    ),
    (
        {"unfused": True},
        {"REPLICANT_FUSE_REPLICAS": "1"},
        "--unfused: the environment sets REPLICANT_FUSE_REPLICAS=1. Unset it, or leave --unfused out.",
    ),
    ({"cores": frozenset({0, 2, 3, 9})}, {}, "--cores 0,2-3,9: this process may not use 2-3,9. Choose from 0-1,4."),
]


@pytest.mark.parametrize(("wishes", "environ", "message"), WRONG)
def test_wishes_that_cannot_be_met(wishes: dict, environ: dict, message: str) -> None:
    with pytest.raises(ArgumentError) as found:
        choose(Wishes(**wishes), environ, machine(folders=(Path("/a"), Path("/b"))))
    assert str(found.value) == message


@pytest.mark.parametrize(("name", "option"), [("threads", "--threads"), ("devices", "--devices")])
@pytest.mark.parametrize("value", [0, -1, 1025])
def test_numbers(name: str, option: str, value: int) -> None:
    with pytest.raises(ArgumentError) as found:
        Wishes(**{name: value})
    assert str(found.value) == f"{option} must be from 1 to 1024. Got {value}."


def test_two_allocators(tmp_path: Path) -> None:
    library = tmp_path / "libjemalloc.so.2"
    library.touch()
    with pytest.raises(ArgumentError, match=r"LD_PRELOAD=/b/libtcmalloc.so.4 already loads one. Unset it, or leave"):
        choose(Wishes(allocator=str(library)), {"LD_PRELOAD": "/b/libtcmalloc.so.4"}, machine())


def test_a_path_that_the_loader_would_cut(tmp_path: Path) -> None:
    library = tmp_path / "my lib.so"
    library.touch()
    with pytest.raises(ArgumentError, match=r"my lib.so' has a space or colon, which LD_PRELOAD cannot contain. Make a link"):
        choose(Wishes(allocator=str(library)), {}, machine())


def test_virtual_devices_where_jax_would_use_gpus() -> None:
    with pytest.raises(ArgumentError) as found:
        choose(Wishes(devices=2), {}, machine("0", "1"))
    assert str(found.value) == (
        "--devices 2 makes virtual devices of the CPU, but JAX would use the GPUs of this machine (0, 1). "
        "Set JAX_PLATFORMS=cpu, or leave --devices out."
    )


def test_another_system() -> None:
    with pytest.raises(ConfigurationError) as found:
        choose(Wishes(), {}, machine(platform="darwin"))
    assert str(found.value) == (
        "replicant run needs Linux, because it sets cores and allocators; this system is 'darwin'. "
        "Start the program with python instead."
    )


@pytest.mark.parametrize(
    ("text", "cores"), [("0", {0}), ("0-3", {0, 1, 2, 3}), ("1,3-4,3", {1, 3, 4}), ("7-7", {7}), ("10,2", {2, 10})]
)
def test_lists_of_cores(text: str, cores: set[int]) -> None:
    assert parse_cores(text) == cores
    assert parse_cores(shown_cores(cores)) == cores


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,", "-1", "1-", "1 2", "1-2-3", "\u0661", "0x1"])
def test_what_is_no_list_of_cores(text: str) -> None:
    with pytest.raises(ArgumentError) as found:
        parse_cores(text)
    assert str(found.value) == f"--cores {text!r} is not a list of cores. Write numbers and ranges, as in --cores 0-3,6."


def test_where_allocators_are_looked_for() -> None:
    folders = library_folders({"LD_LIBRARY_PATH": "/own::/more"})
    assert folders[:2] == (Path("/own"), Path("/more"))
    assert Path("/usr/lib") in folders


def test_a_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    library = tmp_path / "libjemalloc.so.2"
    library.write_text("not a library")
    check_preload({})
    with pytest.raises(ConfigurationError, match=r"libjemalloc.so.2 cannot be loaded: .+ Give --allocator the path"):
        check_preload({"LD_PRELOAD": str(library)})


def test_a_library_with_which_an_empty_program_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library does that here: the limit is lower than what any program needs."""
    monkeypatch.setattr(_cpu, "_TRIAL_SECONDS", 0.0001)
    with pytest.raises(ConfigurationError) as found:
        check_preload({"LD_PRELOAD": ""})
    assert (
        str(found.value) == "LD_PRELOAD=: an empty program did not end with it within 0.0001 s. Give --allocator another library."
    )
