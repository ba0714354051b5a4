"""Turns weights into pictures."""

import keras
import numpy as np

_MAX_PICTURES = 3


def pictures_of(weight: np.ndarray) -> list[np.ndarray]:
    """Draw at most 3 pictures of a weight, uint8[height, width, channels], from black (smallest value) to white (largest).

    Axes of length 1 are dropped. A vector becomes a column, a matrix is drawn with its longer side horizontal, and a stack of
    matrices becomes one picture each. A weight of four axes is a stack of colour pictures if the last axis has length 1, 3 or 4.
    Other weights have no picture.
    """
    stack = _as_stack(np.squeeze(np.asarray(weight, np.float64)))
    if stack is None or not stack.size:
        return []
    finite = stack[np.isfinite(stack)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    scaled = (np.nan_to_num(stack, nan=low, posinf=high, neginf=low) - low) / ((high - low) or 1.0)
    return list(np.round(scaled[:_MAX_PICTURES] * 255).astype(np.uint8))


def _as_stack(array: np.ndarray) -> np.ndarray | None:
    """Arrange `array` as [picture, height, width, channels]; None if that is impossible."""
    match array.ndim:
        case 0:
            return array.reshape(1, 1, 1, 1)
        case 1:
            return array.reshape(1, -1, 1, 1)
        case 2:
            return (array.T if array.shape[0] > array.shape[1] else array)[None, :, :, None]
        case 3:
            last = keras.config.image_data_format() == "channels_last"
            return (np.moveaxis(array, -1, 0) if last else array)[..., None]
        case 4 if array.shape[-1] in (1, 3, 4):
            return array
    return None
