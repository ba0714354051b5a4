"""State, as programs see it: references to variables, the recorder that notes reads and writes, and `replicant.Variable`.

A library brings its own variables by registering a type (`_known`) or a provider (`_libraries`).
"""
