"""Which closure runs where: the queue, synchronous rounds, and the dispatcher that sends closures to workers.

`_dispatch` sends a closure to a worker. `_queue`, `_rounds` and `_pace` are pure state machines.
"""
