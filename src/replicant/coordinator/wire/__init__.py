"""What travels between the processes of a parameter server strategy: messages, errors, signs of life, and shared memory.

A channel speaks only with a process that this one started. Rooms above decide what is said.
"""
