"""Object stores: files at URLs such as ``s3://bucket/name``, which fsspec reaches, beside those of this machine.

Readers of files enter through `_urls` (what is a URL), `_store` (facts, names, ranges of bytes) and `_read_ahead` (an open file).
Every request has a deadline and is repeated with growing pauses. fsspec is imported only once a URL is used.
"""
