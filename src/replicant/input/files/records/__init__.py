"""TFRecord files and the Examples in them, and files of records of one size."""
