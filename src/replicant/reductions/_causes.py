"""Why a sum of gradients over the replicas is several times that of one device, and the message that says so."""

import dataclasses

from ..tracing.jaxprs._graph import Line, Node


@dataclasses.dataclass(frozen=True)
class Input:
    """An input of a replica's program: a variable, an argument, or an array that the function captured."""

    differs: bool  # between the replicas
    argument: str | None = None  # what the user calls it, such as "args[0]"; None for a variable
    accumulates: str | None = None  # the name of a variable whose value was combined over the replicas when it was assigned


@dataclasses.dataclass(frozen=True)
class Finding:
    """One mistake, as it is reported to the user."""

    text: str
    line: Line | None


def not_distributed(whose: Input) -> str:
    """The message about an argument that is the same on all replicas."""
    return f"{whose.argument} was not distributed: every replica got all of its rows."


@dataclasses.dataclass(eq=False)
class Mean:
    """A division by the number of values that were added up along the rows."""

    node: Node
    size: int
    inputs: frozenset[Input]  # whose rows they are

    def finding(self, num_replicas: int) -> Finding:
        """The message for the user."""
        if not any(kind.differs for kind in self.inputs):
            return Shared(self.node, min(self.inputs, key=lambda kind: str(kind.argument))).finding(num_replicas)
        return Finding(
            f"This mean is taken over the {self.size} values of one replica, and its gradient is summed over the {num_replicas} "
            f"replicas, so it is {num_replicas} times that of one device. Write replicant.compute_average_loss(per_example_loss, "
            "global_batch_size=...), or divide the mean by strategy.num_replicas_in_sync, or combine the gradients with "
            "all_reduce('MEAN', gradients).",
            self.node.line,
        )


@dataclasses.dataclass(frozen=True)
class Shared:
    """A sum over rows that are the same on all replicas, behind a gradient that is also the same on all of them."""

    node: Node
    whose: Input

    def finding(self, num_replicas: int) -> Finding:
        """The message for the user."""
        return Finding(
            f"{not_distributed(self.whose)} Each of the {num_replicas} replicas computes the gradient of all examples, and their "
            f"sum is {num_replicas} times that of one device. Distribute the batch with "
            "strategy.experimental_distribute_dataset(dataset), or with "
            "strategy.experimental_distribute_values_from_function(...). If every replica is meant to see all rows, divide the "
            "loss by strategy.num_replicas_in_sync.",
            self.node.line,
        )


@dataclasses.dataclass(frozen=True)
class Again:
    """A sum over the replicas of a gradient that was already summed over them, perhaps in a variable."""

    node: Node
    variable: str | None

    def finding(self, num_replicas: int) -> Finding:
        """The message for the user."""
        what = "A gradient that is already summed over the replicas"
        if self.variable is not None:
            what = f"The value of variable {self.variable!r}, which was combined over the replicas when it was assigned,"
        return Finding(
            f"{what} is summed over them again: the result is {num_replicas} times the right one. A Keras optimizer's "
            "apply_gradients inside `run` sums the gradients by itself: give it each replica's own, and accumulate them in "
            "variables with synchronization=ON_READ; or apply gradients that are already summed outside of `run`.",
            self.node.line,
        )


Cause = Mean | Shared | Again
