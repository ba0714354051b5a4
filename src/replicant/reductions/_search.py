"""Follows gradients through a traced replica function to the sums over the replicas, and on to what they update.

What is known about a value follows, equation by equation, from what is known about the values that it was computed from. A cause
(why a gradient is too large) begins where the mistake is, and is dropped where something is divided by what may be the number of
replicas. It is reported once something is updated with the gradient.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from ..replicas._collectives import sum_p
from ..replicas._copies import VariableAggregation
from ..tracing.jaxprs._graph import Graph, Node, Operand, Value, ancestors
from ..tracing.jaxprs._marks import gradient_p, sync_p
from ..tracing.jaxprs._primitive_names import ADDITIVE, AGREEING, INDEX, LINEAR, SUM_OF_SLICES, SUMS
from ._causes import Again, Cause, Finding, Input, Mean, Shared

_SUMS = SUMS | {SUM_OF_SLICES, sum_p.name}

# The name of the part of a program in which an optimizer sums gradients over the replicas.
GRADIENTS = "replicant_sum_of_gradients"
# The name of the division in compute_average_loss, whose count is checked separately.
AVERAGE = "replicant_average_loss"


@dataclasses.dataclass
class _State:
    """What is known about a value."""

    differs: bool = False
    gradient: bool = False  # of a loss, or computed from one
    means: frozenset[Mean] = frozenset()  # means over rows, which make this gradient as large as that of a whole batch
    scaled: bool = False  # perhaps divided by the number of replicas
    agreed: bool = False  # a gradient that was combined over the replicas
    summed: frozenset[Cause] = frozenset()  # why it is too large, after the sum over the replicas
    applied: frozenset[Cause] = frozenset()  # those with which something was updated
    seed: bool = False  # in the backward pass, and computed only from literal numbers
    rows: frozenset[Input] = frozenset()  # whose rows lie along axis 0


def sums_over_replicas(node: Node) -> bool:
    """Whether an equation adds up, or otherwise combines, values of all replicas."""
    return node.name in _SUMS or node.eqn.primitive is sync_p


class Search:
    """What is known about the values of one graph, given the kinds of its inputs. A mean is taken over `least` rows or more."""

    def __init__(self, graph: Graph, inputs: Sequence[Input], num_replicas: int, *, least: int = 2):
        self._graph = graph
        self._n = num_replicas
        self._least = least
        self._known: dict[int, _State] = {}
        self._of: dict[int, Input] = {}
        self._sites: dict[int, Mean] = {}
        self._by_origin: dict[Any, Mean] = {}
        self._constant: dict[int, bool] = {}
        self._global_sizes: set[int] = set()
        self._any_own = any(x.differs and x.argument for x in inputs)
        gradients = {v.shape for node in graph.nodes if node.name in SUMS for v in self._leaves(node)}
        for value, kind in zip(graph.inputs, inputs, strict=True):
            # In programs without variables, parameters are arguments too; they have the shapes of their gradients.
            batch = kind.argument is not None and value.shape != () and (kind.differs or value.shape not in gradients)
            if batch and (kind.differs or not self._any_own):
                self._global_sizes.add(value.shape[0] * num_replicas)
            rows = frozenset([kind]) if batch else frozenset()
            self._known[id(value)] = _State(differs=kind.differs, agreed=kind.accumulates is not None, rows=rows)
            self._of[id(value)] = kind
        for value in graph.constants:
            captured = Input(differs=False, argument=f"A captured array of shape {value.shape}")
            batch = value.shape != () and value.shape not in gradients
            self._known[id(value)] = _State(rows=frozenset([captured]) if batch else frozenset())

    def findings(self) -> list[Finding]:
        """What to tell the user."""
        self.read()
        applied = frozenset().union(*(self._state(value).applied for value in self._graph.outputs))
        found = {cause.finding(self._n): cause for cause in applied}
        # A gradient that is the same on all replicas is too large for that reason alone, whatever its loss is.
        whole = [finding for finding, cause in found.items() if not isinstance(cause, Mean)]
        return sorted(whole or found, key=lambda finding: finding.line or ("", 0))

    def read(self) -> None:
        """Go through the graph."""
        for node in self._graph.nodes:
            self._enter(node)

    def _state(self, x: Operand) -> _State:
        return self._known.setdefault(id(x), _State()) if isinstance(x, Value) else _State(seed=True)

    # What an equation does.

    def _enter(self, node: Node) -> None:
        states = [self._state(x) for x in node.inputs]
        if sums_over_replicas(node):
            results = [self._after_exchange(node, states)] * len(node.outputs)
        elif node.eqn.primitive is gradient_p:
            results = [self._of_gradient(node)] * len(node.outputs)
        else:
            results = [self._ordinary(node, states, output) for output in node.outputs]
        for value, state in zip(node.outputs, results, strict=True):
            self._known[id(value)] = state

    def _ordinary(self, node: Node, states: list[_State], output: Value) -> _State:
        factor = node.factor()
        new = _State(
            differs=(any(s.differs for s in states) and node.name not in AGREEING) or node.name == INDEX,
            gradient=any(s.gradient for s in states) or node.backward,
            means=frozenset().union(*(s.means for s in states)),
            scaled=any(s.scaled for s in states),
            agreed=any(s.agreed for s in states) and not node.backward,
            summed=frozenset().union(*(s.summed for s in states)),
            applied=frozenset().union(*(s.applied for s in states)),
            seed=node.backward and all(s.seed for s in states),
            rows=self._rows(node, states, output),
        )
        if not node.backward and factor is not None and (mean := self._mean_here(node, *factor)) is not None:
            self._sites[id(node)] = mean
            self._by_origin[_origin(node)] = mean
            return new
        if node.backward and new.seed and factor is not None and (mean := self._by_origin.get(_origin(node))) is not None:
            new.means = frozenset() if new.scaled else new.means | {mean}
            return new
        if factor is not None:
            self._scale(node, new, factor[1])
        elif self._hides_a_factor(node, states):
            new.scaled, new.means = True, frozenset()
        if node.name in ADDITIVE and new.summed and any(not s.summed for s in states):
            new.applied |= new.summed
        return new

    def _scale(self, node: Node, state: _State, divisor: float) -> None:
        """Take a literal factor into account, which may be the number of replicas."""
        if state.summed and self._is_count(divisor, exactly=True):
            state.summed = frozenset()
        if state.agreed and self._is_count(divisor, exactly=True):
            state.agreed = False
        # In the middle of the backward pass, the numbers belong to the model.
        linear = state.seed or (state.gradient and not node.backward)
        # Gradients are multiplied by learning rates such as 0.1, which do not stand for a division by ten.
        exactly = node.name == "mul" and not node.backward
        if linear and not state.summed and self._is_count(divisor, exactly=exactly):
            state.scaled, state.means = True, frozenset()

    def _is_count(self, divisor: float, *, exactly: bool) -> bool:
        whole = round(divisor)
        if abs(divisor - whole) > 1e-6 * max(1.0, abs(divisor)):
            return False
        return abs(whole) == self._n or (not exactly and whole != 0 and whole % self._n == 0)

    def _hides_a_factor(self, node: Node, states: list[_State]) -> bool:
        """Whether a gradient, or what becomes one, is scaled by a number that is known only when the program runs."""
        if node.name not in ("mul", "div"):
            return False
        for state, other in ((states[0], node.inputs[1]), (states[-1], node.inputs[0])):
            relevant = state.seed or (state.gradient and not node.backward)
            if relevant and isinstance(other, Value) and math.prod(other.shape) == 1 and not self._is_of_variables(other):
                return True
        return False

    def _is_of_variables(self, value: Value) -> bool:
        """Whether it was computed only from variables and literal numbers, such as a schedule or a loss scale."""
        if id(value) not in self._constant:
            self._constant[id(value)] = not any(self._is_foreign(x) for x in ancestors([value]))
        return self._constant[id(value)]

    def _is_foreign(self, x: Value) -> bool:
        kind = self._of.get(id(x))
        return (kind is not None and kind.argument is not None) or (x.maker is not None and x.maker.name in AGREEING)

    # Rows and means over them.

    def _rows(self, node: Node, states: list[_State], output: Value) -> frozenset[Input]:
        shape = output.shape
        if not shape or not any(s.rows for s in states) or node.name in AGREEING or not self._keeps_axis_0(node):
            return frozenset()
        rows: set[Input] = set()
        for x, state in zip(node.inputs, states, strict=True):
            if state.rows and self._same_rows(node, x.shape, shape):
                rows |= state.rows
        return frozenset(rows)

    @staticmethod
    def _same_rows(node: Node, old: tuple[int, ...], new: tuple[int, ...]) -> bool:
        if node.name == "scan":  # a loop over parts of the batch
            return len(new) == len(old) - 1
        if node.name == "reshape":
            return 0 not in old[:1] + new[:1] and (new[0] % old[0] == 0 or old[0] % new[0] == 0)
        return bool(old) and old[0] == new[0]

    @staticmethod
    def _keeps_axis_0(node: Node) -> bool:
        params = node.eqn.params
        if node.name.startswith(("reduce_", "arg")):
            return 0 not in params.get("axes", ())
        if node.name == "transpose":
            return params["permutation"][0] == 0
        if node.name == "broadcast_in_dim":
            return 0 in params["broadcast_dimensions"][:1]
        if node.name == "squeeze":
            return 0 not in params["dimensions"]
        if node.name == "dot_general":
            (left, right), (left_batch, _) = params["dimension_numbers"]
            return 0 in left_batch or (0 not in left and not left_batch) or (0 not in right and not left_batch)
        return True

    def _mean_here(self, node: Node, value: Operand, divisor: float) -> Mean | None:
        """The mean over rows that this division computes."""
        if divisor < self._least - 1e-4 or (total := self._row_sum(value)) is None:
            return None
        whose = self._state(total.inputs[0]).rows
        if self._any_own and not any(kind.differs for kind in whose):
            return None
        sizes = [total.inputs[0].shape[axis] for axis in total.eqn.params["axes"]]
        rows, along = total.inputs[0].shape[0], math.prod(sizes)
        size = next((k for k in (along, rows, self._elements(total)) if abs(divisor - k) < 1e-4 * k), 0)
        # The rows of the whole batch: perhaps the size of a mean over n columns, but just as likely the right count.
        if (
            rows < self._least
            or size < self._least
            or size in self._global_sizes
            or AVERAGE in str(node.eqn.source_info.name_stack)
        ):
            return None
        return Mean(node, size, whose)

    def _row_sum(self, value: Operand) -> Node | None:
        """The sum over rows that `value` is a multiple of; None behind a mean, which one divides by the number of replicas."""
        while isinstance(value, Value) and value.maker is not None:
            node = value.maker
            if id(node) in self._sites:
                return None
            if self.sums_rows(node):
                return node
            factor = node.factor()
            if factor is None and node.name not in LINEAR:
                return None
            value = factor[0] if factor is not None else node.inputs[0]
        return None

    @staticmethod
    def _elements(total: Node) -> int:
        """How many numbers were added up by consecutive sums."""
        size, value = 1, total.outputs[0]
        while value.maker is not None and value.maker.name in ("reduce_sum", "reshape", "convert_element_type"):
            node = value.maker
            if node.name == "reduce_sum":
                size *= math.prod(node.inputs[0].shape[axis] for axis in node.eqn.params["axes"])
            if not isinstance(node.inputs[0], Value):
                break
            value = node.inputs[0]
        return size

    # Gradients of tapes.

    def _of_gradient(self, mark: Node) -> _State:
        targets = mark.inputs[: mark.eqn.params["num_targets"]]
        differs = any(self._state(x).differs for x in ancestors(targets))
        walk = _Walk(self)
        for target in targets:
            walk.follow(target)
        return _State(differs=differs, gradient=True, means=frozenset(walk.means), scaled=walk.scaled)

    def mean_at(self, node: Node) -> Mean | None:
        """The mean that this division was found to compute."""
        return self._sites.get(id(node))

    def sums_rows(self, node: Node) -> bool:
        """Whether an equation adds up rows."""
        return node.name == "reduce_sum" and bool(self._state(node.inputs[0]).rows) and 0 in node.eqn.params["axes"]

    def divides_by_replicas(self, divisor: float) -> bool:
        """Whether a factor of a loss may stand for the number of replicas."""
        return self._is_count(divisor, exactly=False)

    def is_known_factor(self, x: Operand) -> bool:
        """Whether a factor of a loss cannot stand for the number of replicas."""
        return isinstance(x, Value) and math.prod(x.shape) == 1 and self._is_of_variables(x)

    # Sums over replicas.

    def _leaves(self, node: Node) -> list[Value]:
        """The values that are summed; those that were packed into one vector are listed one by one."""
        leaves, todo = [], [x for x in node.inputs if isinstance(x, Value)]
        while todo:
            value = todo.pop()
            maker = value.maker
            if maker is not None and maker.name == "dynamic_update_slice" and len(value.shape) == 1:
                todo += [x for x in maker.inputs[:2] if isinstance(x, Value)]
            elif maker is not None and maker.name == "reshape" and len(value.shape) == 1 and isinstance(maker.inputs[0], Value):
                todo.append(maker.inputs[0])
            else:
                leaves.append(value)
        return leaves

    def _after_exchange(self, node: Node, states: list[_State]) -> _State:
        sums = node.name in _SUMS or node.eqn.params.get("aggregation") is VariableAggregation.SUM
        gradient = any(s.gradient for s in states)
        causes: frozenset[Cause] = frozenset()
        if sums and not node.backward:
            causes = frozenset().union(self._of_equal(node), *(s.means for s in states))
        return _State(
            differs=node.name in (SUM_OF_SLICES, sum_p.name),  # each replica has its own slice of the sum
            gradient=gradient,
            agreed=gradient and not node.backward,
            summed=causes | frozenset().union(*(s.summed for s in states)),
            applied=frozenset().union(*(s.applied for s in states)),
        )

    def _of_equal(self, node: Node) -> frozenset[Cause]:
        """Why a sum of gradients that are the same on all replicas is too large."""
        found: set[Cause] = set()
        for leaf in self._leaves(node):
            state = self._state(leaf)
            gradient = state.gradient or GRADIENTS in str(node.eqn.source_info.name_stack)
            if state.differs or not gradient:
                continue
            if state.agreed:
                found.add(Again(node, self._accumulator(leaf)))
            elif not state.scaled and (shared := self._shared_rows(leaf)) is not None:
                found.add(shared)
        return frozenset(found)

    def _accumulator(self, leaf: Value) -> str | None:
        """The variable that a summed value was read from, if the variable was already combined over the replicas."""
        for x in ancestors([leaf]):
            kind = self._of.get(id(x))
            if kind is not None and kind.accumulates:
                return kind.accumulates
        return None

    def _shared_rows(self, gradient: Value) -> Shared | None:
        """The sum, behind this gradient, over rows of an array that is the same on all replicas."""
        behind = list(ancestors([gradient]))
        makers = [x.maker for x in behind if x.maker is not None]
        used = frozenset().union(*(self._state(x).rows for x in behind if x.maker is None))
        lines = {node.line for node in makers if node.backward}  # of what jax.grad differentiates
        for node in [*makers, *[node for node in self._graph.nodes if lines and node.line in lines]]:
            if node.name == "reduce_sum" and not node.backward and 0 in node.eqn.params["axes"]:
                whose = [kind for kind in self._state(node.inputs[0]).rows & used if not kind.differs]
                if whose:
                    return Shared(node, min(whose, key=lambda kind: str(kind.argument)))
        return None


class _Walk:
    """Walks from a tape's target back to the means that it is a multiple of."""

    def __init__(self, search: Search):
        self._search = search
        self._seen: set[int] = set()
        self.means: set[Mean] = set()
        self.scaled = False

    def follow(self, target: Operand) -> None:
        """Find the means behind `target`, unless a factor on the way may be the number of replicas."""
        todo: list[tuple[Operand, Mean | None]] = [(target, None)]
        while todo:
            value, mean = todo.pop()
            if not isinstance(value, Value) or value.maker is None or id(value) in self._seen:
                self._keep(mean)
                continue
            self._seen.add(id(value))
            node = value.maker
            found, factor = self._search.mean_at(node), node.factor()
            if found is not None and factor is not None:
                todo.append((factor[0], found))
            elif factor is not None and self._search.divides_by_replicas(factor[1]):
                self.scaled = True
            elif factor is not None:
                todo.append((factor[0], mean))
            elif node.name in LINEAR:
                todo.append((node.inputs[0], mean))
            elif node.name in ADDITIVE or node.name in ("cond", "select_n"):
                todo += [(x, mean) for x in node.inputs]
            elif node.name in ("mul", "div"):
                self._product(node, mean, todo)
            else:
                self._keep(mean)

    def _product(self, node: Node, mean: Mean | None, todo: list[tuple[Operand, Mean | None]]) -> None:
        a, b = node.inputs
        if self._search.is_known_factor(b):
            todo.append((a, mean))
        elif node.name == "mul" and self._search.is_known_factor(a):
            todo.append((b, mean))
        elif math.prod(a.shape) == 1 or math.prod(b.shape) == 1:
            self.scaled = True  # by a number that is known only when the program runs
        else:
            self._keep(mean)

    def _keep(self, mean: Mean | None) -> None:
        if mean is not None:
            self.means.add(mean)


def _origin(node: Node) -> Any:
    """Where an equation comes from in the user's code; its counterpart in the backward pass has the same origin."""
    factor = node.factor()
    return node.line, factor and round(factor[1], 3)
