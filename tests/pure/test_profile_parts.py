"""The parts of a profile: sets of times, messages of protocol buffers, damaged files, and what must not be asked for."""

import re

import pytest

import replicant
from replicant import errors
from replicant._protobuf import MessageError, fields, messages, text
from replicant.profiling import _of_program
from replicant.profiling._intervals import Times, union
from replicant.profiling._trace import Instruction, is_exchange, kind_of, read

WITHIN = [  # intervals, from, to, how much
    ([], 0, 10, 0),
    ([(1, 1)], 0, 10, 0),
    ([(1, 4)], 0, 10, 3),
    ([(1, 4), (2, 3)], 0, 10, 3),
    ([(3, 6), (1, 4)], 0, 10, 5),
    ([(1, 2), (2, 3)], 0, 10, 2),
    ([(1, 4), (6, 9)], 2, 7, 3),
    ([(1, 4), (6, 9)], 4, 6, 0),
    ([(1, 4)], 5, 2, 0),
    ([(0, 10)], 4, 4, 0),
]


@pytest.mark.parametrize(("intervals", "begin", "end", "expected"), WITHIN)
def test_how_much_of_a_time_belongs_to_a_set(intervals, begin, end, expected):
    assert Times(intervals).within(begin, end) == expected
    assert union([Times([each]) for each in intervals]).within(begin, end) == expected


def test_fields_of_all_wire_types():
    message = memoryview(bytes([0x08, 0x96, 0x01, 0x12, 2, 0x68, 0x69, 0x1D, 1, 2, 3, 4, 0x21, *range(8), 0x12, 1, 0x21]))
    found = [(number, bytes(value) if isinstance(value, memoryview) else value) for number, value in fields(message)]
    assert found == [(1, 150), (2, b"hi"), (3, bytes([1, 2, 3, 4])), (4, bytes(range(8))), (2, b"!")]
    assert text(message, 2) == "hi"
    assert text(message, 7) == ""
    assert [bytes(value) for value in messages(message, 2)] == [b"hi", b"!"]


DAMAGED = [
    (bytes([0x12, 5, 0x68]), "a field of 5 bytes begins at byte 2 of 3"),
    (bytes([0x0B]), "the unknown wire type 3 at byte 1"),
    (bytes([0x08, 0xFF]), "a number has no end before byte 2 of 2"),
    (bytes([0xFF] * 12), "a number has no end before byte 10 of 12"),
    (bytes([0x08, *[0xFF] * 9, 0x02]), "the number at byte 1 has more than 64 bits"),
]


@pytest.mark.parametrize(("data", "message"), DAMAGED)
def test_a_damaged_message(data, message):
    with pytest.raises(MessageError, match=re.escape(message)):
        list(fields(memoryview(data)))


def test_a_file_that_is_no_profile(tmp_path):
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(b"\x0a\xff")
    with pytest.raises(errors.ProfileError, match="has no end before byte 2 of 2"):
        read(path)
    path.write_bytes(b"\x0a\x02\x08\x96")  # whole outside, and cut off inside
    with pytest.raises(errors.ProfileError, match=r"cut off or damaged"):
        read(path)
    path.write_bytes(b"")
    assert read(path).ran == ()


KINDS = [
    (Instruction("fusion", "jit(f)/add"), "x.1", "fusion", False),
    (Instruction(), "all-reduce-start.3", "all-reduce-start", True),
    (Instruction("collective-permute-done"), "cp", "collective-permute-done", True),
    (Instruction("reduce"), "reduce.1", "reduce", False),
    (Instruction("ragged-all-to-all"), "r", "ragged-all-to-all", True),
]


@pytest.mark.parametrize(("instruction", "name", "kind", "exchange"), KINDS)
def test_what_an_operation_does(instruction, name, kind, exchange):
    assert kind_of(instruction, name) == kind
    assert is_exchange(kind) == exchange


@pytest.mark.parametrize("steps", [0, -1, True, 1.5, "10"])
def test_a_wrong_number_of_steps(steps):
    with pytest.raises(errors.ArgumentError, match=f"steps must be a number of steps, 1 or more, or None for all; got {steps!r}"):
        replicant.profile(steps)


def test_a_folder_that_cannot_be_used(tmp_path):
    with pytest.raises(errors.ArgumentError, match=r"replicant\.profile: folder must be a path on this machine"):
        replicant.profile(folder="s3://bucket/profiles")
    (tmp_path / "file").touch()
    with pytest.raises(errors.ProfileError, match=r"the folder .*file cannot be made"), replicant.profile(folder=tmp_path / "file"):
        pass


def test_a_profile_is_read_behind_its_block_and_recorded_once():
    profile = replicant.profile()
    assert str(profile) == "Profile: not recorded yet"
    with pytest.raises(errors.ContextError, match=r"is not recorded yet\. Read it after its `with` block"):
        _ = profile.steps
    with profile:
        assert str(profile) == "Profile: not recorded yet"
        with pytest.raises(errors.ContextError, match="is not recorded yet"):
            _ = profile.operations
    with pytest.raises(errors.ContextError, match=r"has been recorded already\. Make one for each"), profile:
        pass


@pytest.mark.parametrize("value", ["ten", "0", "-1", "1.5", "²"])
def test_a_wrong_number_in_the_environment(value):
    with pytest.raises(
        errors.ConfigurationError, match=f"REPLICANT_PROFILE must be the number of steps .* got '{re.escape(value)}'"
    ):
        _of_program.start({_of_program.STEPS: value})
    _of_program.start({_of_program.STEPS: ""})
