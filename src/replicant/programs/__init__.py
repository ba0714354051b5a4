"""Turns a Python function and its arguments into a program that is traced once and started often.

Begin reading at `_compiled`. `steps/_replica_step` traces one replica function for all replicas; `steps/_ragged` serves replicas of
different sizes.
"""
