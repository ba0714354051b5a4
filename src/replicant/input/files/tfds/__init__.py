"""Folders that tensorflow_datasets has written: their splits, features and examples.

Begin reading at `_info`, which reads what the folder says of itself. `_splits` says which examples of which files a split has,
`_features` what an example consists of, and `_format` reads the files. No TensorFlow is needed.
"""
