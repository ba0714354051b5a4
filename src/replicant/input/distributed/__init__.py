"""How several replicas and workers use a dataset: shares of each step, agreement on its end, and the way to the devices.

`strategy.experimental_distribute_dataset` enters through `_distributed`.
"""
