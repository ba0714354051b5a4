"""Prints the time of a step that is fed from memory, and from files: ResNet-50 from JPEGs, GPT-2 from Parquet."""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _cases_here as here
import numpy as np

ROUNDS = 2 if here.DRY else 4
FILES = 8 if here.DRY else 512  # JPEGs; an epoch reads them several times


def jpegs(folder: Path, case: Any, steps: int) -> Any:
    """Write JPEGs, and return a dataset that decodes them in threads."""
    import PIL.Image

    from replicant.data import AUTOTUNE, Dataset

    images, labels = here.cases.data(case, -(-FILES // case.batch))
    paths = [str(folder / f"{i}.jpg") for i in range(FILES)]
    for path, image in zip(paths, images, strict=False):
        PIL.Image.fromarray(image).save(path, quality=90)
    try:
        import simplejpeg

        decode: Any = lambda data: simplejpeg.decode_jpeg(data, "RGB")  # noqa: E731
    except ImportError:
        import io

        decode = lambda data: np.asarray(PIL.Image.open(io.BytesIO(data)))  # noqa: E731

    def read(path: Any, label: Any) -> Any:
        return decode(Path(str(path)).read_bytes()), label

    rows = Dataset.from_tensor_slices((np.array(paths), labels[:FILES])).repeat().take(steps * case.batch)
    return rows.map(read, num_parallel_calls=AUTOTUNE).batch(case.batch).prefetch(2)


def parquet(folder: Path, case: Any, steps: int) -> Any:
    """Write texts into a Parquet file, and return a dataset of its batches."""
    import pyarrow as pa
    import pyarrow.parquet

    from replicant.data import ParquetDataset

    tokens, _ = here.cases.data(case, steps)
    column = pa.FixedSizeListArray.from_arrays(pa.array(tokens.reshape(-1)), tokens.shape[1])
    pyarrow.parquet.write_table(pa.table({"tokens": column}), folder / "texts.parquet", row_group_size=8 * case.batch)

    def pairs(batch: Any) -> Any:
        return batch["tokens"], (3 * batch["tokens"] + 1) % here.cases.GPT2_VOCABULARY

    return ParquetDataset(folder / "texts.parquet", batch_rows=case.batch).map(pairs).prefetch(2)


def compare(name: str, files: str, make: Any) -> None:
    """Train epochs from memory and from files by turns, and print a row."""
    from replicant.data import Dataset

    models, args = here.models(), here.arguments(name)
    steps = 2 if here.DRY else 40
    with tempfile.TemporaryDirectory() as folder:
        memory = Dataset.from_tensor_slices(here.cases.data(args.case, 4)).repeat().take(steps * args.case.batch)
        datasets = {"memory": memory.batch(args.case.batch), files: make(Path(folder), args.case, steps)}
        with here.strategy().scope():
            model = models.make_model(args.case)
        model.compile("adam", models.make_loss())
        found: dict[str, list[float]] = {source: [] for source in datasets}
        for turn in range(-1, ROUNDS):  # the first one compiles
            for source, dataset in datasets.items():
                began = time.perf_counter()
                model.fit(dataset, verbose=0)
                if turn >= 0:
                    found[source].append((time.perf_counter() - began) / steps * 1e3)
    own, its = (statistics.median(times) for times in found.values())
    print(f"| {args.case.title} | {files} | {own:.3g} | {its:.3g} | {own / its:.2f} |", flush=True)


def main() -> int:
    """Print the table. A source that fails does not stop the other."""
    here.contender()
    failed = 0
    print("| `fit` of | files | ms/step from memory | from files | rate |\n|---|---|---|---|---|", flush=True)
    for name, files, make in (("gpt2", "Parquet", parquet), ("resnet50", "JPEG", jpegs)):
        try:
            compare(name, files, make)
        except Exception as error:  # noqa: BLE001 - it is named, and the exit code tells
            print(f"{files}: {type(error).__name__}: {error}", file=sys.stderr)
            print(f"| {name} | {files} | failed: {type(error).__name__} | | |", flush=True)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
