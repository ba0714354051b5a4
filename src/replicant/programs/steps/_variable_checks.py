"""What a step may not do with variables: use those of other devices, and give replicas different values of one."""

from collections.abc import Container, Iterable, Sequence

from ...errors import DivergenceError, MixedStrategyError
from ...replicas._context import ActiveStrategy
from ...variables._ref import Ref


def check_owners(strategy: ActiveStrategy, refs: Iterable[Ref]) -> None:
    """Raise MixedStrategyError for variables that were made under a strategy on other devices."""
    placement = strategy.placement
    if placement.planning is not None or not placement.devices:
        return
    for ref in refs:
        if ref.strategy is not None and ref.strategy.placement != placement:
            raise MixedStrategyError(
                f"Variable {ref.name!r} belongs to {ref.strategy!r} but is used in `run` of {strategy!r}. To continue "
                "with the other strategy, create the model or the variable again in its scope and assign the old values to it, "
                "or save them in a checkpoint and restore that there."
            )


def check_agreement(written: Sequence[Ref], varies: Sequence[bool], num_replicas: int, slices: Container[Ref] = ()) -> None:
    """Raise DivergenceError if a mirrored variable would get a different value on each replica."""
    for ref, differs in zip(written, varies, strict=True):
        if differs and not ref.copies(num_replicas) and ref not in slices:
            raise DivergenceError(
                f"Variable {ref.name!r} (shape {ref.shape}, aggregation=NONE) was assigned a value that differs between the "
                f"{num_replicas} replicas, so its copies would no longer agree. {ref.if_copies_differ}"
            )
