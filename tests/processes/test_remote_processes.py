"""Files at URLs in processes of their own: what a start imports, and a cache that processes share while some are killed."""

import subprocess
import sys
import time

import pytest

NO_FSSPEC = (
    "ConfigurationError s3://bucket/a is read with fsspec, which is not installed: pip install 'replicant-jax[remote]' (or "
    "'replicant-jax[s3]' for s3://)."
)


@pytest.mark.long
def test_fsspec_is_imported_only_for_urls(tmp_path):
    program = (
        "import sys, replicant\nfrom replicant.data import TextLineDataset\n"
        f"open({str(tmp_path / 'a')!r}, 'w').write('x')\n"
        f"print(list(TextLineDataset({str(tmp_path / 'a')!r})), 'fsspec' in sys.modules)\n"
        "sys.modules['fsspec.core'] = None\n"
        "try:\n    next(iter(TextLineDataset('s3://bucket/a')))\nexcept Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.splitlines() == [
        "['x'] False",
        NO_FSSPEC,
    ]


WORKER = """
import contextlib, random, sys
from pathlib import Path
from replicant.storage._cache import BlockCache
def size_of(path):
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0

folder, seed = Path(sys.argv[1]), int(sys.argv[2])
cache, rng, hits, most = BlockCache(folder, 50_000), random.Random(seed), 0, 0
for _ in range(300):
    key = rng.randrange(40)
    data = bytes([key]) * (1000 + 100 * key)
    found = cache.get(str(key), len(data))
    assert found in (None, data), key
    hits += found is not None
    if found is None:
        cache.put(str(key), data)
    with contextlib.suppress(BlockingIOError), cache._locked():
        most = max(most, sum(map(size_of, folder.glob("*.block"))))
print(hits > 0, most <= 50_000)
"""


@pytest.mark.slow
def test_processes_share_a_cache(tmp_path):
    """Some of them are killed, at any moment."""
    start = lambda seed: subprocess.Popen(  # noqa: E731
        [sys.executable, "-c", WORKER, str(tmp_path / "cache"), str(seed)], stdout=subprocess.PIPE, text=True
    )
    lasting, doomed = [start(seed) for seed in range(3)], [start(seed) for seed in range(3, 6)]
    for i, process in enumerate(doomed):
        time.sleep(1 + 0.3 * i)
        process.kill()
        process.communicate()
    for process in lasting:
        assert process.communicate(timeout=200)[0] == "True True\n"
        assert process.returncode == 0
