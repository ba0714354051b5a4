"""The processes of a ParameterServerStrategy: how many there are, how they start, and what happens when one is lost.

`_cluster` starts, watches and replaces servers and workers. It knows nothing about what they compute.
"""
