"""The programs of `of_tensorflow`: those that behave like TensorFlow's tutorials and guides."""

from _ported import Ported

TENSORFLOW = {
    "custom_training": Ported(),
    "keras": Ported(),
    "input": Ported(),
    "save_and_load": Ported(),
    "multi_worker_with_ctl": Ported(
        by_hand=(
            (
                "        shutil.rmtree(write_checkpoint_dir)",
                "        shutil.rmtree(write_checkpoint_dir, ignore_errors=True)",  # only the chief writes
            ),
        ),
        workers=True,
    ),
    "multi_worker_with_keras": Ported(workers=True),
    "parameter_server_training": Ported(
        aside=("asynchronous",),
    ),
    "distributed_training": Ported(),
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
