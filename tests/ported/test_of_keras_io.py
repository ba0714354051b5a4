"""Programs that behave like the examples of keras.io: two devices give the numbers of one."""

import _ported
import pytest
from _keras_io import KERAS_IO


@pytest.mark.slow  # each takes some seconds or more
@pytest.mark.parametrize("name", KERAS_IO)
def test_a_program_gives_the_numbers_of_one_device(name, tmp_path):
    _ported.check("of_keras_io", name, KERAS_IO[name], tmp_path)
