"""Every exception that Replicant itself raises.

Each class also inherits the built-in type that tf.distribute programs catch, so ``except ValueError`` keeps working::

    ReplicantError
    ├── ConfigurationError (ValueError)      a setting that cannot work here
    │   ├── DeviceError                      unknown, missing or repeated devices
    │   ├── BackendError                     Keras runs on another backend, or a version is not supported
    │   ├── ClusterError                     the description of the cluster is missing, malformed or contradictory
    │   │   └── UnreachableError (also OSError)  a host whose name does not resolve, or that does not answer in time
    │   └── AlreadyStartedError (also RuntimeError)  too late: JAX has started
    ├── WorkerError (RuntimeError)           something that the workers do together failed
    │   ├── WorkerLostError                  a worker failed, ended, stopped responding or did not arrive in time
    │   ├── WorkersChangedError              the set of workers changes; `run_elastic` handles it
    │   └── WorkerMismatchError              the workers do different things: other programs, shapes or versions
    ├── ContextError (RuntimeError)          called in the wrong place (inside or outside ``run``, ``scope``)
    │   └── MixedStrategyError               two strategies in one scope
    ├── LostStateError (RuntimeError)        a traced function changed an object in a way that would be lost
    ├── ArgumentError (ValueError)           a value that breaks a rule: unknown op, axis out of range, bad shape
    ├── ArgumentTypeError (TypeError)        a value of the wrong type
    ├── VariableError (ValueError)           a variable used against its synchronization or aggregation
    │   └── DivergenceError                  replicas would stop agreeing
    ├── GradientError (RuntimeError)         a gradient that the tape cannot compute
    ├── LossReductionError (ValueError)      a Keras loss whose reduction is wrong inside ``run``
    ├── ReductionError (ValueError)          with ``strict=True``: what would otherwise be a ReductionWarning
    ├── RaggedStepError (ValueError)         something that replicas with different numbers of rows cannot do together
    ├── DatasetError (ValueError)            a dataset that cannot be built or distributed
    │   └── ElementError                     an element that breaks the dataset's structure
    ├── CommandError (ValueError)            a name or file that a command of ``replicant`` cannot use
    ├── OutOfRangeError (IndexError)         read past the end of an iterator or optional
    ├── NonFiniteError (RuntimeError)        a loss, or what a step would have written, is NaN or infinite
    ├── StepTimeoutError (TimeoutError)      a step took longer than a Watchdog allows
    ├── CheckpointError (ValueError)         a checkpoint that is missing, damaged or does not fit
    │   └── DamagedCheckpointError           bytes are missing or have changed
    ├── ParameterServerError (RuntimeError)  a parameter server, or a worker that trains with it, cannot continue
    │   ├── LostProcessError                 a process ended, or nobody answered within the deadline
    │   └── CancelledError                   a closure did not run, because another one had failed before
    └── UnserializableError (TypeError)      a closure uses something that cannot be sent to another process

There is one category of warnings, ``ReductionWarning`` (a UserWarning): the sum over the replicas counts a gradient several times.
"""


class ReplicantError(Exception):
    """Base class of all errors of this package."""


class ConfigurationError(ReplicantError, ValueError):
    """A setting that cannot work here."""


class DeviceError(ConfigurationError):
    """Unknown, missing or repeated devices."""


class BackendError(ConfigurationError):
    """Keras runs on a backend, or Keras or JAX in a version, that Replicant cannot drive."""


class ClusterError(ConfigurationError):
    """The description of the cluster, from the environment or a resolver, is missing, malformed or contradictory."""


class UnreachableError(ClusterError, OSError):
    """A host's name does not resolve, or nobody answers at its address within the deadline."""


class AlreadyStartedError(ConfigurationError, RuntimeError):
    """A setting that must be made before JAX starts was made too late."""


class WorkerError(ReplicantError, RuntimeError):
    """Something that the workers do together failed."""


class WorkerLostError(WorkerError):
    """A worker failed, ended, stopped responding, or did not arrive in time."""


class WorkersChangedError(WorkerError):
    """The set of workers changes, because others have arrived; `run_elastic` handles it."""


class WorkerMismatchError(WorkerError):
    """The workers do different things: they run other programs, with other shapes, or in other versions."""


class ContextError(ReplicantError, RuntimeError):
    """A call in the wrong place: inside or outside ``run``, ``scope`` or ``function``."""


class MixedStrategyError(ContextError):
    """Two strategies are active at once."""


class LostStateError(ReplicantError, RuntimeError):
    """A compiled function changed an object in a way that would be lost when it returns."""


class ArgumentError(ReplicantError, ValueError):
    """An argument's value breaks a rule."""


class ArgumentTypeError(ReplicantError, TypeError):
    """An argument has the wrong type."""


class VariableError(ReplicantError, ValueError):
    """A variable was used against its synchronization or aggregation."""


class DivergenceError(VariableError):
    """The replicas' copies of a mirrored variable would stop agreeing."""


class GradientError(ReplicantError, RuntimeError):
    """The tape was asked for a gradient that it cannot compute."""


class LossReductionError(ReplicantError, ValueError):
    """A Keras loss with a mean-type reduction was called inside ``run``."""


class ReductionError(ReplicantError, ValueError):
    """The sum over the replicas counts a gradient several times, under a strategy with ``strict=True``."""


class ReductionWarning(UserWarning):
    """The sum over the replicas counts a gradient several times; the message names the line and says what to write."""


class RaggedStepError(ReplicantError, ValueError):
    """Replicas with different numbers of rows cannot do this together."""


class DatasetError(ReplicantError, ValueError):
    """A dataset cannot be built or distributed."""


class ElementError(DatasetError):
    """An element breaks the dataset's structure."""


class CommandError(ReplicantError, ValueError):
    """A command of ``replicant`` cannot use the name or file that it was given."""


class OutOfRangeError(ReplicantError, IndexError):
    """Read past the end of an iterator, or from an empty optional."""


class NonFiniteError(ReplicantError, RuntimeError):
    """A loss, or something that a training step would have written, is NaN or infinite."""


class StepTimeoutError(ReplicantError, TimeoutError):
    """A training step took longer than a Watchdog allows."""


class CheckpointError(ReplicantError, ValueError):
    """A checkpoint is missing, damaged, or does not fit the objects it is restored into."""


class DamagedCheckpointError(CheckpointError):
    """Bytes of a checkpoint are missing or have changed; an older checkpoint may be whole."""


class ParameterServerError(ReplicantError, RuntimeError):
    """A parameter server, or a worker that trains with it, cannot continue."""


class LostProcessError(ParameterServerError):
    """A worker or server ended and its work could not be given to another, or nobody answered within the deadline."""


class CancelledError(ParameterServerError):
    """A closure did not run, because another one had failed before."""


class UnserializableError(ReplicantError, TypeError):
    """A closure, or something that it uses, cannot be sent to another process."""
