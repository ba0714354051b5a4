"""Two real workers that train on the pictures in one folder: the numbers of one process, and every file once."""

import sys
from pathlib import Path

import numpy as np
import pytest

import replicant

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _folder_training  # noqa: E402
import _group  # noqa: E402

EVERY_FILE = [(i, int(i % 2 == 0)) for i in range(_folder_training.NUM_FILES)]  # "cat" is class 0 and has the odd numbers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    _folder_training.write(folder)
    return folder


@pytest.fixture(scope="module")
def alone(folder):
    """What one process gets."""
    return _folder_training.train(replicant.OneDeviceStrategy("cpu:0"), folder)


@pytest.fixture(scope="module", params=[1, 2], ids=["one device", "two devices"])
def answers(request, folder, tmp_path_factory):
    """What both workers wrote."""
    environ = {"FOLDER": str(folder), "DEVICES": str(request.param)}
    return _group.Group(HERE / "_worker_folders.py", 2, tmp_path_factory.mktemp("answers"), environ=environ).ended_well()


def test_training_gives_the_numbers_of_one_process(alone, answers):
    for answer in answers:
        np.testing.assert_allclose(answer["losses"], alone["losses"], rtol=1e-5)
        np.testing.assert_allclose(answer["evaluated"], alone["evaluated"], rtol=1e-5)
        for mine, its in zip(answer["weights"], alone["weights"], strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-5, atol=1e-6)


def test_predictions_are_those_of_one_process(alone, answers):
    for answer in answers:
        np.testing.assert_allclose(answer["predicted"], alone["predicted"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", ["AUTO with a seed", "AUTO without a seed", "FILE"])
def test_every_file_is_read_once(alone, answers, how):
    assert sorted(map(tuple, alone["seen"][how])) == EVERY_FILE
    shares = [list(map(tuple, answer["seen"][how])) for answer in answers]
    assert all(shares)
    assert sorted(shares[0] + shares[1]) == EVERY_FILE


def test_every_text_is_read_once(answers):
    shares = [answer["texts"] for answer in answers]
    assert all(shares)
    assert sorted(shares[0] + shares[1]) == list(range(_folder_training.NUM_FILES))
