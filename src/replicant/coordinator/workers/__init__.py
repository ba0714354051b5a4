"""Workers: they receive closures, run them one after the other, and report each result.

`_pickling` defines how a function travels. It reads only what the coordinator of the same job wrote.
"""
