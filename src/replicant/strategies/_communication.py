"""How workers talk to each other, as far as one can choose."""

import dataclasses
import enum

from ..errors import ArgumentError, ArgumentTypeError


class CommunicationImplementation(enum.Enum):
    """What carries the all-reduces. JAX chooses by the devices: gloo between CPUs, NCCL between GPUs, a TPU's own links."""

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


@dataclasses.dataclass(frozen=True)
class CommunicationOptions:
    """Options of the exchanges between workers. Semantics: tf.distribute.experimental.CommunicationOptions.

    Args:
        bytes_per_pack: gradients are sent in pieces of at most so many bytes; 0: as XLA likes best. It acts where they are sent as
            one flat vector, which is on CPU; XLA combines those of GPUs and TPUs by itself.
        timeout_seconds: how long a worker waits for the others' part of what goes through the coordination service: shapes,
            programs, ends of data, checkpoints; None: 600, or REPLICANT_EXCHANGE_TIMEOUT. All-reduces on devices have no deadline
            of their own: a worker that is gone is noticed by its silence.
        implementation: AUTO, or what the devices use anyway: NCCL with GPUs, RING with CPUs.

    Raises ArgumentError for negative numbers, ArgumentTypeError for another implementation.

    >>> CommunicationOptions(bytes_per_pack=1 << 20).bytes_per_pack
    1048576
    """

    bytes_per_pack: int = 0
    timeout_seconds: float | None = None
    implementation: CommunicationImplementation = CommunicationImplementation.AUTO

    def __post_init__(self) -> None:
        if not isinstance(self.bytes_per_pack, int) or self.bytes_per_pack < 0:
            raise ArgumentError(f"CommunicationOptions: bytes_per_pack must be a whole number from 0; got {self.bytes_per_pack!r}.")
        if self.timeout_seconds is not None and not self.timeout_seconds > 0:
            raise ArgumentError(f"CommunicationOptions: timeout_seconds must be above 0; got {self.timeout_seconds!r}.")
        if not isinstance(self.implementation, CommunicationImplementation):
            raise ArgumentTypeError(
                "CommunicationOptions: implementation must be a CommunicationImplementation, such as "
                f"CommunicationImplementation.AUTO; got {self.implementation!r}."
            )

    def check_for(self, platform: str) -> None:
        """Raise ArgumentError if the devices of this platform do not talk as asked."""
        asked = self.implementation
        carried = {"cpu": CommunicationImplementation.RING, "gpu": CommunicationImplementation.NCCL}.get(platform)
        if asked is not CommunicationImplementation.AUTO and asked is not carried:
            has = "their own links" if carried is None else carried.value
            raise ArgumentError(
                f"CommunicationOptions: {asked.value} was asked for, but {platform} devices use {has}. Leave it at AUTO."
            )
