"""Lets programs that are killed and started again keep what they compiled, as users' programs do, and compile quickly."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def compiled_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if os.environ["REPLICANT_COMPILATION_CACHE"] == "0":
            patch.setenv("REPLICANT_COMPILATION_CACHE", str(tmp_path_factory.mktemp("compiled")))
        if "1" not in (os.environ.get("REPLICANT_TEST_FULL"), os.environ.get("REPLICANT_TEST_AGAIN")):
            patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        yield
