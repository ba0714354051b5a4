"""A dataset in use by several replicas and workers: shares of each step, agreement on its end, and the way to the devices.

`strategy.experimental_distribute_dataset` comes in here, through `_distributed`.
"""
