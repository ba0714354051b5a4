"""``fit``, ``evaluate`` and ``predict``: Keras's own loops around compiled steps."""
