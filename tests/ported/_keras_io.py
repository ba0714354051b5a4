"""The programs of `of_keras_io`: those that behave like the examples of keras.io, which have no strategy."""

import functools

from _ported import Ported

_Mirrored = functools.partial(Ported, strategy="mirrored")
KERAS_IO: dict[str, Ported] = {
    "customizing_fit": _Mirrored(),
    "wgan_gp": _Mirrored(),
    "siamese_network": _Mirrored(
        by_hand=(
            (
                '    image = tf.image.convert_image_dtype(tf.image.decode_png(pathlib.Path(filename).read_bytes(), channels=3), "float32")',  # noqa: E501
                "    image = keras.utils.img_to_array(keras.utils.load_img(filename)) / 255.0",
            ),
            ("import tensorflow as tf", ""),
        )
    ),
    "vae": _Mirrored(),
    "ddim": _Mirrored(),
    "miniature_gpt": _Mirrored(
        by_hand=(
            (
                '    stripped_html = tf.strings.regex_replace(tf.strings.lower(input_string), "<br />", " ")',
                '    stripped_html = np.char.replace(np.char.lower(input_string), "<br />", " ")',
            ),
            (
                '    return tf.strings.regex_replace(stripped_html, f"([{string.punctuation}])", r" \\1")',
                '    return np.vectorize(lambda text: re.sub(f"([{string.punctuation}])", r" \\1", text))(stripped_html)',
            ),
            ("import tensorflow as tf", "import re"),
        )
    ),
    "wide_deep": _Mirrored(),
    "collaborative_filtering": _Mirrored(),
    "knowledge_distillation": _Mirrored(),
}
