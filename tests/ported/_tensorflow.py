"""The programs of `of_tensorflow`: those that behave like TensorFlow's tutorials and guides."""

from _ported import Ported

NO_TENSORFLOW = ("import tensorflow as tf", "")  # the last of its names is translated by hand
TENSORFLOW = {
    "custom_training": Ported(
        by_hand=(
            (
                "            loss += replicant.scale_regularization_loss(tf.add_n(model_losses))",
                "            loss += replicant.scale_regularization_loss(sum(model_losses))",
            ),
            NO_TENSORFLOW,
        )
    ),
    "keras": Ported(
        by_hand=(
            (
                "    keras.callbacks.ModelCheckpoint(filepath=checkpoint_prefix + \".weights.h5\", save_weights_only=True),",
                "    keras.callbacks.ModelCheckpoint(filepath=checkpoint_prefix, save_weights_only=True),",
            ),
        )
    ),
    "input": Ported(),
    "save_and_load": Ported(),
    "multi_worker_with_ctl": Ported(workers=True),
    "multi_worker_with_keras": Ported(workers=True),
    "parameter_server_training": Ported(aside=("asynchronous",)),
    "distributed_training": Ported(
        by_hand=(
            (
                "mirrored_strategy = replicant.MirroredStrategy(cross_device_ops=tf.distribute.HierarchicalCopyAllReduce())",
                "mirrored_strategy = replicant.MirroredStrategy()",
            ),
            NO_TENSORFLOW,
        )
    ),
    "tpu": Ported(),
    "mixed_precision": Ported(),
    "migrate_mirrored_strategy": Ported(),
    "migrate_fault_tolerance": Ported(),
    "migrate_multi_worker_cpu_gpu_training": Ported(),
    "generative_dcgan": Ported(),
    "generative_cvae": Ported(),
    "generative_pix2pix": Ported(),
    "images_segmentation": Ported(),
    "quickstart_advanced": Ported(),
    "official_resnet": Ported(),
    "examples_densenet": Ported(),
    "examples_attention_translation": Ported(),
}
