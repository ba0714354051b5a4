"""Servers and workers as actors of Ray, on as many machines as Ray has.

Loaded only with `transport="ray"`. Servers in other machines share no memory, so `_mirror` keeps copies of their variables.
"""
