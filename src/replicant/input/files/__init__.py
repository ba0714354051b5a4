"""Files, from their names to rows: bytes, records with checksums, lines, and `tf.train.Example` messages.

Nothing here executes what it reads. `_stream` decompresses, `records/_tfrecord` and `text/_lines` cut, `records/_example` and
`records/_parse` decode.
"""
