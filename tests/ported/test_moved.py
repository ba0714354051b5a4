"""Programs that TensorFlow has trained for a while: translated, they go on from its checkpoints, and give its next numbers."""

import json
import shutil
from pathlib import Path

import _ported
import numpy as np
import pytest
from _by_hand import changed
from _moved import MOVED

RECORDED = Path(__file__).resolve().parents[1] / "tensorflow_files" / "ported"  # by `_record_moved.py`
TRUTH = json.loads((RECORDED / "truth.json").read_text())
DEVICES = {"1 device": (1, "1"), "2 fused": (2, "1"), "2 of their own": (2, "0")}  # how many, and whether they are fused
QUICK = ("fault_tolerance_keras2", "2 of their own")
CASES = [
    pytest.param(name, devices, id=f"{name}-{devices}", marks=() if (name, devices) == QUICK else pytest.mark.long)
    for name in TRUTH
    if name != "versions"
    for devices in DEVICES
]


@pytest.mark.parametrize(("name", "devices"), CASES)
def test_a_program_goes_on_from_checkpoints_of_tensorflow(name, devices, tmp_path):
    program, expected = TRUTH[name]["program"], TRUTH[name]["numbers"]
    original, path = tmp_path / "original.py", tmp_path / f"program_{program}.py"
    original.write_text(changed((_ported.HERE / "of_tensorflow" / f"{program}.py").read_text(), MOVED[program].then))
    _ported.translate(original, (), path)
    folder = Path(shutil.copytree(RECORDED / name, tmp_path / "run"))
    number, fused = DEVICES[devices]
    [numbers] = _ported.run_on_devices(path, number, folder, of_its_own={"REPLICANT_FUSE_REPLICAS": fused})
    for key, values in expected.items():
        np.testing.assert_allclose(numbers[key], values, rtol=0, atol=1e-5, err_msg=f"{name}: {key}")
