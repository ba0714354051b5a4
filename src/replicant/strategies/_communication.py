"""Options for the communication between workers."""

import dataclasses
import enum

from ..errors import ArgumentError, ArgumentTypeError


class CommunicationImplementation(enum.Enum):
    """What carries the all-reduces. JAX chooses it by the devices: Gloo for CPUs, NCCL for GPUs, their own links for TPUs."""

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


@dataclasses.dataclass(frozen=True)
class CommunicationOptions:
    """Options of the exchanges between workers. Semantics: tf.distribute.experimental.CommunicationOptions.

    Args:
        bytes_per_pack: The largest number of bytes of gradients to send at once; 0 lets XLA choose. It applies on CPU, where
            gradients are sent as one flat vector. On GPUs and TPUs, XLA combines them itself.
        timeout_seconds: How many seconds a worker waits for the others in exchanges through the coordination service: shapes,
            programs, ends of data, checkpoints. None means REPLICANT_EXCHANGE_TIMEOUT, or 600. All-reduces on devices have no
            deadline of their own; a lost worker is noticed by its missing heartbeats.
        implementation: AUTO, or what the devices use anyway: NCCL on GPUs, RING on CPUs.

    Raises:
        ArgumentError: If `bytes_per_pack` is not a whole number from 0, or `timeout_seconds` is not above 0.
        ArgumentTypeError: If `implementation` is not a ``CommunicationImplementation``.

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
        """Raise ArgumentError if devices of this platform do not use the implementation that was asked for."""
        asked = self.implementation
        carried = {"cpu": CommunicationImplementation.RING, "gpu": CommunicationImplementation.NCCL}.get(platform)
        if asked is not CommunicationImplementation.AUTO and asked is not carried:
            has = "their own links" if carried is None else carried.value
            raise ArgumentError(
                f"CommunicationOptions: implementation is {asked.value}, but {platform} devices use {has}. Leave it at AUTO."
            )
