"""State as programs see it: references to variables, the recorder that notes reads and writes, and ``replicant.Variable``.

Another library's variables come in through a registered type (`_known`) or a provider (`_libraries`).
"""
