"""Texts to token ids: with a tokenizer of `tokenizers` and with others, in threads, with exact positions."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from replicant.data import Dataset
from replicant.errors import ArgumentError, ArgumentTypeError, DatasetError, ElementError

TEXTS = ["a b c", "", "c c", "a", "b a z"]
IDS = [[1, 2, 3], [], [3, 3], [1], [2, 1, 0]]


@pytest.fixture(scope="module")
def words():
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "a": 1, "b": 2, "c": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def returning(value):
    return SimpleNamespace(encode=lambda text: value)


@pytest.mark.parametrize("threads", [None, -1, 3])
def test_texts_become_ids_in_their_order(words, threads):
    dataset = Dataset.from_tensor_slices(TEXTS * 10).tokenize(words, num_parallel_calls=threads)
    made = list(dataset)
    assert [each.tolist() for each in made] == IDS * 10
    assert {each.dtype for each in made} == {np.dtype(np.int32)}
    assert dataset.element_spec.dtype == np.int32
    assert dataset.cardinality() == 50


def test_bytes_a_named_component_an_end_and_another_dtype(words):
    texts = Dataset.from_tensor_slices({"text": [each.encode() for each in TEXTS], "number": np.arange(5)})
    made = list(texts.tokenize(words, key="text", end=9, dtype=np.uint16))
    assert [each["text"].tolist() for each in made] == [[*ids, 9] for ids in IDS]
    assert [int(each["number"]) for each in made] == [0, 1, 2, 3, 4]
    assert made[1]["text"].dtype == np.uint16


@pytest.mark.parametrize("ids", [[1, 2], (1, 2), np.array([1, 2]), SimpleNamespace(ids=[1, 2])])
def test_other_tokenizers(ids):
    assert [each.tolist() for each in Dataset.from_tensor_slices(["x"]).tokenize(returning(ids))] == [[1, 2]]


def test_it_continues_from_every_point_also_when_packed(words):
    def make():
        return Dataset.from_tensor_slices(TEXTS * 3).shuffle(4, seed=1).tokenize(words, end=9).pack_sequences(6)

    whole = [pack["tokens"].tolist() for pack in make()]
    for cut in range(len(whole) + 1):
        with iter(make()) as iterator:
            list(itertools.islice(iterator, cut))
            position = json.loads(json.dumps(iterator.state()))
        with iter(make()) as again:
            again.restore(position)
            assert [pack["tokens"].tolist() for pack in again] == whole[cut:]


ONE = Dataset.from_tensor_slices(["a"])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ONE.tokenize(str.split), ArgumentTypeError, r"tokenizer must have a method `encode\(text\)`. Received: <method"),
        (
            lambda: ONE.tokenize(returning([]), key=1),
            ArgumentTypeError,
            "key must be the name of a component, or None. Received: 1",
        ),
        (lambda: ONE.tokenize(returning([]), dtype=float), ArgumentTypeError, "dtype must be a dtype of integers, such as 'int32'"),
        (lambda: ONE.tokenize(returning([]), dtype="x"), ArgumentTypeError, "dtype must be a dtype of integers.* Received: 'x'"),
        (lambda: ONE.tokenize(returning([]), end="</s>"), ArgumentTypeError, "end must be an integer. Received: '</s>'"),
        (lambda: ONE.tokenize(returning([]), end=-1, dtype=np.uint8), ArgumentError, "end must be 0 to 255, which uint8 holds"),
        (lambda: ONE.tokenize(returning([]), num_parallel_calls=0), ArgumentError, "num_parallel_calls must be None, AUTOTUNE"),
        (
            lambda: list(Dataset.range(1).tokenize(returning([]))),
            DatasetError,
            "tokenize takes elements that are texts.*Received: .*0",
        ),
        (
            lambda: list(Dataset.zip(ONE, ONE).tokenize(returning([]))),
            DatasetError,
            "takes elements that are texts, or dicts and `key`",
        ),
        (lambda: list(ONE.tokenize(returning([]), key="x")), DatasetError, "no component 'x', which `key` names. Received: .*'a'"),
        (
            lambda: list(Dataset.from_tensor_slices(np.array([b"\xff"], object)).tokenize(returning([]))),
            ElementError,
            r"a text is not UTF-8 \(.*\)\. It begins with b'\\xff'",
        ),
        (lambda: list(ONE.tokenize(returning([0.5]))), ElementError, r"must return whole numbers.*`ids`. Received: \[0.5\]"),
        (lambda: list(ONE.tokenize(returning([[1]]))), ElementError, r"must return whole numbers.*`ids`. Received: \[\[1\]\]"),
        (
            lambda: list(ONE.tokenize(returning([1, 300]), dtype=np.uint8)),
            ElementError,
            "the ids 1 to 300 do not fit into uint8, which holds 0 to 255. Choose another dtype",
        ),
    ],
)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
