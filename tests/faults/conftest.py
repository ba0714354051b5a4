"""Programs that are killed and started again keep what they compiled, as users' programs do."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPLICANT_COMPILATION_CACHE", str(tmp_path_factory.mktemp("compiled")))
        yield
