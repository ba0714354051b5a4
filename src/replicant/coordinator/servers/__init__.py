"""Variables on servers: where each shard is, how each push is applied once, and how processes read and write variables.

`_apply` applies a push, `_ledger` records it, `_store` holds the values, and all other processes reach them through `_client`.
"""
