"""The one reader of JSON that anybody may have written."""

import json
import random
import time

import pytest

from replicant._untrusted_json import read_json

TAKEN = [
    (b'{"a": [1, -2.5e3, true, null, "\\u00e9\\ud83d\\ude00"]}', {"a": [1, -2500.0, True, None, "é😀"]}),
    (rb'"\\ud800"', r"\ud800"),  # a backslash and five letters
    (rb'"[[[\"[[[\\"', r'[[["[[[' + "\\"),
    ("9" * 40, 10**40 - 1),
    ('"' + "9" * 999 + '"', "9" * 999),
    ("[" * 64 + "]" * 64, json.loads("[" * 64 + "]" * 64)),
    ('{"a":' * 63 + "[]" + "}" * 63, json.loads('{"a":' * 63 + "[]" + "}" * 63)),
    ("[" + "[]," * 500 + "[]]", [[]] * 501),
    (" 1e308 ", 1e308),
]

REFUSED = [
    ("[" * 65 + "]" * 65, "is nested more than 64 deep"),
    ('{"a":' * 64 + "[]" + "}" * 64, "is nested more than 64 deep"),
    ("[" * 900, "is nested more than 64 deep"),
    ("[" * 500 + "x" + "]" * 500, "is nested more than 64 deep"),
    ('["\\"]",' * 70 + "[" * 65, "is nested more than 64 deep"),
    ("[" * 64, "Expecting value: line 1 column 65 (char 64)"),
    ("[]]" * 70, "Extra data: line 1 column 3 (char 2)"),
    ("9" * 41, "has a number of more than 40 digits"),
    ('{"a": 0.' + "1" * 41 + "}", "has a number of more than 40 digits"),
    ("[1e999]", "has a number that no float can hold: 1e999"),
    ("NaN", "has NaN, which is not JSON"),
    ("[-Infinity]", "has -Infinity, which is not JSON"),
    (rb'"\ud800"', r"has half of a character, \ud800, which no UTF-8 can hold"),
    (rb'{"\uDC00": 1}', r"has half of a character, \uDC00, which no UTF-8 can hold"),
    (rb'"\ud83d\ud83d\ude00"', r"has half of a character, \ud83d, which no UTF-8 can hold"),
    (rb'"\\\ud800"', r"has half of a character, \ud800, which no UTF-8 can hold"),
    ('"\ud800"', "is not UTF-8: surrogates not allowed at 1"),
    (b'"\xed\xa0\x80"', "is not UTF-8: invalid continuation byte at 1"),
    (b"\xff", "is not UTF-8: invalid start byte at 0"),
    ('"' + "é" * 700 + '"', "is longer than 1024 bytes"),
    (b" " * 1025, "is longer than 1024 bytes"),
    (b"\xef\xbb\xbf1", "Unexpected UTF-8 BOM (decode using utf-8-sig): line 1 column 1 (char 0)"),
    (b"", "Expecting value: line 1 column 1 (char 0)"),
    (b'"', "Unterminated string starting at: line 1 column 1 (char 0)"),
]


@pytest.mark.parametrize(("text", "value"), TAKEN, ids=range(len(TAKEN)))
def test_what_is_taken(text: str | bytes, value: object) -> None:
    assert read_json(text, 5000) == value


@pytest.mark.parametrize(("text", "problem"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(text: str | bytes, problem: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - all of the message is compared
        read_json(text, 1024)
    assert str(raised.value) == problem


def test_limits_of_the_caller() -> None:
    assert repr(read_json("[NaN, 1e999, -Infinity]", 99, infinite=True)) == "[nan, inf, -inf]"
    assert read_json(rb'"\udcff"', 99, halves=True) == "\udcff"
    with pytest.raises(ValueError, match=r"^has a number of more than 18 digits$"):
        read_json("1" * 19, 99, most_digits=18)
    with pytest.raises(ValueError, match=r"^is nested more than 1 deep$"):
        read_json("[[]]", 99, most_depth=1)


def test_all_that_is_taken_can_be_written_and_equals_what_json_reads() -> None:
    draw, parts = (
        random.Random(7),
        ['"', "\\", "\\u", "d800", "dc00", "[", "]", "{", "}", ":", ",", "1", "e9", " ", "é", "true", "NaN"],
    )
    taken = 0
    for _ in range(30_000):
        text = "".join(draw.choices(parts, k=draw.randrange(1, 7)))
        text = draw.choice([text, f"[{text}]", f'"{text}"'])
        try:
            value = read_json(text, 999)
        except ValueError:
            continue
        taken += 1
        assert value == json.loads(text)
        assert json.loads(json.dumps(value, ensure_ascii=False, allow_nan=False).encode()) == value
    assert taken > 1000


PARTS = [b"[", b"]", b"[]", b'"', b'\\"', b"\\u", b"\\ud800", b"\\", b"9", b"{[", b'"[', b",", b"\\ud83d\\ude00"]


@pytest.mark.parametrize("part", PARTS)
def test_no_text_takes_long(part: bytes) -> None:
    began = time.process_time()
    for head in (b"", b"[", b'"'):
        with pytest.raises(ValueError, match=r"."):
            read_json(head + part * (300_000 // len(part)), 1 << 20)
    assert time.process_time() - began < 1.0
