"""Random damage to TensorFlow's checkpoints: an error of ours or the right values, and little memory.

Files that were changed anywhere must give the values of the sound file. In files whose checksums were made again, as a stranger
can, anything may be said: then there must be no other error, and no memory for what a file only claims.
"""

import contextlib
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import replicant
from replicant import errors
from replicant.checkpoint.tensorflow import checkpoint_state, open_checkpoint
from replicant.checkpoint.tensorflow.files._slice_key import slice_key

from . import _tensorflow_files as tf

FILES = Path(__file__).parents[1] / "tensorflow_files" / "bundles"
MOST_BYTES = 20 << 20  # of memory; the files have up to 20 kB

# A folder of the recorded files, the prefix in it, and the file that is changed.
RECORDED = [
    ("variables/dtypes", "all", "all.index"),
    ("variables/dtypes", "all", "all.data-00000-of-00001"),
    ("variables/sharded_callback", "ckpt", "ckpt.index"),
    ("dist/ps", "dense-1", "dense-1.index"),
    ("dist/ps", "words-1", "words-1.data-00002-of-00003"),
    ("crafted", "snappy", "snappy.index"),
    ("crafted", "small_blocks", "small_blocks.index"),
    ("v1/format_v1", "model.ckpt", "model.ckpt"),
    ("saver_v1", "string", "string"),
    ("state/relative", "", "checkpoint"),
]
EDGES = [
    0,
    1,
    2,
    3,
    4,
    24,
    63,
    64,
    65,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    1 << 40,
    1 << 59,
    1 << 62,
    (1 << 63) - 1,
    -1,
    -8,
    -(1 << 63),
]
integers = st.sampled_from(EDGES) | st.integers(-(1 << 63), (1 << 63) - 1)

quick = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
thorough = settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))


def contents(checkpoint):
    """All that can be read, with one of the parts of each tensor."""
    found = {}
    for key in checkpoint.keys():  # noqa: SIM118
        value = checkpoint.read(key)
        part = tuple(slice(0, (size + 1) // 2) for size in value.shape)
        np.testing.assert_array_equal(checkpoint.read_part(key, part), value[part])
        found[key] = (value.dtype.name, value.shape, repr(value.tolist()))
    return found, checkpoint.graph()


@contextlib.contextmanager
def little_memory():
    """Check that the block takes little memory, also of what is only reserved."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


@st.composite
def damage(draw, data):
    """The bytes, with changes in one place or a few."""
    out = bytearray(data)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
        at = draw(st.integers(0, max(len(out) - 1, 0)))
        kind = draw(st.sampled_from(["flip", "set", "insert", "cut", "end", "number", "copy"]))
        if kind == "end":
            del out[at:]
        elif kind == "flip" and out:
            out[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "set" and out:
            out[at] = draw(st.integers(0, 255))
        elif kind == "insert":
            out[at:at] = draw(st.binary(min_size=1, max_size=9))
        elif kind == "cut":
            del out[at : at + draw(st.integers(1, 40))]
        elif kind == "number":
            number = tf.varint(draw(integers))
            out[at : at + len(number)] = number
        else:
            out[at:at] = out[at : at + draw(st.integers(1, 40))]
    return bytes(out)


def try_changed(tmp_path, data):
    folder, prefix, name = data.draw(st.sampled_from(RECORDED))
    place = tmp_path / folder.replace("/", "-")
    if not place.exists():
        shutil.copytree(FILES / folder, place)
    sound = contents(open_checkpoint(FILES / folder / prefix))
    original = (FILES / folder / name).read_bytes()
    (place / name).write_bytes(data.draw(damage(original)))
    try:
        with little_memory():
            found = open_checkpoint(place / prefix)
            told = found and contents(found)
    except errors.ReplicantError:
        told = None
    finally:
        (place / name).write_bytes(original)
    if name == "checkpoint":  # it has no checksum, so it can name another checkpoint of the folder, or none
        return
    assert told in (None, sound)


@given(st.data())
@quick
def test_a_few_changed_files(tmp_path_factory, data):
    try_changed(tmp_path_factory.getbasetemp(), data)


@pytest.mark.long
@given(st.data())
@thorough
def test_changed_files(tmp_path_factory, data):
    try_changed(tmp_path_factory.getbasetemp(), data)


CUT = np.arange(8, dtype=np.int64)
SOUND = {
    "_CHECKPOINTABLE_OBJECT_GRAPH": np.array(tf.message((1, tf.message((1, tf.message((1, 0), (2, b"self")))))), object),
    "cut": ((8,), np.int64, [(((0, 4),), CUT[:4]), (((4, 4),), CUT[4:])]),
    "kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "words": np.array([b"one", b"two"], object),
}
numbers_of_dtypes = st.integers(0, 40) | integers
sizes = st.lists(st.sampled_from([0, 1, 2, 3, 4, 8]) | integers, max_size=4)
ranges = st.lists(
    st.tuples(st.sampled_from([0, 1, 4]) | integers, st.none() | st.sampled_from([0, 1, 4, 8]) | integers), max_size=3
)


@st.composite
def entries(draw):
    """A record of a tensor that can say anything."""
    return tf.entry(
        draw(numbers_of_dtypes),
        draw(sizes),
        draw(st.sampled_from([0, 4, 8, 24, 32, 64]) | integers),
        shard=draw(st.sampled_from([0, 0, 0, 1]) | integers),
        offset=draw(st.sampled_from([0, 0, 32, 64]) | integers),
        checksum=draw(st.integers(0, (1 << 32) - 1)),
        slices=[tf.extents(*each) for each in draw(st.lists(ranges, max_size=3))],
    )


def try_forged(tmp_path, data):
    def forge(records):
        for _ in range(data.draw(st.integers(1, 3))):
            key = data.draw(st.sampled_from(sorted(records)))
            kind = data.draw(st.sampled_from(["entry", "damage", "slice", "drop", "new"]))
            if kind == "drop":
                del records[key]
            elif kind == "damage":
                records[key] = data.draw(damage(records[key]))
            elif kind == "slice":
                own = data.draw(ranges)
                records[slice_key(b"cut", tuple((a, -1 if n is None else n) for a, n in own))] = data.draw(entries())
            else:
                records[key if kind == "entry" else data.draw(st.binary(max_size=5))] = data.draw(entries())
            if not records:
                return

    path = tf.write_bundle(tmp_path / "forged", SOUND, changes=forge, per_block=data.draw(st.sampled_from([1, 2, 100])))
    with little_memory(), contextlib.suppress(errors.ReplicantError):
        bundle = open_checkpoint(path)
        bundle.keys()
        for look in (bundle.shape, bundle.dtype, bundle.read, lambda _: bundle.graph()):
            for key in SOUND:
                with contextlib.suppress(errors.ReplicantError):
                    look(key)
        for key in SOUND:
            with contextlib.suppress(errors.ReplicantError):
                bundle.read_part(key, tuple(slice(0, min(size, 2)) for size in bundle.shape(key)))


@given(st.data())
@quick
def test_a_few_forged_bundles(tmp_path_factory, data):
    try_forged(tmp_path_factory.getbasetemp(), data)


@pytest.mark.long
@given(st.data())
@thorough
def test_forged_bundles(tmp_path_factory, data):
    try_forged(tmp_path_factory.getbasetemp(), data)


fields_of_tensors = st.tuples(st.integers(1, 18), st.binary(max_size=32) | integers).map(tf.message)


def try_forged_saver_file(tmp_path, data):
    meta = tf.saver_meta(("x", data.draw(numbers_of_dtypes), data.draw(sizes), data.draw(st.lists(ranges, max_size=3))))
    tensor = data.draw(st.binary(max_size=12) | fields_of_tensors)
    records = [tf.saver_slice("x", data.draw(ranges), tensor) for _ in range(data.draw(st.integers(0, 2)))]
    if data.draw(st.booleans()):
        meta = data.draw(damage(meta))
    path = tmp_path / "forged.ckpt"
    path.write_bytes(tf.table(sorted({b"": meta, **dict(records)}.items())))
    with little_memory(), contextlib.suppress(errors.ReplicantError):
        checkpoint = open_checkpoint(path)
        for key in checkpoint.keys():  # noqa: SIM118
            with contextlib.suppress(errors.ReplicantError):
                checkpoint.read(key)


@given(st.data())
@quick
def test_a_few_forged_files_of_the_first_saver(tmp_path_factory, data):
    try_forged_saver_file(tmp_path_factory.getbasetemp(), data)


@pytest.mark.long
@given(st.data())
@thorough
def test_forged_files_of_the_first_saver(tmp_path_factory, data):
    try_forged_saver_file(tmp_path_factory.getbasetemp(), data)


@given(st.binary(max_size=60))
@quick
def test_any_state_file(tmp_path_factory, text):
    folder = tmp_path_factory.getbasetemp() / "states"
    folder.mkdir(exist_ok=True)
    for prefix in (b"", b'model_checkpoint_path: "'):
        (folder / "checkpoint").write_bytes(prefix + text)
        with contextlib.suppress(errors.ReplicantError):
            checkpoint_state(folder)
        with contextlib.suppress(errors.ReplicantError):
            replicant.list_variables(folder)
