"""Programs of `of_tensorflow` that train with TensorFlow, and go on from its checkpoints after they are translated.

`_record_moved.py` imports this where TensorFlow is installed and Replicant is not.
"""

import dataclasses

from _by_hand import Changes


@dataclasses.dataclass(frozen=True)
class Moved:
    """How a program is made to train for a while, and then to go on.

    Attributes:
        first: The lines that differ in the program that TensorFlow runs first, and that leaves the checkpoints.
        then: The lines that differ in the program that goes on from them, with TensorFlow, and once it is translated.
        numbers: The names of the numbers that both save, and that have to be the same.
    """

    first: Changes
    then: Changes
    numbers: tuple[str, ...]


# The two shuffle in another order, so these programs do not shuffle.
_SHUFFLED = (
    "train_dataset = tf.data.Dataset.from_tensor_slices((train_images, train_labels)).shuffle(36, seed=1).batch(GLOBAL_BATCH_SIZE)"
)
_UNSHUFFLED = (_SHUFFLED, _SHUFFLED.replace(".shuffle(36, seed=1)", ""))
_FIT = "    model.fit(x_train, y_train, batch_size=16, epochs=4, verbose=0, callbacks=[backup, keep, InterruptAtEpoch(1)])"
_FIT_AGAIN = "model.fit(x_train, y_train, batch_size=16, epochs=4, verbose=0, callbacks=[backup, keep])"
_WHILE = "    while step.numpy() < 6 and step.numpy() != fails_at:"
MOVED = {
    "custom_training": Moved(
        first=(_UNSHUFFLED,),
        then=(
            _UNSHUFFLED,
            ("EPOCHS = 2", "EPOCHS = 5"),
            ("history = []", 'history = []\ncheckpoint.restore(tf.train.latest_checkpoint("checkpoints"))'),
        ),
        numbers=("history", "restored", "epoch_loss", "kernel", "weights"),
    ),
    "migrate_fault_tolerance": Moved(
        first=(
            (_FIT, _FIT.replace("verbose", "shuffle=False, verbose")),
            (_FIT_AGAIN, ""),
        ),
        then=(
            (_FIT, _FIT.replace("epochs=4, verbose", "epochs=7, shuffle=False, verbose").replace(", InterruptAtEpoch(1)", "")),
            (_FIT_AGAIN, ""),
            ("for fails_at in (3, None):", "for fails_at in (None,):"),
            (_WHILE, _WHILE.replace("6", "10")),
        ),
        numbers=("losses", "loop", "weights", "loop_weights"),  # `kept` counts TensorFlow's checkpoints only there
    ),
}
