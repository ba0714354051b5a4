"""Variables on servers: where each shard lies, how pushes are applied once, and how a process reads and writes them.

`_apply` applies a push, `_ledger` remembers it, `_store` holds the values, `_client` is the way of every other process to them.
"""
