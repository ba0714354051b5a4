"""The variables of Keras's objects, as compiled steps see them, and the loops that compute on them now."""
