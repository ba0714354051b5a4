"""Which function runs where: the queue, synchronous rounds, and the hand-out of functions to workers.

A function is handed to a worker in `_dispatch`. `_queue`, `_rounds` and `_pace` are pure state machines.
"""
