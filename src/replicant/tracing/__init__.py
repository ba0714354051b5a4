"""Pure functions of jaxprs: marks, paths of gradients, what varies between replicas, the interpreter, and fused replicas.

Nothing in this room starts a program or keeps state.
"""
