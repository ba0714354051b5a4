"""Splits of TFDS: which examples of which files an expression means. The expected values are those of TFDS 4.9.10."""

import pytest

from replicant.errors import ArgumentError
from replicant.input.files.tfds._splits import FileSlice, Split, slices_of

TRAIN = [101, 100, 101, 100, 101]
TEST = [12, 12, 13, 12, 12]


def split(name, lengths):
    return Split(name, tuple(f"{name}{i}" for i in range(len(lengths))), tuple(lengths))


SPLITS = {each.name: each for each in (split("train", TRAIN), split("test", TEST), split("few", [3, 0, 4]), split("none", [0]))}
ALL_TRAIN = [("train", i, 0, length) for i, length in enumerate(TRAIN)]
ALL_TEST = [("test", i, 0, length) for i, length in enumerate(TEST)]
ALL_FEW = [("few", 0, 0, 3), ("few", 2, 0, 4)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("train", ALL_TRAIN),
        ("train+test", ALL_TRAIN + ALL_TEST),
        ("test + train", ALL_TEST + ALL_TRAIN),
        ("all", ALL_TRAIN + ALL_TEST + ALL_FEW),
        ("few", ALL_FEW),
        ("train[:10%]", [("train", 0, 0, 50)]),
        ("train[10%:35]", [("train", 0, 50, 101), ("train", 1, 0, 75)]),  # both are percents
        ("train[5:50%]", [("train", 0, 25, 101), ("train", 1, 0, 100), ("train", 2, 0, 51)]),
        ("train[33.3%:66.7%]", [("train", 1, 66, 100), ("train", 2, 0, 101), ("train", 3, 0, 34)]),
        ("train[0.5%:99.5%]", [("train", 0, 3, 101), *ALL_TRAIN[1:4], ("train", 4, 0, 98)]),
        ("test[:50%]", [("test", 0, 0, 12), ("test", 1, 0, 12), ("test", 2, 0, 6)]),  # 30.5 of 61: the even one
        ("train[:50%]", [("train", 0, 0, 101), ("train", 1, 0, 100), ("train", 2, 0, 51)]),  # 251.5 of 503
        ("test[:2.5%]", [("test", 0, 0, 2)]),
        ("train[-7:]", [("train", 4, 94, 101)]),
        ("train[:-7]", [*ALL_TRAIN[:4], ("train", 4, 0, 94)]),
        ("train[-20%:-5%]", [("train", 4, 0, 76)]),
        ("train[-100%:]", ALL_TRAIN),
        ("train[30:70]", [("train", 0, 30, 70)]),
        ("train[1_0:2_0]", [("train", 0, 10, 20)]),
        ("train[0shard]", ALL_TRAIN[:1]),
        ("train[-1shard]", ALL_TRAIN[4:]),
        ("train[-1shard:]", ALL_TRAIN[4:]),
        ("train[:-1shard]", ALL_TRAIN[:4]),
        ("train[1shard:3shard]", ALL_TRAIN[1:3]),
        ("train[1:3shard]", ALL_TRAIN[1:3]),
        ("train[:0shard]", ALL_TRAIN),  # as of TFDS: 0 stands for the end, as in train[-1shard]
        ("train[:100shard]", ALL_TRAIN),
        ("train[50%:]+train[:50%]", [("train", 2, 51, 101), *ALL_TRAIN[3:], *ALL_TRAIN[:2], ("train", 2, 0, 51)]),
        ("test[:1]+train[1shard]+test", [("test", 0, 0, 1), ALL_TRAIN[1], *ALL_TEST]),
        ("train[5:5]+test", ALL_TEST),
        ("few[2:4]", [("few", 0, 2, 3), ("few", 2, 0, 1)]),
        ("few[1shard:]", [("few", 2, 0, 4)]),
    ],
)
def test_the_examples_of_a_split(expression, expected):
    assert slices_of("f", expression, SPLITS) == [FileSlice(f"{name}{i}", start, stop) for name, i, start, stop in expected]


WRITE = r"Write a split such as 'train', 'train\[:10%\]', .*: see https://www.tensorflow.org/datasets/splits\."


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("nope", r"there is no split 'nope'\. The splits are \['train', 'test', 'few', 'none'\]\."),
        ("train[:5]+nope[1:]", "there is no split 'nope'"),
        ("train[5", rf"'train\[5' in the split 'train\[5' cannot be read\. {WRITE}"),
        ("train[2 shards]", rf"'train\[2 shards\]' in the split .* cannot be read\. {WRITE}"),
        ("train[2shards:]", rf"'2shards' in 'train\[2shards:\]' is not a number of examples, percent or shards\. {WRITE}"),
        ("", "'' in the split '' cannot be read"),
        ("train+", r"'' in the split 'train\+' cannot be read"),
        ("train[1:2:3]", rf"'train\[1:2:3\]' is not a slice: a slice has two ends, at least one of them written\. {WRITE}"),
        ("train[:]", "is not a slice"),
        ("train[7]", r"'train\[7\]' is not a slice"),
        ("train[7%]", r"'train\[7%\]' is not a slice"),
        ("train[x:]", r"'x' in 'train\[x:\]' is not a number of examples, percent or shards"),
        ("train[1.5:]", rf"'1\.5' in 'train\[1\.5:\]' is not a whole number\. {WRITE}"),
        ("train[1.5shard:]", r"'1\.5' in 'train\[1\.5shard:\]' is not a whole number"),
        ("train[1.2.3%:]", r"'1\.2\.3' in 'train\[1\.2\.3%:\]' is not a number"),
        ("train[:101%]", r"'train\[:101%\]' has 101 percent\. Percents are -100 to 100\."),
        ("train[10%:1shard]", r"'train\[10%:1shard\]' has its ends in % and shard\. Write both in the same unit\."),
        ("train[:504]", r"'train\[:504\]' is 0:504, but 'train' has 503 examples\."),
        ("train[-504:]", r"'train\[-504:\]' is -504:503, but 'train' has 503 examples\."),
        ("train[8:5]", r"'train\[8:5\]' begins at example 8 and ends before it, at 5\."),
        ("train[3:3]", r"the split 'train\[3:3\]' has no examples\. The numbers of examples are: train \(503\), test \(61\), few"),
        ("train[100shard:]", "has no examples"),
        ("none", "the split 'none' has no examples"),
        ("all[:5]", r"'all\[:5\]': 'all' cannot be cut\. Cut each split, and add them: 'train\[:10\]\+test\[:10\]'\."),
    ],
)
def test_what_is_no_split(expression, message):
    with pytest.raises(ArgumentError, match=f"^f: .*{message}"):
        slices_of("f", expression, SPLITS)


def test_a_folder_without_splits():
    with pytest.raises(ArgumentError, match="The numbers of examples are: none"):
        slices_of("f", "all", {})
