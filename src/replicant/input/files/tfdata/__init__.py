"""Folders that tf.data has written with ``Dataset.save``: `_folder` reads what they hold, and `_elements` the elements."""
