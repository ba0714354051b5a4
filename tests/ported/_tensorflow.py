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
        by_hand=(
            ("import tensorflow as tf", ""),
            ("    worker_config = tf.compat.v1.ConfigProto()", ""),  # the strategy starts its servers and workers
            ("    if multiprocessing.cpu_count() < num_workers + 1:", ""),
            ("        worker_config.inter_op_parallelism_threads = num_workers + 1", ""),
            ("    for i in range(num_workers):", ""),
            (
                '        tf.distribute.Server(cluster_spec, job_name="worker", task_index=i, config=worker_config)',
                "",
            ),
            ("    for i in range(num_ps):", ""),
            ('        tf.distribute.Server(cluster_spec, job_name="ps", task_index=i, protocol="grpc")', ""),
            (
                "creator = tf.keras.utils.experimental.DatasetCreator(dataset_fn, input_options=input_options)",
                "creator = dataset_fn",
            ),
            ("assert len(emb_layer.weights) == 2", "assert len(emb_layer.weights) == 1"),  # a variable is one, whatever its shards
            ("assert emb_layer.weights[0].shape == (4, 32)", "assert emb_layer.weights[0].shape == (8, 32)"),
            ("assert emb_layer.weights[1].shape == (4, 32)", ""),
            ("print(emb_layer.weights[0].device)", ""),
        ),
        aside=("losses", "asynchronous"),
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
