"""Every exception that Replicant raises by itself.

Each class also inherits the built-in type that tf.distribute programs catch, so ``except ValueError`` keeps working::

    ReplicantError
    ├── ConfigurationError (ValueError)      a setting that cannot work here
    │   ├── DeviceError                      unknown, missing or repeated devices
    │   ├── BackendError                     Keras runs on another backend, or a version is not supported
    │   ├── ClusterError                     who takes part is missing, malformed or contradictory
    │   │   └── UnreachableError (also OSError)  a host whose name does not resolve, or that does not answer in time
    │   └── AlreadyStartedError (also RuntimeError)  too late: JAX has started
    ├── WorkerError (RuntimeError)           what several workers do together could not be done
    │   ├── WorkerLostError                  a worker failed, ended, gives no sign of life or did not come in time
    │   ├── WorkersChangedError              the workers are to form anew; `run_elastic` sees to it
    │   └── WorkerMismatchError              the workers do not do the same: other program, shapes or versions
    ├── ContextError (RuntimeError)          called in the wrong place (inside or outside ``run``, ``scope``)
    │   └── MixedStrategyError               two strategies in one scope
    ├── LostStateError (RuntimeError)        a traced function changed something that nobody would see
    ├── ArgumentError (ValueError)           a value that breaks a rule: unknown op, axis out of range, bad shape
    ├── ArgumentTypeError (TypeError)        a value of the wrong type
    ├── VariableError (ValueError)           a variable used against its synchronization or aggregation
    │   └── DivergenceError                  replicas would stop agreeing
    ├── GradientError (RuntimeError)         a tape used in a way that has no answer
    ├── LossReductionError (ValueError)      a Keras loss whose reduction is wrong inside ``run``
    ├── ReductionError (ValueError)          under ``strict=True``: what a ReductionWarning says otherwise
    ├── RaggedStepError (ValueError)         something that replicas of different sizes cannot do together
    ├── DatasetError (ValueError)            a dataset that cannot be built or distributed
    │   └── ElementError                     an element that breaks the dataset's structure
    ├── CommandError (ValueError)            a name or file given to a command of ``replicant`` that it cannot use
    ├── OutOfRangeError (IndexError)         read past the end of an iterator or optional
    ├── NonFiniteError (RuntimeError)        a loss, or what a step would have written, is NaN or infinite
    ├── StepTimeoutError (TimeoutError)      a step took longer than a Watchdog allows
    ├── CheckpointError (ValueError)         a checkpoint that is missing, damaged or does not fit
    │   └── DamagedCheckpointError           it lacks bytes, or some have changed
    ├── ParameterServerError (RuntimeError)  a parameter server, or a worker that trains with it, cannot go on
    │   ├── LostProcessError                 a process ended, or nobody answered within the deadline
    │   └── CancelledError                   a scheduled function did not run: another one had failed before
    └── UnserializableError (TypeError)      a scheduled function uses something that cannot travel to another process

There is one category of warnings, ``ReductionWarning`` (a UserWarning): the sum over the replicas counts a gradient several times.
"""


class ReplicantError(Exception):
    """Base of all errors of this package."""


class ConfigurationError(ReplicantError, ValueError):
    """A setting that cannot work here."""


class DeviceError(ConfigurationError):
    """Unknown, missing or repeated devices."""


class BackendError(ConfigurationError):
    """Keras runs on a backend, or Keras or JAX in a version, that Replicant cannot drive."""


class ClusterError(ConfigurationError):
    """What the environment or a resolver says about the cluster is missing, malformed or contradictory."""


class UnreachableError(ClusterError, OSError):
    """A host's name does not resolve, or nobody answers at its address within the deadline."""


class AlreadyStartedError(ConfigurationError, RuntimeError):
    """A setting that must come before JAX starts came after."""


class WorkerError(ReplicantError, RuntimeError):
    """What several workers do together could not be done."""


class WorkerLostError(WorkerError):
    """A worker failed, ended, gives no sign of life, or did not come in time."""


class WorkersChangedError(WorkerError):
    """The workers are to form anew, because others have come; `run_elastic` sees to it."""


class WorkerMismatchError(WorkerError):
    """The workers do not do the same: another program, other shapes, other versions."""


class ContextError(ReplicantError, RuntimeError):
    """A call in the wrong place: inside or outside ``run``, ``scope`` or ``function``."""


class MixedStrategyError(ContextError):
    """Two strategies were active at once."""


class LostStateError(ReplicantError, RuntimeError):
    """A function that is compiled changed an object in a way that would be lost when it returns."""


class ArgumentError(ReplicantError, ValueError):
    """An argument's value breaks a rule."""


class ArgumentTypeError(ReplicantError, TypeError):
    """An argument has the wrong type."""


class VariableError(ReplicantError, ValueError):
    """A variable was used against its synchronization or aggregation."""


class DivergenceError(VariableError):
    """The replicas' copies of a mirrored variable would stop agreeing."""


class GradientError(ReplicantError, RuntimeError):
    """A gradient was asked for that the tape cannot answer."""


class LossReductionError(ReplicantError, ValueError):
    """A Keras loss with a mean-type reduction was called inside ``run``."""


class ReductionError(ReplicantError, ValueError):
    """Under a strategy with ``strict=True``: a gradient that the sum over the replicas counts several times."""


class ReductionWarning(UserWarning):
    """A gradient that the sum over the replicas counts several times; the message names the line and what to write."""


class RaggedStepError(ReplicantError, ValueError):
    """Replicas of different sizes cannot do this together."""


class DatasetError(ReplicantError, ValueError):
    """A dataset cannot be built or distributed."""


class ElementError(DatasetError):
    """An element breaks the dataset's structure."""


class CommandError(ReplicantError, ValueError):
    """A command of ``replicant`` was given a name or a file that it cannot use."""


class OutOfRangeError(ReplicantError, IndexError):
    """Read past the end of an iterator, or from an empty optional."""


class NonFiniteError(ReplicantError, RuntimeError):
    """A loss, or something that a training step would have written, is NaN or infinite."""


class StepTimeoutError(ReplicantError, TimeoutError):
    """A training step took longer than a Watchdog allows."""


class CheckpointError(ReplicantError, ValueError):
    """A checkpoint is missing, damaged, or does not fit the objects it is restored into."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint lacks bytes or some of them have changed; an older one may be whole."""


class ParameterServerError(ReplicantError, RuntimeError):
    """A parameter server, or a worker that trains with it, cannot go on."""


class LostProcessError(ParameterServerError):
    """A worker or server ended, and what it did could not be given to another, or nobody answered within the deadline."""


class CancelledError(ParameterServerError):
    """A scheduled function did not run because another one had failed before."""


class UnserializableError(ReplicantError, TypeError):
    """A scheduled function, or something that it uses, cannot travel to another process."""
