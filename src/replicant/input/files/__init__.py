"""Files, from their names to rows: bytes, records with checksums, lines, and `tf.train.Example` messages.

Nothing here executes what it reads. `_stream` decompresses, `_records` and `_lines` cut, `_example` and `_parse` decode.
"""
