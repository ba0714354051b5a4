"""Turns a Python function and its arguments into a program that is traced once and started often.

Begin reading at `_compiled`. `steps/_run` is `strategy.run` in a trace: `steps/_spmd` serves equal replicas, and `steps/_ragged`
those of different sizes.
"""
