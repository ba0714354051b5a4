"""Random replica functions that read state of Python, which changes between the calls: ``run`` computes what the code says now."""

# ruff: noqa: E501 - one line of code is one line of the table

import importlib.util
import itertools
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest

import replicant

# What defines a piece of state with the value {v}, the expressions that read it, and the statements that change it.
HOLDERS: dict[str, tuple[str, list[str], list[str]]] = {
    "global": ("G = {v}", ["G", "globals()['G']", "read_global()"], ["globals().update(G={v})"]),
    "dict": (
        "D = {{'k': {v}}}",
        ["D['k']", "D.get('k', 0)", "sum(D.values())", "(lambda k: D[k])('k')", "item(D)", "{{**D}}['k']"],
        ["D['k'] = {v}"],
    ),
    "missing entry": (
        "M = {{}}",
        ["M.get('k', 1)", "(1 if 'k' not in M else M['k'])", "caught(M)"],
        ["M['k'] = {v}", "M.pop('k', None)"],
    ),
    "ordered": ("OD = OrderedDict(k={v})", ["OD['k']", "next(iter(OD.values()))"], ["OD['k'] = {v}"]),
    "default": ("DD = defaultdict(float, k={v})", ["DD['k']", "item(DD)"], ["DD['k'] = {v}"]),
    "user dict": ("UD = UserDict(k={v})", ["UD['k']", "UD.get('k')", "item(UD)"], ["UD['k'] = {v}", "UD.data = {{'k': {v}}}"]),
    "chain": (
        "CM = ChainMap({{}}, {{'k': {v}}})",
        ["CM['k']", "item(CM)"],
        ["CM['k'] = {v}", "CM.maps[1]['k'] = {v}; CM.maps[0].clear()"],
    ),
    "proxy": ("PD = {{'k': {v}}}\nMP = MappingProxyType(PD)", ["MP['k']", "item(MP)"], ["PD['k'] = {v}"]),
    "list": (
        "L = [{v}]",
        ["L[0]", "sum(L)", "[y for y in L][-1]", "max(L)", "len(L)", "reduce(add, L)"],
        ["L[0] = {v}", "L.append({v})", "L[:] = [{v}]"],
    ),
    "nested": ("N = [{{'a': ({v}, [{v}])}}]", ["N[0]['a'][1][0]", "deep(N)"], ["N[0]['a'][1][0] = {v}", "N[0]['a'] = (0, [{v}])"]),
    "deque": ("DQ = deque([{v}])", ["DQ[0]", "sum(DQ)"], ["DQ[0] = {v}", "DQ.append({v})"]),
    "user list": ("UL = UserList([{v}])", ["UL[0]", "sum(UL)"], ["UL[0] = {v}"]),
    "set": ("S = {{{v}}}", ["sum(S)", "(2 if {v} in S else 3)", "len(S)"], ["S.clear(); S.add({v})", "S.add({v})"]),
    "bytes": ("B = bytearray([int({v})])", ["B[0]", "sum(B)", "memoryview(B)[0]"], ["B[0] = int({v})"]),
    "array": ("AR = array('d', [{v}])", ["AR[0]", "sum(AR)"], ["AR[0] = {v}"]),
    "numpy": (
        "NP = np.array([{v}])",
        ["float(NP[0])", "NP.sum()", "len(NP)"],
        ["NP[0] = {v}", "globals().update(NP=np.array([{v}, {v}]))"],
    ),
    "namespace": (
        "O = SimpleNamespace(x={v})",
        ["O.x", "getattr(O, 'x')", "vars(O)['x']", "O.__dict__['x']", "attrgetter('x')(O)"],
        ["O.x = {v}"],
    ),
    "slots": ("SL = Slots({v})", ["SL.x", "getattr(SL, 'x', 0)"], ["SL.x = {v}"]),
    "class": ("class C: x = {v}", ["C.x", "C().x"], ["C.x = {v}"]),
    "inherited": (
        "class Base: x = {v}\nclass Derived(Base): pass",
        ["Derived.x", "Derived().x"],
        ["Base.x = {v}", "Derived.x = {v}"],
    ),
    "property": ("P = Property({v})", ["P.x", "P.twice()", "(lambda p: p.x)(P)"], ["P._x = {v}"]),
    "cached": ("CP = Cached({v})", ["CP.x"], ["CP._x = {v}; CP.__dict__.pop('x', None)"]),
    "getattr": ("GA = GetAttr({v})", ["GA.x", "getattr(GA, 'anything')"], ["GA.__dict__['data']['x'] = {v}"]),
    "special": (
        "SP = Special({v})",
        [
            "SP['k']",
            "SP(1)",
            "sum(SP)",
            "len(SP)",
            "SP * 1",
            "1 + SP",
            "-SP",
            "float(SP)",
            "entered(SP)",
            "(1 if SP else 0)",
            "(2 if 3 in SP else 1)",
        ],
        ["SP._x = {v}"],
    ),
    "metaclass": ("class MC(metaclass=Meta): _x = {v}", ["MC.x"], ["MC._x = {v}"]),
    "descriptor": ("DE = Described({v})", ["DE.x"], ["DE.store['x'] = {v}"]),
    "closure": ("read_c, write_c = closure({v})", ["read_c()"], ["write_c({v})"]),
    "default argument": (
        "def of_default(d=[{v}]): return d[0]",
        ["of_default()"],
        ["of_default.__defaults__[0][0] = {v}", "of_default.__defaults__ = ([{v}],)"],
    ),
    "partial": ("PA = partial(add, {v})", ["PA(1)"], ["globals().update(PA=partial(add, {v}))"]),
    "function attribute": ("def fa(): return fa.x\nfa.x = {v}", ["fa()", "fa.x"], ["fa.x = {v}"]),
    "another function": (
        "def af(): return {v}",
        ["af()"],
        ["exec('def af(): return {v}', globals())", "af.__code__ = (lambda: {v}).__code__"],
    ),
    "context variable": ("CV = ContextVar('CV', default={v})", ["CV.get()"], ["CV.set({v})"]),
    "environment": (
        "os.environ['STATE_OF_TEST'] = '{v}'",
        ["float(os.environ['STATE_OF_TEST'])", "float(os.environ.get('STATE_OF_TEST', 0))"],
        ["os.environ['STATE_OF_TEST'] = '{v}'"],
    ),
    "weak": ("WO = Slots({v})\nWR = weakref.ref(WO)", ["WR().x"], ["WO.x = {v}"]),
    "data class": ("DC = Data({v}, [{v}])", ["DC.x", "DC.rows[0]", "replace(DC).x"], ["DC.x = {v}", "DC.rows[0] = {v}"]),
    "named tuple": ("NT = Named([{v}])", ["NT.x[0]"], ["NT.x[0] = {v}", "globals().update(NT=Named([{v}]))"]),
    "method": ("ME = Property({v}).twice", ["ME()"], ["ME.__self__._x = {v}"]),
    "shadowed": (
        "class Sh: x = {v}\nSH = [Sh()]",
        ["[o.x for o in SH][0]", "SH[0].x", "first(SH)"],
        ["SH[0].x = {v}", "Sh.x = {v}"],
    ),
    "shadowed method": (
        "class Sm:\n    def of(self): return {v}\nSM = [Sm()]",
        ["[o.of() for o in SM][0]", "SM[0].of()"],
        ["SM[0].of = lambda: {v}", "Sm.of = lambda self: {v}"],
    ),
    "class of an object": (
        "class A1:\n    def of(self): return {v}\nclass A2:\n    def of(self): return {v}\nOC = A1()",
        ["OC.of()", "[o.of() for o in [OC]][0]"],
        ["OC.__class__ = A2", "A2.of = lambda self: {v}"],
    ),
    "property replaced": (
        "PR = Property({v})",
        ["PR.x", "PR.twice()"],
        ["Property.x = property(lambda self: {v})", "Property.twice = lambda self: {v}", "PR.twice = lambda: {v}"],
    ),
    "special replaced": (
        "SR = Special({v})",
        ["SR[0]", "SR * 2"],
        ["Special.__getitem__ = lambda self, key: {v}", "Special.__mul__ = lambda self, other: {v}"],
    ),
    "special with another name": (
        "def named(self, *other): return {v}\nclass Sa: __add__ = __radd__ = named\nSA = Sa()",
        ["SA + 2", "2 + SA"],
        ["Sa.__add__ = lambda self, other: {v}", "Sa.__radd__ = lambda self, other: {v}"],
    ),
    "special of a class": (
        "class Sc:\n    @classmethod\n    def __class_getitem__(cls, key): return {v}",
        ["Sc[1]"],
        ["Sc.__class_getitem__ = classmethod(lambda cls, key: {v})"],
    ),
    "super": (
        "class Su(Property):\n    def twice(self): return super().twice() + self.more\nSU = Su({v})\nSU.more = 1",
        ["SU.twice()"],
        ["SU._x = {v}", "SU.more = {v}", "Property.twice = lambda self: {v}"],
    ),
    "type of self": (
        "class Ts:\n    x = {v}\n    def of(self): return type(self).x\n    def of2(self): return self.__class__.x\nTS = Ts()",
        ["TS.of()", "TS.of2()"],
        ["Ts.x = {v}"],
    ),
    "dictionary of attributes": ("DA = SimpleNamespace(x={v})", ["DA.x"], ["DA.__dict__.update(x={v})"]),
    "format": (
        "FO = SimpleNamespace(x={v})",
        ["float('{{0.x}}'.format(FO))", "float(f'{{FO.x}}')", "float('%(x)s' % vars(FO))"],
        ["FO.x = {v}"],
    ),
    "attribute getter": (
        "AG = attrgetter('x')\nAO = [SimpleNamespace(x={v})]",
        ["AG(AO[0])", "sum(map(AG, AO))", "sum(map(attrgetter('x'), AO))"],
        ["AO[0].x = {v}", "globals().update(AG=lambda o: {v})"],
    ),
    "method caller": ("MO = Property({v})", ["methodcaller('twice')(MO)"], ["MO._x = {v}"]),
    "thread local": ("TL = threading.local()\nTL.x = {v}", ["TL.x"], ["TL.x = {v}"]),
    "module": ("MD = ModuleType('md')\nMD.x = {v}", ["MD.x"], ["MD.x = {v}"]),
    "own module": (
        "MX = {v}",
        [
            "sys.modules[__name__].MX",
            "import_module(__name__).MX",
            "__import__(__name__).MX",
            "eval('MX')",
            "vars(sys.modules[__name__])['MX']",
        ],
        ["globals().update(MX={v})"],
    ),
    "config parser": (
        "CF = ConfigParser()\nCF.read_string('[s]\\nk = {v}')",
        ["float(CF['s']['k'])", "CF.getfloat('s', 'k')"],
        ["CF['s']['k'] = '{v}'"],
    ),
    "queue": ("QU = Queue()\nQU.put({v})", ["QU.queue[0]"], ["QU.queue[0] = {v}"]),
    "counter": ("CO = Counter(k={v})", ["CO['k']", "CO.total()", "CO.most_common(1)[0][1]"], ["CO['k'] = {v}"]),
    "copies": ("CY = Data({v}, [{v}])", ["copy.copy(CY).x", "copy.deepcopy(CY).rows[0]"], ["CY.x = {v}", "CY.rows[0] = {v}"]),
    "keywords": ("KW = partial(Slots, x={v})", ["KW().x"], ["KW.keywords['x'] = {v}"]),
    "function in a dictionary": ("FD = {{'f': lambda: {v}}}", ["FD['f']()"], ["FD['f'] = lambda: {v}"]),
    "frozen": ("FR = [Frozen({v})]", ["FR[0].x"], ["FR[0] = Frozen({v})"]),
    "list with attributes": ("class ML(list): pass\nLA = ML([1])\nLA.x = {v}", ["LA.x", "len(LA)"], ["LA.x = {v}", "LA.append(1)"]),
    "missing": (
        "class Mi(dict):\n    def __missing__(self, key): return self.x\nMI = Mi()\nMI.x = {v}",
        ["MI['k']"],
        ["MI.x = {v}", "MI['k'] = {v}"],
    ),
    "weak values": ("WV = weakref.WeakValueDictionary()\nWO1 = Slots({v})\nWV['k'] = WO1", ["WV['k'].x"], ["WO1.x = {v}"]),
    "arguments of the program": ("sys.argv.append('{v}')", ["float(sys.argv[-1])"], ["sys.argv[-1] = '{v}'"]),
    "logger": (
        "LG = logging.getLogger('state')\nLG.setLevel(int({v}))",
        ["LG.level", "LG.getEffectiveLevel()"],
        ["LG.setLevel(int({v}))"],
    ),
    "memory of C": ("CT = ctypes.c_double({v})", ["CT.value"], ["CT.value = {v}"]),
    "text": ("TX = StringIO('{v}')", ["float(TX.getvalue())"], ["TX.seek(0); TX.write('{v}')"]),
    "keyword default": ("def kd(*, d={v}): return d", ["kd()"], ["kd.__kwdefaults__['d'] = {v}"]),
    "dispatch": ("@singledispatch\ndef sd(x): return {v}\nSDO = Slots(1)", ["sd(SDO)"], ["sd.register(Slots, lambda x: {v})"]),
    "nested closure": ("cells = [closure({v}) for _ in range(2)]", ["sum(read() for read, _ in cells)"], ["cells[0][1]({v})"]),
    "iterator of an object": ("IO = Special({v})", ["[y for y in IO][0]", "max(IO)", "(lambda *a: a[0])(*IO)"], ["IO._x = {v}"]),
    "comparison": (
        "CQ = Special({v})",
        ["(1 if CQ > 2 else 0)", "(1 if CQ == 3 else 0)", "sorted([CQ, Special(4)])[0]._x"],
        ["CQ._x = {v}"],
    ),
    "inner class": (
        "class Out:\n    class In: x = {v}",
        ["Out.In.x", "Out().In().x"],
        ["Out.In.x = {v}", "Out.In = type('In', (), dict(x={v}))"],
    ),
    "abstract": (
        "class Ab(ABC):\n    @abstractmethod\n    def of(self): ...\nclass Co(Ab):\n    y = {v}\n    def of(self): return self.y\nAB = Co()",
        ["AB.of()"],
        ["AB.y = {v}", "Co.y = {v}"],
    ),
    "enumeration": (
        "class En(Enum):\n    A = {v}\n    @property\n    def of(self): return SCALE[0]\nSCALE = [{v}]",
        ["En.A.value", "En.A.of"],
        ["SCALE[0] = {v}"],
    ),
}
COMMON = """
import copy, ctypes, logging, os, sys, threading, weakref
import numpy as np
from abc import ABC, abstractmethod
from array import array
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from configparser import ConfigParser
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, partial, reduce, singledispatch
from importlib import import_module
from io import StringIO
from operator import add, attrgetter, methodcaller
from queue import Queue
from types import MappingProxyType, ModuleType, SimpleNamespace

class Slots:
    __slots__ = ("x", "__weakref__")
    def __init__(self, x): self.x = x

class Property:
    def __init__(self, x): self._x = x
    @property
    def x(self): return self._x
    def twice(self): return self.x * 2

class Cached:
    def __init__(self, x): self._x = x
    @cached_property
    def x(self): return self._x

class GetAttr:
    def __init__(self, x): self.__dict__["data"] = {"x": x}
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return self.data["x"]

class Special:
    def __init__(self, x): self._x = x
    def __getitem__(self, key): return self._x
    def __call__(self, y): return self._x + y
    def __iter__(self): return iter([self._x, 1])
    def __len__(self): return int(self._x)
    def __mul__(self, other): return self._x * other
    def __radd__(self, other): return self._x + other
    def __neg__(self): return -self._x
    def __float__(self): return float(self._x)
    def __enter__(self): return self._x
    def __exit__(self, *error): return None
    def __bool__(self): return self._x > 2
    def __contains__(self, item): return item < self._x
    def __gt__(self, other): return self._x > other
    def __lt__(self, other): return self._x < other._x
    def __eq__(self, other): return self._x == other
    __hash__ = None

class Meta(type):
    @property
    def x(cls): return cls._x

class Descriptor:
    def __get__(self, instance, owner): return instance.store["x"]

class Described:
    x = Descriptor()
    def __init__(self, x): self.store = {"x": x}

@dataclass
class Data:
    x: float
    rows: list

@dataclass(frozen=True)
class Frozen:
    x: float

Named = namedtuple("Named", "x")

def closure(x):
    def write(new):
        nonlocal x
        x = new
    return (lambda: x), write

def first(rows): return rows[0].x
def item(mapping): return mapping["k"]
def deep(rows): return sum(y for row in rows for y in row["a"][1])
def read_global(): return G
def entered(manager):
    with manager as value: return value
def caught(mapping):
    try: return mapping["k"]
    except KeyError: return 5
G = 1.0
"""
OF_PROCESS = {name: ["pass"] for name in ("environment", "arguments of the program", "logger")}  # what two modules share
BODIES = [
    "    return x * ({0}) + ({1})",
    "    a = {0}\n    return x * a if a > 2 else x - ({1})",
    "    return (lambda y: y * ({0}))(x) + sum([{1} for _ in range(2)])",
    "    for _ in range(2):\n        x = x + ({0})\n    return x * ({1})",
    "    def inner(y): return y + ({0})\n    return inner(x) * ({1})",
]
VALUES = st.sampled_from([1.0, 2.0, 3.0, 5.0, 7.0])
_numbers = itertools.count()


@st.composite
def programs(draw: Any) -> tuple[list[str], str, list[str]]:
    """Draw definitions, a function's code, and the statements before each of its calls."""
    names = draw(st.lists(st.sampled_from([*HOLDERS]), min_size=1, max_size=2, unique=True))

    def filled(text: str) -> str:
        return text.format(v=draw(VALUES))

    definitions = [filled(HOLDERS[name][0]) for name in names]
    reads = [filled(draw(st.sampled_from(HOLDERS[draw(st.sampled_from(names))][1]))) for _ in range(2)]
    changes = [filled(draw(st.sampled_from(HOLDERS[draw(st.sampled_from(names))][2]))) for _ in range(draw(st.integers(1, 3)))]
    body = draw(st.sampled_from(BODIES)).format(*reads)
    own = filled(draw(st.sampled_from(OF_PROCESS.get(name := draw(st.sampled_from(names))) or HOLDERS[name][2])))
    at_once = draw(st.sampled_from(["", f"    {own}\n", f"    if FIRST[0]:\n        FIRST[0] = False\n        {own}\n"]))
    return [*definitions, "FIRST = [True]"], f"def fn(x):\n{at_once}{body}", changes


def module_of(folder: Path, definitions: list[str], function: str) -> ModuleType:
    """Import a module with this code, as a user's."""
    name = f"random_state_{next(_numbers)}"
    path = folder / f"{name}.py"
    path.write_text("\n".join([COMMON, *definitions, function]))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_OF_TEST", "1")
    monkeypatch.setattr(sys, "argv", [*sys.argv])


def check(folder: Path, definitions: list[str], function: str, changes: list[str], *, fused: bool = True) -> None:
    """Compare the calls of a function by `run` with the same code without a compiler."""
    module, eager = (module_of(folder, definitions, function) for _ in range(2))
    strategy, x = replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=fused), jnp.arange(3.0)
    try:
        for change in ["pass", *changes, "pass"]:
            exec(change, vars(module))
            exec(change, vars(eager))
            expected = np.asarray(eager.fn(x))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of code that is compiled again at each call
                got = strategy.experimental_local_results(strategy.run(module.fn, (x,)))
            for each in got:
                np.testing.assert_allclose(np.asarray(each), expected, rtol=1e-6, err_msg=f"{definitions}\n{function}\n{change}")
    finally:
        del sys.modules[module.__name__], sys.modules[eager.__name__]


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) for name in HOLDERS])
def test_every_way_to_read_and_to_change(name: str, tmp_path: Path) -> None:
    definition, reads, changes = HOLDERS[name]
    for read in reads:
        function = f"def fn(x):\n    return x * ({read.format(v=3.0)}) + 1"
        check(
            tmp_path,
            [definition.format(v=2.0)],
            function,
            [change.format(v=v) for v, change in zip((3.0, 5.0, 7.0, 2.0, 1.0, 5.0), 2 * changes, strict=False)],
        )


@pytest.mark.long
@hypothesis.settings(max_examples=60, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(program=programs(), fused=st.booleans())
def test_random_functions_of_state_that_changes(tmp_path: Path, program: tuple[list[str], str, list[str]], fused: bool) -> None:
    check(tmp_path, *program, fused=fused)
