"""Functions of arrays for layers, whose derivatives pass over memory as seldom as possible."""
