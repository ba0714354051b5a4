"""The exceptions that Replicant raises.

Each class also inherits from the built-in type that tf.distribute programs catch, so ``except ValueError`` keeps working::

    ReplicantError
    ├── ConfigurationError (ValueError)      a setting that cannot work here
    │   ├── DeviceError                      unknown, missing or repeated devices
    │   ├── BackendError                     Keras runs on another backend, or a version is not supported
    │   ├── ClusterError                     the description of the cluster is missing, malformed or contradictory
    │   │   └── UnreachableError (also OSError)  a host whose name does not resolve, or that does not answer in time
    │   ├── UnsupportedSystemError (also ImportError)  an operating system on which it does not run
    │   └── AlreadyStartedError (also RuntimeError)  a setting that comes too late, because JAX has started
    ├── WorkerError (RuntimeError)           something that the workers do together has failed
    │   ├── WorkerLostError                  a worker failed, ended, stopped responding or did not arrive in time
    │   ├── WorkersChangedError              the set of workers changes; ``run_elastic`` handles it
    │   └── WorkerMismatchError              the workers have different programs, shapes or versions
    ├── ContextError (RuntimeError)          a call in the wrong place, inside or outside ``run`` or ``scope``
    │   └── MixedStrategyError               two strategies in one scope
    ├── LostStateError (RuntimeError)        a traced function changed an object in a way that would be lost
    ├── TracedValueError (TypeError)         Python code needs the value of an array while it is compiled
    ├── ArgumentError (ValueError)           a value that breaks a rule: unknown op, axis out of range, bad shape
    ├── ArgumentTypeError (TypeError)        a value of the wrong type
    ├── VariableError (ValueError)           a use of a variable that its synchronization or aggregation forbids
    │   └── DivergenceError                  copies of a variable that would stop agreeing
    ├── GradientError (RuntimeError)         a gradient that the tape cannot compute
    ├── LossReductionError (ValueError)      a Keras loss whose reduction is wrong inside ``run``
    ├── ReductionError (ValueError)          with ``strict=True``: what would otherwise be a ReductionWarning
    ├── RaggedStepError (ValueError)         something that replicas with different numbers of rows cannot do
    ├── DatasetError (ValueError)            a dataset that cannot be built or distributed
    │   └── ElementError                     an element that breaks the dataset's structure
    ├── CommandError (ValueError)            a name or file that a command of ``replicant`` cannot use
    ├── MissingNameError (AttributeError)    a name of TensorFlow in whose place there is something else here
    ├── OutOfRangeError (IndexError)         a read past the end of an iterator, or from an empty optional
    ├── NonFiniteError (RuntimeError)        a loss, or a value that a step would have written, is NaN or infinite
    ├── StepTimeoutError (TimeoutError)      a step took longer than a Watchdog allows
    ├── WriteError (OSError)                 a log that the disk does not take, as when it is full
    ├── SummaryError (ValueError)            event files of TensorBoard that are missing or damaged
    ├── ProfileError (RuntimeError)          a profile that cannot be recorded or read
    ├── CheckpointError (ValueError)         a checkpoint that is missing, damaged or does not fit
    │   └── DamagedCheckpointError           bytes are missing or have changed
    ├── ParameterServerError (RuntimeError)  a parameter server, or a worker that trains with it, cannot continue
    │   ├── LostProcessError                 a process ended, or did not answer within the deadline
    │   └── CancelledError                   a closure did not run because another one had failed
    └── UnserializableError (TypeError)      a closure uses something that cannot be sent to another process

There is one category of warnings, ``ReductionWarning`` (a UserWarning): the sum over the replicas counts a gradient several times.
"""


class ReplicantError(Exception):
    """The base class of all errors of this package."""


class ConfigurationError(ReplicantError, ValueError):
    """A setting that cannot work here."""


class DeviceError(ConfigurationError):
    """Devices are unknown, missing or repeated."""


class BackendError(ConfigurationError):
    """Replicant does not support the backend of Keras, or the version of Keras or JAX."""


class ClusterError(ConfigurationError):
    """The description of the cluster, from the environment or a resolver, is missing, malformed or contradictory."""


class UnreachableError(ClusterError, OSError):
    """A host's name does not resolve, or nothing answers at its address within the deadline."""


class UnsupportedSystemError(ConfigurationError, ImportError):
    """Replicant does not run on this operating system."""


class AlreadyStartedError(ConfigurationError, RuntimeError):
    """A setting that must be made before JAX starts was made too late."""


class WorkerError(ReplicantError, RuntimeError):
    """Something that the workers do together has failed."""


class WorkerLostError(WorkerError):
    """A worker failed, ended, stopped responding, or did not arrive in time."""


class WorkersChangedError(WorkerError):
    """The set of workers changes because others have arrived. ``run_elastic`` handles this error."""


class WorkerMismatchError(WorkerError):
    """The workers run different programs, or use different shapes or versions."""


class ContextError(ReplicantError, RuntimeError):
    """A call came from the wrong place, inside or outside ``run``, ``scope`` or ``function``."""


class MixedStrategyError(ContextError):
    """Two strategies are active at once."""


class LostStateError(ReplicantError, RuntimeError):
    """A compiled function changed an object in a way that would be lost when it returns."""


class TracedValueError(ReplicantError, TypeError):
    """Python code needs the value of an array while it is compiled, when no array has a value yet."""


class ArgumentError(ReplicantError, ValueError):
    """An argument's value breaks a rule."""


class ArgumentTypeError(ReplicantError, TypeError):
    """An argument has the wrong type."""


class VariableError(ReplicantError, ValueError):
    """A variable was used in a way that its synchronization or aggregation forbids."""


class DivergenceError(VariableError):
    """The replicas' copies of a mirrored variable would stop agreeing."""


class GradientError(ReplicantError, RuntimeError):
    """The tape was asked for a gradient that it cannot compute."""


class LossReductionError(ReplicantError, ValueError):
    """A Keras loss with a mean-type reduction was called inside ``run``."""


class ReductionError(ReplicantError, ValueError):
    """The sum over the replicas counts a gradient several times, and the strategy has ``strict=True``."""


class ReductionWarning(UserWarning):
    """The sum over the replicas counts a gradient several times. The message names the line and says what to write."""


class RaggedStepError(ReplicantError, ValueError):
    """Replicas with different numbers of rows cannot do this."""


class DatasetError(ReplicantError, ValueError):
    """A dataset cannot be built or distributed."""


class ElementError(DatasetError):
    """An element breaks the dataset's structure."""


class CommandError(ReplicantError, ValueError):
    """A command of ``replicant`` cannot use the name or file that it was given."""


class MissingNameError(ReplicantError, AttributeError):
    """TensorFlow has something of this name, and Replicant has something else in its place. The message says what."""


class OutOfRangeError(ReplicantError, IndexError):
    """Something was read past the end of an iterator, or from an empty optional."""


class NonFiniteError(ReplicantError, RuntimeError):
    """A loss, or a value that a training step would have written, is NaN or infinite."""


class StepTimeoutError(ReplicantError, TimeoutError):
    """A training step took longer than a Watchdog allows."""


class WriteError(ReplicantError, OSError):
    """A log cannot be written, because the disk is full, for example."""


class SummaryError(ReplicantError, ValueError):
    """Event files of TensorBoard are missing or damaged."""


class ProfileError(ReplicantError, RuntimeError):
    """A profile cannot be recorded or read."""


class CheckpointError(ReplicantError, ValueError):
    """A checkpoint is missing, damaged, or does not fit the objects it is restored into."""


class DamagedCheckpointError(CheckpointError):
    """Bytes of a checkpoint are missing or have changed; an older checkpoint may be whole."""


class ParameterServerError(ReplicantError, RuntimeError):
    """A parameter server, or a worker that trains with it, cannot continue."""


class LostProcessError(ParameterServerError):
    """A worker or server ended and no other could take over its work, or it did not answer within the deadline."""


class CancelledError(ParameterServerError):
    """A closure did not run because another one had failed."""


class UnserializableError(ReplicantError, TypeError):
    """A closure, or something that it uses, cannot be sent to another process."""
