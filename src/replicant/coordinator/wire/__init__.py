"""What travels between the processes of a ParameterServerStrategy: messages, errors, heartbeats and shared memory.

A channel connects only to a process that this one started. Rooms above decide what it carries.
"""
