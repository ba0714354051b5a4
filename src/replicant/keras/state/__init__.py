"""The variables of Keras's objects, as compiled steps see them."""
