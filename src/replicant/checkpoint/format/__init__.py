"""The files of a checkpoint: arrays, their parts, and the manifest that names them."""
