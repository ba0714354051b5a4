"""Turns a Python function and its arguments into a program that is traced once and started often.

Begin reading at `_compiled`. `_replica_step` traces one replica function for all replicas; `_ragged` serves replicas of different
sizes.
"""
