"""The programs of `of_tensorflow`: those that behave like TensorFlow's tutorials and guides."""

from _ported import Ported

TENSORFLOW = {
    "custom_training": Ported(
        by_hand=(
            (
                "            loss += replicant.scale_regularization_loss(tf.add_n(model_losses))",
                "            loss += replicant.scale_regularization_loss(sum(model_losses))",
            ),
            ("import tensorflow as tf", ""),
        )
    ),
    "keras": Ported(),
}
