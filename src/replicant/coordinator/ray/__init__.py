"""Servers and workers as Ray actors, on as many machines as Ray has.

Ray itself is imported only with `transport="ray"`. Machines share no memory, so `_mirror` keeps copies of the servers' variables.
"""
