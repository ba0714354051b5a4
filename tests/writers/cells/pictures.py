"""Pictures of Pillow, OpenCV, ImageMagick, imageio and tifffile: their pixels are compared with those of `tf.io.decode_image`."""

import functools
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _cells import Cell

FORM = "Pictures"
_HEIGHT, _WIDTH = 11, 13
_MODES = {"rgb": 3, "rgba": 4, "grayscale": 1}


def cells() -> Iterator[Cell]:
    for what, (name, make, settings, refused) in _PILLOW.items():
        yield Cell(FORM, "pillow", what, functools.partial(_pillow, what, name, make, settings), refused)
    for what, (name, make, settings, refused) in _OPENCV.items():
        yield Cell(FORM, "opencv-python-headless", what, functools.partial(_opencv, what, name, make, settings), refused)
    for what, (name, command, refused) in _MAGICK.items():
        yield Cell(FORM, "ImageMagick", what, functools.partial(_magick, what, name, command), refused, program="convert-im6.q16")
    yield Cell(FORM, "imageio", "PNG", functools.partial(_imageio, "0.png"))
    yield Cell(FORM, "imageio", "JPEG", functools.partial(_imageio, "0.jpg"))
    yield Cell(FORM, "imageio", "GIF", functools.partial(_imageio, "0.gif"))
    yield Cell(FORM, "tifffile", "TIFF, named .png", _tiff, "is not a BMP, GIF, JPEG, PNG or WebP picture")


def _noise(*shape: int, dtype: str = "u1", seed: int = 0) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape, dtype)


def _smooth(channels: int) -> np.ndarray:
    y, x = np.mgrid[:_HEIGHT, :_WIDTH]
    made = np.stack([(x * 19 + i * 40) % 256 // 2 + y * (9 - i) for i in range(channels)], axis=-1).astype(np.uint8)
    return made[:, :, 0] if channels == 1 else made


def _image(mode: str, pixels: Callable[[], np.ndarray]) -> Callable[[], Any]:
    def make() -> Any:
        from PIL import Image

        return Image.fromarray(pixels()) if mode == "" else Image.fromarray(pixels()).convert(mode)

    return make


_grey = _image("", lambda: _noise(_HEIGHT, _WIDTH))
_colours = _image("", lambda: _noise(_HEIGHT, _WIDTH, 3))
_alpha = _image("", lambda: _noise(_HEIGHT, _WIDTH, 4))
_grey_alpha = _image("LA", lambda: _noise(_HEIGHT, _WIDTH, 4))
_bits = _image("1", lambda: _noise(_HEIGHT, _WIDTH))
_palette = _image("P", lambda: _noise(_HEIGHT, _WIDTH, 3))
_deep = _image("", lambda: _noise(_HEIGHT, _WIDTH, dtype="u2"))
_soft = _image("", lambda: _smooth(3))
_soft_grey = _image("", lambda: _smooth(1))
_cmyk = _image("CMYK", lambda: _smooth(3))


def _frames() -> dict[str, Any]:
    return {"save_all": True, "append_images": [_image("", lambda: _noise(_HEIGHT, _WIDTH, 3, seed=1))()], "duration": 50}


def _rotated() -> dict[str, Any]:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    return {"exif": exif}


_DEEP = "it has a gamma, and colours of 16 bits, of which Pillow gives 8: too few for grey"
_EIGHT = ["-depth", "8", "-type", "TrueColor", "-define", "png:bit-depth=8", "-define"]
# What Pillow decodes otherwise than TensorFlow, whose alpha of few bits stays as small as they are, whose palettes of BMP are
# levels of grey, and which takes the fourth byte of a BMP picture for its alpha.
_BY_PILLOW = {
    "PNG of mode 1": ("rgba",),
    "PNG of mode P with 4 bits": ("rgba",),
    "PNG, 1 bit": ("rgba",),
    **{f"PNG, grey of {bits} bits": ("rgba",) for bits in (1, 2, 4)},
    "BMP of mode RGBA": ("rgba",),
    "BMP of mode P": ("rgb", "rgba"),
    "BMP3, a palette": ("rgb", "rgba"),
}
_PILLOW: dict[str, tuple[str, Any, Any, str | None]] = {
    "PNG of mode L": ("0.png", _grey, {}, None),
    "PNG of mode LA": ("0.png", _grey_alpha, {}, None),
    "PNG of mode RGB": ("0.png", _colours, {}, None),
    "PNG of mode RGBA": ("0.png", _alpha, {}, None),
    "PNG of mode 1": ("0.png", _bits, {}, None),
    "PNG of mode P": ("0.png", _palette, {}, None),
    "PNG of mode P with 4 bits": ("0.png", _palette, {"bits": 4}, None),
    "PNG of mode P with a transparent colour": ("0.png", _palette, {"transparency": 3}, None),
    "PNG of mode P with an alpha for each colour": ("0.png", _palette, {"transparency": bytes(range(256))}, None),
    "PNG of mode L with a transparent level": ("0.png", _grey, {"transparency": 7}, None),
    "PNG of mode RGB with a transparent colour": ("0.png", _colours, {"transparency": (1, 2, 3)}, None),
    "PNG of mode I;16": ("0.png", _deep, {}, None),
    "PNG, not compressed": ("0.png", _colours, {"compress_level": 0}, None),
    "PNG with EXIF rotation": ("0.png", _colours, _rotated, None),
    "PNG with a resolution": ("0.png", _colours, {"dpi": (300, 300)}, None),
    "animated PNG": ("0.png", _colours, _frames, None),
    "JPEG of mode L": ("0.jpg", _soft_grey, {"quality": 90}, None),
    "JPEG of mode RGB, 4:2:0": ("0.jpg", _soft, {"quality": 90}, None),
    "JPEG of mode RGB, 4:2:2": ("0.jpg", _soft, {"quality": 90, "subsampling": 1}, None),
    "JPEG of mode RGB, 4:4:4": ("0.jpg", _soft, {"quality": 95, "subsampling": 0}, None),
    "JPEG of mode RGB, kept as RGB": ("0.jpg", _soft, {"keep_rgb": True}, None),
    "JPEG, progressive": ("0.jpeg", _soft, {"progressive": True, "optimize": True}, None),
    "JPEG of noise, of low quality": ("0.jpg", _colours, {"quality": 10}, None),
    "JPEG with EXIF rotation": ("0.jpg", _soft, _rotated, None),
    "JPEG with restart markers": ("0.jpg", _soft, {"restart_marker_blocks": 1}, None),
    "JPEG of mode CMYK": ("0.jpg", _cmyk, {"quality": 95}, None),
    "GIF of mode P": ("0.gif", _palette, {}, None),
    "GIF of mode L": ("0.gif", _grey, {}, None),
    "GIF, interlaced": ("0.gif", _palette, {"interlace": True}, None),
    "GIF with a transparent colour": ("0.gif", _palette, {"transparency": 3}, None),
    "animated GIF": ("0.gif", _colours, _frames, None),
    "BMP of mode RGB": ("0.bmp", _colours, {}, None),
    "BMP of mode RGBA": ("0.bmp", _alpha, {}, None),
    "BMP of mode L": ("0.bmp", _grey, {}, None),
    "BMP of mode P": ("0.bmp", _palette, {}, None),
    "WebP, named .png": ("0.png", _colours, {"format": "WEBP", "lossless": True}, None),
    "TIFF, named .png": ("0.png", _colours, {"format": "TIFF"}, "is not a BMP, GIF, JPEG, PNG or WebP picture"),
    "AVIF, named .png": ("0.png", _colours, {"format": "AVIF"}, "is not a BMP, GIF, JPEG, PNG or WebP picture"),
    "JPEG 2000, named .jpg": ("0.jpg", _colours, {"format": "JPEG2000"}, "is not a BMP, GIF, JPEG, PNG or WebP picture"),
    "PNG, named .jpg": ("0.jpg", _colours, {"format": "PNG"}, None),
    "JPEG, named .png": ("0.png", _soft, {"format": "JPEG"}, None),
}
_OPENCV: dict[str, tuple[str, Any, list[int], str | None]] = {
    "PNG, 8-bit grey": ("0.png", lambda: _noise(_HEIGHT, _WIDTH), [], None),
    "PNG, 8-bit colours": ("0.png", lambda: _noise(_HEIGHT, _WIDTH, 3), [], None),
    "PNG, 8-bit colours and alpha": ("0.png", lambda: _noise(_HEIGHT, _WIDTH, 4), [], None),
    "PNG, 16-bit grey": ("0.png", lambda: _noise(_HEIGHT, _WIDTH, dtype="u2"), [], None),
    "PNG, 16-bit colours, in colours": ("0.png", lambda: _noise(_HEIGHT, _WIDTH, 3, dtype="u2"), [], None),
    "PNG, 16-bit colours, in grey: within one level": ("0.png", lambda: _noise(_HEIGHT, _WIDTH, 3, dtype="u2"), [], None),
    "PNG, 16-bit colours and alpha, in colours": ("0.png", lambda: _noise(_HEIGHT, _WIDTH, 4, dtype="u2"), [], None),
    "PNG, 1 bit": ("0.png", lambda: _noise(_HEIGHT, _WIDTH) // 128 * 255, [18, 1], None),  # IMWRITE_PNG_BILEVEL
    "JPEG": ("0.jpg", lambda: _smooth(3), [1, 90], None),  # IMWRITE_JPEG_QUALITY
    "JPEG, grey": ("0.jpg", lambda: _smooth(1), [], None),
    "JPEG, progressive": ("0.jpg", lambda: _smooth(3), [2, 1], None),  # IMWRITE_JPEG_PROGRESSIVE
    "BMP": ("0.bmp", lambda: _noise(_HEIGHT, _WIDTH, 3), [], None),
    "BMP, grey": ("0.bmp", lambda: _noise(_HEIGHT, _WIDTH), [], None),
    "BMP with alpha": ("0.bmp", lambda: _noise(_HEIGHT, _WIDTH, 4), [], None),
}
_MAGICK: dict[str, tuple[str, list[str], str | None]] = {
    "PNG of 8 bits": ("0.png", [*_EIGHT, "png:color-type=2"], None),
    "PNG of 16 bits, in colours": ("0.png", [], None),
    "PNG of 16 bits, in grey": ("0.png", [], _DEEP),
    "PNG8, a palette": ("PNG8:0.png", [], None),
    **{
        f"PNG, grey of {bits} bits": (
            "0.png",
            ["-colorspace", "Gray", "-depth", str(bits), "-define", f"png:bit-depth={bits}", "-define", "png:color-type=0"],
            None,
        )
        for bits in (1, 2, 4, 8, 16)
    },
    "PNG, grey and alpha of 16 bits": (
        "0.png",
        ["-colorspace", "Gray", "-alpha", "set", "-depth", "16", "-define", "png:bit-depth=16", "-define", "png:color-type=4"],
        None,
    ),
    "PNG, interlaced": ("0.png", [*_EIGHT, "png:color-type=2", "-interlace", "PNG"], None),
    "PNG with a gamma of 0.3": ("0.png", [*_EIGHT, "png:color-type=2", "-set", "gamma", "0.3"], None),
    "JPEG": ("0.jpg", ["-quality", "90"], None),
    "JPEG, grey": ("0.jpg", ["-colorspace", "Gray"], None),
    "JPEG, CMYK": ("0.jpg", ["-colorspace", "CMYK", "-quality", "95"], None),
    "JPEG, progressive": ("0.jpg", ["-interlace", "JPEG"], None),
    "JPEG, 4:1:1": ("0.jpg", ["-sampling-factor", "4x1"], None),
    "JPEG, 4:4:0": ("0.jpg", ["-sampling-factor", "1x2"], None),
    "GIF": ("0.gif", [], None),
    "GIF, animated": ("0.gif", ["(", "+clone", "-negate", ")", "-loop", "0"], None),
    "BMP3": ("BMP3:0.bmp", [], None),
    "BMP3, a palette": ("BMP3:0.bmp", ["-type", "Palette", "-colors", "16"], None),
    "BMP, version 4 with alpha": ("BMP:0.bmp", ["-alpha", "set"], None),
}


def _compared(folder: Path, what: str) -> Any:
    """The pixels in each colour mode: those of Replicant, and of TensorFlow or Pillow."""
    (path,) = folder.glob("0.*")
    by_pillow = _BY_PILLOW.get(what, ())
    found = {mode: _by_pillow(path, mode) for mode in by_pillow}
    for mode, channels in _MODES.items():
        if "BMP" in what and by_pillow:
            break
        if mode not in by_pillow and (pixels := _by_tensorflow(path.read_bytes(), channels)) is not None:
            found[mode] = pixels
    if "16" in what and "colours" in what:
        found = {mode: pixels for mode, pixels in found.items() if (mode == "grayscale") == ("in grey" in what)}
    if "within one level" in what:
        return lambda: [bool(np.abs(_read(folder, mode).astype(int) - its).max() <= 1) for mode, its in found.items()], [True]
    return lambda: {mode: _read(folder, mode) for mode in (found or _MODES)}, found


def _by_pillow(path: Path, mode: str) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert(mode.upper()))


def _by_tensorflow(data: bytes, channels: int) -> np.ndarray | None:
    """The pixels that TensorFlow decodes; None if it decodes no such picture."""
    import tensorflow as tf

    try:
        if tf.io.is_jpeg(data):
            return tf.io.decode_jpeg(data, channels, dct_method="INTEGER_ACCURATE").numpy()
        return tf.io.decode_image(data, channels, expand_animations=False).numpy()
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError):
        return None


def _read(folder: Path, mode: str) -> np.ndarray:
    from PIL import Image

    from replicant.keras.utils import image_dataset_from_directory

    (path,) = folder.glob("0.*")
    try:
        with Image.open(path) as image:
            width, height = image.size
    except OSError:
        width, height = _WIDTH, _HEIGHT
    made = image_dataset_from_directory(
        folder,
        labels=None,
        color_mode=mode,
        batch_size=None,
        image_size=(height, width),
        shuffle=False,
        interpolation="nearest",
        verbose=False,
    )
    (pixels,) = made
    return pixels


def _pillow(what: str, name: str, make: Any, settings: Any, folder: Path) -> Any:
    make().save(folder / name, **(settings() if callable(settings) else settings))
    return _compared(folder, what)


def _opencv(what: str, name: str, make: Any, settings: list[int], folder: Path) -> Any:
    import cv2

    assert cv2.imwrite(str(folder / name), make(), settings)
    return _compared(folder, what)


def _magick(what: str, name: str, command: list[str], folder: Path) -> Any:
    made = folder / "made"
    made.mkdir()
    kind, _, file = name.rpartition(":")
    source = ["-seed", "1", "-size", f"{_WIDTH}x{_HEIGHT}", "plasma:"]
    subprocess.run(["convert-im6.q16", *source, *command, f"{kind}:{made / file}" if kind else str(made / file)], check=True)
    return _compared(made, what)


def _imageio(name: str, folder: Path) -> Any:
    import imageio.v3 as iio

    iio.imwrite(folder / name, _smooth(3))
    return _compared(folder, name)


def _tiff(folder: Path) -> Any:
    import tifffile

    tifffile.imwrite(folder / "0.png", _noise(_HEIGHT, _WIDTH, 3))
    return _compared(folder, "TIFF")
