"""The file ``checkpoint`` of TensorFlow: what it says, where that is, and what is no such file."""

import os
from pathlib import Path

import numpy as np
import pytest

import replicant
from replicant import errors
from replicant.checkpoint.tensorflow import State, checkpoint_state, open_checkpoint

from . import _tensorflow_files as tf

FILES = Path(__file__).parents[1] / "tensorflow_files" / "bundles"


def test_what_tensorflow_writes():
    folder = FILES / "state/relative"
    assert checkpoint_state(folder) == State(
        newest=str(folder / "ckpt-30"),
        all=(str(folder / "ckpt-20"), str(folder / "ckpt-30")),
        timestamps=(1795868344.4711406, 1795868344.6190581),
        last_preserved=1795868344.3392115,
    )
    folder = FILES / "state/absolute"  # of /models, where nothing is here
    assert checkpoint_state(folder) == State(str(folder / "ck pt-2"), (str(folder / "ck pt-1"), str(folder / "ck pt-2")))
    folder = FILES / "v1/plain"
    assert checkpoint_state(folder).newest == str(folder / "model.ckpt-3000")


def test_nowhere():
    assert checkpoint_state(FILES / "v1") == State()
    assert checkpoint_state(FILES / "nowhere") == State()
    assert checkpoint_state(FILES / "truth.json") == State()


def test_a_folder_of_that_name_is_none(tmp_path):
    replicant.Checkpoint(x=1).write(tmp_path / "checkpoint")
    assert checkpoint_state(tmp_path) == State()
    assert open_checkpoint(tmp_path) is None


TEXTS = {
    r'''model_checkpoint_path: "\303\274\"q\\\'s\n\tck-1"''': "ü\"q\\'s\n\tck-1",  # as TensorFlow writes it
    'model_checkpoint_path: "ü"': "ü",
    "model_checkpoint_path: 'a\"b'": 'a"b',
    'model_checkpoint_path: "a" \'b\'\n  "c"': "abc",
    '# a comment: "x"\nmodel_checkpoint_path: "a#b" # and another': "a#b",
    'model_checkpoint_path:"a";': "a",
    r'model_checkpoint_path: "\x41\x4a\101\u00fc\U0001F600\?\a"': "AJAü😀?\a",
    r'model_checkpoint_path: "\377"': "\udcff",
    'model_checkpoint_path: "a"\nmodel_checkpoint_path: "b"': "b",
}


@pytest.mark.parametrize("text", TEXTS)
def test_strings(tmp_path, text):
    (tmp_path / "checkpoint").write_bytes(text.encode())
    assert checkpoint_state(tmp_path).newest == str(tmp_path / TEXTS[text])


def test_numbers(tmp_path):
    (tmp_path / "checkpoint").write_text(
        "all_model_checkpoint_timestamps: 1.5, all_model_checkpoint_timestamps: -2e9\nlast_preserved_timestamp: 3"
    )
    assert checkpoint_state(tmp_path) == State(None, (), (1.5, -2e9), 3.0)


def test_which_file_an_absolute_path_is(tmp_path):
    there, moved = tmp_path / "there", tmp_path / "moved"
    for folder in (there, moved):
        folder.mkdir()
        tf.write_bundle(folder / "ckpt-1", {"where": np.array(folder.name.encode(), object)})
        (folder / "checkpoint").write_text(f'model_checkpoint_path: "{there}/ckpt-1"\n')
    assert replicant.load_variable(moved, "where") == b"there"  # as TensorFlow: it is a path to a checkpoint that is there
    there.rename(tmp_path / "away")
    assert replicant.load_variable(moved, "where") == b"moved"
    assert replicant.load_variable(tmp_path / "away", "where") == b"there"


def test_a_newest_that_is_not_there(tmp_path):
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/models/ckpt-7"\n')
    assert checkpoint_state(tmp_path).newest == "/models/ckpt-7"
    with pytest.raises(errors.CheckpointError, match=r"says that the newest checkpoint is '/models/ckpt-7', but it is not there"):
        open_checkpoint(tmp_path)


NO_STATES = {
    'model_checkpoint_path: "a': "line 1 cannot be parsed",
    'model_checkpoint_path: "a"\n}': "line 2 cannot be parsed",
    '"a"': "line 1 has a value without a name",
    'model_checkpoint_path: "a" 5': "line 1 has a value without a name",
    "last_preserved_timestamp: 1 2": "line 1 has a value without a name",
    "model_checkpoint_path:": "model_checkpoint_path has no value",
    'model_checkpoint_path: all_model_checkpoint_paths: "a"': "model_checkpoint_path has no value",
    "model_checkpoint_path: 5": "it says model_checkpoint_path: 5.0, which TensorFlow does not write",
    'last_preserved_timestamp: "a"': "it says last_preserved_timestamp: 'a', which TensorFlow does not write",
    'other: "a"': "it says other: 'a', which TensorFlow does not write",
    "last_preserved_timestamp: 1.2.3": r"line 1 has '1\.2\.3' in place of a number",
    "\0\1\2": "line 1 cannot be parsed",
}


@pytest.mark.parametrize("text", NO_STATES)
def test_what_is_no_state(tmp_path, text):
    (tmp_path / "checkpoint").write_text(text)
    with pytest.raises(errors.DamagedCheckpointError, match=rf"checkpoint is damaged: {NO_STATES[text]}"):
        checkpoint_state(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "checkpoint")
    with pytest.raises(errors.DamagedCheckpointError, match=r"checkpoint: the bytes could not be read \(.* not a regular file"):
        checkpoint_state(tmp_path)


def test_a_large_file(tmp_path, monkeypatch):
    monkeypatch.setattr("replicant.checkpoint.tensorflow._state._MOST_BYTES", 10)
    (tmp_path / "checkpoint").write_text("#" * 11)
    with pytest.raises(
        errors.CheckpointError, match="checkpoint has more than 10 bytes, so it is not a list of TensorFlow's checkpoints"
    ):
        checkpoint_state(tmp_path)
