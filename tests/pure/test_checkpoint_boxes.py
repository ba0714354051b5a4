"""Slices of arrays as boxes: the blocks of a slice, what boxes have in common, and which boxes make a whole array."""

import itertools
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from replicant.checkpoint.format import _boxes

RANGES = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)).map(lambda pair: (pair[0], sum(pair))), min_size=1, max_size=4)


@hypothesis.given(RANGES.map(tuple), st.sampled_from([_boxes.BLOCK // 5, _boxes.BLOCK // 2 + 1, _boxes.BLOCK, 2 * _boxes.BLOCK]))
@pytest.mark.long
def test_blocks_follow_each_other_and_are_small(box: _boxes.Box, itemsize: int) -> None:
    sizes = _boxes.sizes_of(box)
    positions = np.arange(math.prod(sizes)).reshape(sizes)
    blocks = list(_boxes.blocks_of(box, itemsize))
    found = [positions[_boxes.within(block, box)].ravel() for block in blocks]
    assert np.concatenate(found).tolist() == list(range(math.prod(sizes)))
    assert all(len(each) == 1 or len(each) * itemsize <= _boxes.BLOCK for each in found)
    assert _boxes.num_blocks(sizes, itemsize) == len(blocks)


@hypothesis.given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=3), st.data())
def test_cells_of_a_grid_are_a_whole_array_and_fewer_or_others_are_not(sizes: list[list[int]], data: st.DataObject) -> None:
    ends = [[0, *itertools.accumulate(each)] for each in sizes]
    cells = [tuple(cell) for cell in itertools.product(*([*itertools.pairwise(each)] for each in ends))]
    shape = [each[-1] for each in ends]
    assert _boxes.is_grid(cells, shape)
    number = data.draw(st.integers(0, len(cells) - 1))
    assert not _boxes.is_grid(cells[:number] + cells[number + 1 :], shape)
    assert not _boxes.is_grid([*cells, cells[number]], shape)
    assert not _boxes.is_grid(cells, [shape[0] + 1, *shape[1:]])
    assert not _boxes.is_grid([(*cell, (0, 1)) for cell in cells], shape)


@pytest.mark.parametrize(
    "boxes",
    [
        [((0, 2), (0, 4)), ((1, 4), (0, 4))],
        [((0, 2), (0, 2)), ((0, 2), (2, 4)), ((2, 4), (0, 2)), ((2, 4), (1, 4))],
        [((1, 4), (0, 4))],
        [((0, 5), (0, 4))],
        [],
    ],
    ids=["overlapping", "uneven", "late", "too large", "none"],
)
def test_what_is_no_grid(boxes: list[_boxes.Box]) -> None:
    assert not _boxes.is_grid(boxes, (4, 4))
