"""Pure functions over jaxprs: marks, the paths of gradients, what varies between replicas, the interpreter, fused replicas.

Nothing here starts a program or holds state.
"""
