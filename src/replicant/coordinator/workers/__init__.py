"""What a worker is: it receives functions with their arguments, runs one after the other, and says how each ended.

`_pickling` says how a function travels. It reads only what the coordinator of the same job wrote.
"""
