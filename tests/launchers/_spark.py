"""Two tasks of Spark run the program, in a barrier stage or not. Spark listens on 127.0.0.1 only."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark.sql import SparkSession

HERE = str(Path(__file__).resolve().parent)


def train(rows: Iterable[int]) -> Iterator[int]:
    """Run the program in this task."""
    sys.path.insert(0, HERE)
    import _program

    _program.main()
    yield from rows


if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.python.authenticate.socketTimeout", "120s")  # for workers on a busy machine
    session = builder.config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false").getOrCreate()
    numbers = session.sparkContext.parallelize(range(2), 2)
    stage = numbers.barrier() if sys.argv[1] == "barrier" else numbers
    stage.mapPartitions(train).collect()
