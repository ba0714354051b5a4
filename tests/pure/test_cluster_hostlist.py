"""Slurm's short forms against lists that were built beside them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicant.cluster.resolvers._hostlist import expand_counts, expand_hosts
from replicant.cluster.resolvers._slurm_places import place_tasks
from replicant.errors import ClusterError

TEXT = st.text("abcXYZ09.-_", min_size=1, max_size=4)


@st.composite
def ranges(draw):
    """A bracket, and the texts it stands for."""
    pieces, texts = [], []
    for _ in range(draw(st.integers(1, 3))):
        width = draw(st.integers(1, 4))
        low = draw(st.integers(0, 10**width - 1))
        high = low + draw(st.integers(0, 12))
        shown = f"{low:0{width}d}"
        pieces.append(shown if low == high and draw(st.booleans()) else f"{shown}-{high}")
        texts += [f"{number:0{width}d}" for number in range(low, high + 1)]
    return f"[{','.join(pieces)}]", texts


@st.composite
def hosts(draw):
    """One item of a list, and the hosts it stands for."""
    parts = draw(st.lists(st.one_of(TEXT.map(lambda text: (text, [text])), ranges()), min_size=1, max_size=3))
    return "".join(short for short, _ in parts), ["".join(choice) for choice in itertools.product(*(texts for _, texts in parts))]


@given(st.lists(hosts(), min_size=1, max_size=4))
def test_hosts_are_those_that_the_short_form_was_made_from(items):
    assert expand_hosts(",".join(short for short, _ in items)) == [host for _, expanded in items for host in expanded]


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 5), st.booleans()), min_size=1, max_size=6))
def test_counts_are_those_that_the_short_form_was_made_from(items):
    short = ",".join(f"{tasks}" if times == 1 and plain else f"{tasks}(x{times})" for tasks, times, plain in items)
    assert expand_counts(short) == [tasks for tasks, times, _ in items for _ in range(times)]


@pytest.mark.parametrize(
    ("short", "expanded"),
    [
        ("node1", ["node1"]),
        ("node[01-03,07],gpu5", ["node01", "node02", "node03", "node07", "gpu5"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[008-010]", ["n008", "n009", "n010"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("rack[1-2]node[1,3]", ["rack1node1", "rack1node3", "rack2node1", "rack2node3"]),
        (" n[1-2]-ib , m ", ["n1-ib", "n2-ib", "m"]),
        ("b,a,b", ["b", "a", "b"]),
    ],
)
def test_hosts(short, expanded):
    assert expand_hosts(short) == expanded


@pytest.mark.parametrize(
    ("short", "message"),
    [
        ("", "The host list is empty."),
        ("a,,b", "Host list 'a,,b', column 3: there is no host between two commas. Write it as in 'node"),
        ("a,", "column 3: there is no host between two commas"),
        ("a[1-2", "column 2: a bracket is not closed"),
        ("a1-2]", "column 5: a bracket is closed that was not opened"),
        ("a[1-[2-3]]", "column 5: a bracket opens inside a bracket"),
        ("a[]", "column 1: '' in '\\[\\]' is neither a number nor a range"),
        ("b,a[1-x]", "column 3: '1-x' in '\\[1-x\\]' is neither a number nor a range"),
        ("a[3-1]", "column 1: the range '3-1' runs backwards"),
        ("a b", "column 1: 'a b' contains a blank"),
        ("a[0-99999999]", "is longer than 65536 hosts: is a range mistyped?"),
        ("a[0-999]b[0-999]", "is longer than 65536 hosts: is a range mistyped?"),
    ],
)
def test_mistakes_in_host_lists(short, message):
    with pytest.raises(ClusterError, match=message):
        expand_hosts(short)


@pytest.mark.parametrize("short", ["", "a", "2(3)", "2(x)", "2,,1", "-1"])
def test_mistakes_in_counts(short):
    with pytest.raises(ClusterError, match="is neither a number nor 'number\\(xtimes\\)', as in '2\\(x3\\),1'"):
        expand_counts(short)


def test_counts_of_too_many_hosts():
    with pytest.raises(ClusterError, match="is longer than 65536 hosts"):
        expand_counts("1(x99999999)")


@pytest.mark.parametrize(
    ("counts", "plane_size", "places"),
    [
        # as in Slurm's own description of srun --distribution
        ([3, 1], None, [(0, 0), (0, 1), (0, 2), (1, 0)]),
        ([2, 2], 1, [(0, 0), (1, 0), (0, 1), (1, 1)]),
        ([3, 1, 2], 1, [(0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (0, 2)]),
        ([4, 3], 2, [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2)]),
        ([0, 2], None, [(1, 0), (1, 1)]),
    ],
)
def test_which_node_a_rank_is_on(counts, plane_size, places):
    assert place_tasks(counts, plane_size) == places
