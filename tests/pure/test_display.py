"""How values show themselves in notebooks: literal HTML, everything escaped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicant
from replicant import _display
from replicant.data import Dataset


def test_a_table_escapes_names_and_values():
    assert _display.table([("<b>", "1 & 2")], head=("a", '"b"')) == (
        "<table><tr><th>a</th><th>&quot;b&quot;</th></tr><tr><td>&lt;b&gt;</td><td>1 &amp; 2</td></tr></table>"
    )


def test_a_long_value_is_cut():
    html = _display.replicas("PerReplica", ["x" * 1000])
    assert "x" * 196 + " ..." in html
    assert "x" * 197 not in html


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            replicant.PerReplica(["<a>", "b"]),
            (
                "<div><b>PerReplica of 2 replicas</b><table><tr><th>replica</th><th>value</th></tr>"
                "<tr><td>0</td><td>&lt;a&gt;</td></tr><tr><td>1</td><td>b</td></tr></table></div>"
            ),
        ),
        (
            replicant.Mirrored(3.5, num_replicas=1),
            (
                "<div><b>Mirrored of 1 replica</b><table><tr><th>replica</th><th>value</th></tr>"
                "<tr><td>0</td><td>3.5</td></tr></table></div>"
            ),
        ),
        (
            replicant.PerReplica([np.zeros((1, 2), "int32")]),
            (
                "<div><b>PerReplica of 1 replica</b><table><tr><th>replica</th><th>array</th><th>device</th><th>value</th></tr>"
                "<tr><td>0</td><td>int32[1, 2]</td><td>host</td><td>[[0 0]]</td></tr></table></div>"
            ),
        ),
    ],
)
def test_values_of_replicas(value, expected):
    assert value._repr_html_() == expected


def test_arrays_say_where_they_are():
    stacked = replicant.PerReplica.from_stacked(jnp.zeros((2, 3)))
    assert "<td>float32[3]</td><td>cpu:0</td><td>[0. 0. 0.]</td>" in stacked._repr_html_()


def test_strategies():
    assert replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=True)._repr_html_() == (
        "<div><b>MirroredStrategy</b><table><tr><td>replicas</td><td>2</td></tr><tr><td>workers</td><td>1</td></tr>"
        "<tr><td>computed as</td><td>one program on cpu:0</td></tr>"
        "<tr><td>replica 0</td><td>cpu:0</td></tr><tr><td>replica 1</td><td>cpu:1</td></tr></table></div>"
    )
    sliced = replicant.MirroredStrategy(["cpu:0", "cpu:1"], shard_optimizer_state=True)._repr_html_()
    assert "<td>optimizer state</td><td>in slices</td>" in sliced
    assert replicant.get_strategy()._repr_html_().startswith("<div><b>DefaultStrategy</b><table><tr><td>replicas</td><td>1</td>")


def test_input_plans():
    assert Dataset.range(10).batch(4).explain(num_workers=2)._repr_html_() == (
        "<div><b>Input plan: DATA, because the dataset reads no files</b><table>"
        "<tr><th>worker</th><th>replicas</th><th>reads</th><th>rows per batch</th></tr>"
        "<tr><td>0</td><td>0</td><td>everything</td><td>2</td></tr><tr><td>1</td><td>1</td><td>everything</td><td>2</td></tr>"
        "</table></div>"
    )


def test_an_input_plan_as_json_has_it():
    plan = Dataset.range(10).batch(4).explain(num_workers=2).to_dict()
    assert plan["policy"] == "DATA"
    assert plan["workers"][1] == {"replica_ids": (1,), "files": None, "steps": ((2,),), "last_steps": ((1,),)}


def test_a_long_table_is_cut():
    html = _display.table([(str(i), "x") for i in range(1000)])
    assert html.count("<tr>") == 34
    assert html.endswith("<tr><td>... 967 more ...</td><td></td></tr><tr><td>999</td><td>x</td></tr></table>")
    assert _display.table([(str(i),) for i in range(34)]).count("<tr>") == 34


def test_a_big_array_is_not_fetched():
    html = replicant.PerReplica([np.zeros((1 << 20,), "float32")])._repr_html_()
    assert "<td>float32[1048576]</td><td>host</td><td>4.0 MiB, not shown</td>" in html


def test_arrays_that_a_step_has_taken():
    gone, there = jnp.zeros(2), jnp.ones(2)
    value = replicant.PerReplica([gone, there])
    gone.delete()
    html = value._repr_html_()
    assert "<td>deleted: a later step has taken its memory</td>" in html
    assert "<td>[1. 1.]</td>" in html
    assert repr(value).startswith("PerReplica:{ Array has been deleted")
    stacked = jnp.zeros((2, 3))
    both = replicant.PerReplica.from_stacked(stacked)
    stacked.delete()
    assert both._repr_html_().startswith("<div><b>PerReplica: ")
    assert repr(both).startswith("PerReplica:{ ")


def test_what_ipython_takes_does_not_wait_or_fetch():
    value = replicant.PerReplica([np.arange(2), np.zeros((1 << 20,), "float32")])
    bundle = value._repr_mimebundle_(include=None, exclude=None)
    assert bundle["text/plain"] == "PerReplica:{\n  0: [0 1],\n  1: 4.0 MiB, not shown\n}"
    assert bundle["text/html"] == value._repr_html_()
    small = replicant.PerReplica([np.arange(2), "b"])
    assert small._repr_mimebundle_()["text/plain"] == repr(small)


def test_values_that_cannot_be_shown():
    class Broken:
        def __str__(self):
            raise OSError("<gone>")

    assert "<td>cannot be shown (OSError)</td>" in replicant.PerReplica([Broken()])._repr_html_()

    class Endless:
        def is_ready(self):
            return False

    before, _display._MOST_SECONDS = _display._MOST_SECONDS, 0.05
    try:
        assert "<td>still being computed</td>" in replicant.PerReplica([Endless()])._repr_html_()
    finally:
        _display._MOST_SECONDS = before


def test_values_of_a_trace():
    found = []
    jax.jit(lambda x: found.append(replicant.PerReplica([x])._repr_html_()))(1.0)
    assert found[0].startswith("<div><b>PerReplica of 1 replica</b>")


def test_a_strategy_with_servers_says_when_it_is_closed():
    strategy = replicant.ParameterServerStrategy(transport="threads")
    facts = "<tr><td>servers</td><td>2</td></tr><tr><td>workers</td><td>2</td></tr>"
    assert strategy._repr_html_() == f"<div><b>ParameterServerStrategy</b><table>{facts}</table></div>"
    strategy.close()
    assert facts + "<tr><td>closed</td><td>its servers and workers have ended</td></tr>" in strategy._repr_html_()


def test_a_curve_is_escaped_and_stays_in_its_picture():
    html = _display.curve("<x>", [(1, 1.0), (2, 7.0), (4, -1.0)])
    assert "<x>" not in html
    assert "points='44,12 224.0,12.0 404.0,116.0'" in html.replace("44.0,12.0", "44,12")
    assert _display.curve("x", []) == ""
    assert _display.curve("x", [(1, 0.5)]).count("<circle") == 1
