"""``tf.image``: calls that need more than another name, and what to write instead of what has no translation."""

from collections.abc import Callable

import libcst as cst

from ._rewrite import Rewrite, by_name, code

_SAME_METHODS = "bilinear", "nearest", "bicubic", "lanczos3", "lanczos5"
_FLOATS = "for images of floats; TensorFlow also takes images of integers, which it scales to 0...1 and back"
_DECODE = "np.asarray(PIL.Image.open(io.BytesIO(data))), in dataset.map"
_DRAWN = "with seed=generator in a layer or a model, where generator = keras.random.SeedGenerator() is made once"

# The values of tf.image.ResizeMethod that Keras has, too.
METHODS = {
    **{f"image.ResizeMethod.{name.upper()}": f'"{name}"' for name in _SAME_METHODS if name != "nearest"},
    "image.ResizeMethod.NEAREST_NEIGHBOR": '"nearest"',
}


def _call(target: str, arguments: list[str], check: str = "") -> Rewrite:
    return Rewrite(cst.parse_expression(f"{target}({', '.join(arguments)})"), frozenset({"keras"}), check)


def _resize(call: cst.Call) -> Rewrite:
    """Translate ``tf.image.resize``. Its result has floats unless the method is "nearest", while Keras keeps integers."""
    given = by_name(call.args, "images", "size", "method", "preserve_aspect_ratio", "antialias", "name")
    method = (given or {}).get("method", cst.SimpleString('"bilinear"'))
    if (
        given is None
        or not {"images", "size"} <= set(given)
        or code(given.get("preserve_aspect_ratio", cst.Name("False"))) != "False"
    ):
        return Rewrite(left="keras.ops.image.resize(images, size, interpolation, antialias)")
    if isinstance(method, cst.SimpleString) and method.evaluated_value not in _SAME_METHODS:
        return Rewrite(left=f"keras.ops.image.resize(images, size, interpolation), which has {', '.join(_SAME_METHODS)}")
    named = [f"{new}={code(given[old])}" for old, new in (("method", "interpolation"), ("antialias", "antialias")) if old in given]
    images = code(given["images"])
    if not (isinstance(method, cst.SimpleString) and method.evaluated_value == "nearest"):
        images = f'keras.ops.cast({images}, "float32")'
    return _call("keras.ops.image.resize", [images, code(given["size"]), *named])


def _middle(sizes: cst.BaseExpression) -> list[str] | None:
    """The height and width of ``[1, height, width, 1]``, or None."""
    elements = [element.value for element in sizes.elements] if isinstance(sizes, cst.List | cst.Tuple) else []
    if len(elements) != 4 or code(elements[0]) != "1" or code(elements[3]) != "1":
        return None
    return [code(each) for each in elements[1:3]]


def _extract_patches(call: cst.Call) -> Rewrite:
    """Translate ``tf.image.extract_patches``, whose sizes have four numbers."""
    given = by_name(call.args, "images", "sizes", "strides", "rates", "padding", "name") or {}
    numbers = {name: _middle(given[name]) for name in ("sizes", "strides", "rates") if name in given}
    padding = given.get("padding")
    size, strides, rates = (numbers.get(name) for name in ("sizes", "strides", "rates"))
    if "images" not in given or size is None or strides is None or rates != ["1", "1"] or not isinstance(padding, cst.SimpleString):
        return Rewrite(left="keras.ops.image.extract_patches(images, size, strides, padding=...) with the height and width alone")
    arguments = [code(given["images"]), f"({', '.join(size)})", f"strides=({', '.join(strides)})"]
    return _call("keras.ops.image.extract_patches", [*arguments, f'padding="{str(padding.evaluated_value).lower()}"'])


def _rgb_to_grayscale(call: cst.Call) -> Rewrite:
    """Translate ``tf.image.rgb_to_grayscale``."""
    given = by_name(call.args, "images", "name") or {}
    if "images" not in given:
        return Rewrite(left="keras.ops.image.rgb_to_grayscale(images)")
    check = "for images of floats; with integers, TensorFlow rounds and Keras cuts off, so the result may be smaller by 1"
    return _call("keras.ops.image.rgb_to_grayscale", [code(given["images"])], check)


def _adjust_brightness(call: cst.Call) -> Rewrite:
    """Translate ``tf.image.adjust_brightness``."""
    given = by_name(call.args, "image", "delta", "name") or {}
    if not {"image", "delta"} <= set(given):
        return Rewrite(left="image + delta")
    return _call("keras.ops.add", [code(given["image"]), code(given["delta"])], _FLOATS)


def _adjust_gamma(call: cst.Call) -> Rewrite:
    """Translate ``tf.image.adjust_gamma`` without a gain."""
    given = by_name(call.args, "image", "gamma") or {}
    if "image" not in given:
        return Rewrite(left="gain * keras.ops.power(image, gamma)")
    gamma = code(given["gamma"]) if "gamma" in given else "1"
    return _call("keras.ops.power", [code(given["image"]), gamma], _FLOATS)


HANDLERS: dict[str, Callable[[cst.Call], Rewrite]] = {
    "image.adjust_brightness": _adjust_brightness,
    "image.adjust_gamma": _adjust_gamma,
    "image.extract_patches": _extract_patches,
    "image.resize": _resize,
    "image.rgb_to_grayscale": _rgb_to_grayscale,
}

ADVICE = {
    "image": "Pillow or keras.ops.image, in dataset.map",
    "image.ResizeMethod": f"keras.ops.image.resize has {', '.join(_SAME_METHODS)}",
    "image.adjust_contrast": (
        "mean = keras.ops.mean(images, axis=(-3, -2), keepdims=True), then mean + factor * (images - mean), for images of floats"
    ),
    "image.adjust_hue": "change the first channel of keras.ops.image.rgb_to_hsv(images), modulo 1, then hsv_to_rgb",
    "image.adjust_saturation": "multiply the second channel of keras.ops.image.rgb_to_hsv(images), at most 1, then hsv_to_rgb",
    "image.central_crop": "slice the array, or keras.layers.CenterCrop(height, width)",
    "image.convert_image_dtype": 'keras.ops.cast(image, "float32") / 255 for bytes; images of floats stay as they are',
    **{f"image.decode_{kind}": _DECODE for kind in ("bmp", "gif", "image", "jpeg", "png")},
    "image.decode_and_crop_jpeg": "np.asarray(PIL.Image.open(io.BytesIO(data)).crop((left, top, right, bottom))), in dataset.map",
    "image.encode_jpeg": 'PIL.Image.fromarray(image).save(file, "JPEG")',
    "image.encode_png": 'PIL.Image.fromarray(image).save(file, "PNG")',
    "image.non_max_suppression": "a NumPy loop on the host: the number of boxes that are left is not a shape that JAX knows",
    "image.per_image_standardization": (
        "(x - mean) / keras.ops.maximum(std, x.size**-0.5), with keras.ops.mean and std over the last three axes and keepdims=True"
    ),
    "image.random_brightness": f"images + keras.random.uniform((), -max_delta, max_delta), {_DRAWN}",
    "image.random_contrast": f"factor = keras.random.uniform((), lower, upper), {_DRAWN}; then as for adjust_contrast",
    "image.random_crop": "rng.integers for the corner in dataset.map, or keras.layers.RandomCrop(height, width), made once",
    "image.random_flip_left_right": 'flip = keras.layers.RandomFlip("horizontal"), made once; then flip(images, training=True)',
    "image.random_flip_up_down": 'flip = keras.layers.RandomFlip("vertical"), made once; then flip(images, training=True)',
    "image.random_hue": "keras.layers.RandomHue(factor), made once; then layer(images, training=True)",
    "image.random_jpeg_quality": "save the image with Pillow in a random quality and read it again, in dataset.map",
    "image.random_saturation": "keras.layers.RandomSaturation(factor), made once; then layer(images, training=True)",
    "image.resize_with_crop_or_pad": "keras.ops.image.crop_images or pad_images, with target_height and target_width",
    "image.resize_with_pad": "keras.ops.image.resize(images, size, pad_to_aspect_ratio=True)",
    **{
        f"image.stateless_{name}": "the layer of Keras with a seed, or keras.random with a SeedGenerator(seed)"
        for name in (
            "random_brightness",
            "random_contrast",
            "random_crop",
            "random_flip_left_right",
            "random_flip_up_down",
            "random_hue",
            "random_jpeg_quality",
            "random_saturation",
            "sample_distorted_bounding_box",
        )
    },
}
