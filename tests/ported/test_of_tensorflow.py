"""Programs that behave like TensorFlow's tutorials and guides: translated, two devices give the numbers of one.

The programs are spread over two files of tests, so that two processes of pytest run them at the same time.
"""

import _ported
import pytest
from _tensorflow import TENSORFLOW

IN_TEST = ("migrate_mirrored_strategy",)  # `make test` runs the shortest, and `make test-all` all of them


@pytest.mark.cases(*IN_TEST)
@pytest.mark.parametrize("name", TENSORFLOW)
def test_a_program_gives_the_numbers_of_one_device(name, tmp_path):
    _ported.check("of_tensorflow", name, TENSORFLOW[name], tmp_path)
