"""The formats in the files of TensorFlow's checkpoints: tables, records of an index, ranges of bytes, strings and slices."""
