import struct
import warnings
from io import BytesIO

import numpy as np
import pytest
from made_ilsvrc import encode
from PIL import Image

from hullo.lab.data.ilsvrc2012.pack import decode

COLOR = (200, 120, 40)


def plain(mode, size=(300, 200)):
    return Image.new("RGB", size, COLOR).convert(mode)


@pytest.mark.parametrize("size", [(1, 1), (224, 224), (500, 375), (375, 500), (3000, 20)])
def test_any_image_size_becomes_256_by_256(size):
    pixels = decode(encode(plain("RGB", size)))
    assert (pixels.shape, pixels.dtype) == ((256, 256, 3), np.uint8)
    assert np.abs(pixels.astype(int) - COLOR).max() <= 3


def test_height_and_width_are_resized_independently():
    image = Image.new("RGB", (600, 400))
    image.paste((255, 0, 0), (0, 0, 300, 200))  # top left
    image.paste((0, 255, 0), (300, 0, 600, 200))
    image.paste((0, 0, 255), (0, 200, 300, 400))
    pixels = decode(encode(image, "PNG"))
    assert pixels[:127, :127].reshape(-1, 3).tolist() == [[255, 0, 0]] * 127**2
    assert pixels[:127, 129:].reshape(-1, 3).tolist() == [[0, 255, 0]] * 127**2
    assert pixels[129:, :127].reshape(-1, 3).tolist() == [[0, 0, 255]] * 127**2


def test_shrinking_is_antialiased():
    stripes = np.zeros((256, 1024), np.uint8)
    stripes[:, ::4] = 200
    pixels = decode(encode(Image.fromarray(stripes), "PNG"))[:, 2:-2]
    assert np.abs(pixels.astype(int) - 50).max() <= 1  # taking the nearest pixels would give 0 or 200


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_grayscale_color_and_inverted_cmyk_jpegs_are_read(mode):
    content = encode(plain(mode), quality=95)
    if mode == "CMYK":
        assert b"Adobe" in content[:64]
    gray = (np.dot(COLOR, (0.299, 0.587, 0.114)),) * 3
    assert np.abs(decode(content) - np.array(gray if mode == "L" else COLOR, float)).max() <= 3


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L", "LA", "1"])
def test_png_is_read_whatever_its_file_name(mode):
    options = {"transparency": b"\0" * 256} if mode == "P" else {}
    pixels = decode(encode(plain(mode), "PNG", **options))
    assert np.array_equal(pixels, decode(encode(plain(mode).convert("RGB"), "PNG")))


def with_exif(content, exif):
    segment = b"Exif\0\0" + exif
    return content[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + content[2:]


def test_damaged_metadata_are_ignored_without_warnings():
    content = encode(plain("RGB"))
    corrupt = with_exif(content, b"II*\0\x08\0\0\0\x05\0" + b"\x1a\x01\x05\0\x01\0\0\0\xff\xff\0\0")
    with (
        pytest.warns(UserWarning, match="Corrupt EXIF data|Truncated File Read"),
        Image.open(BytesIO(corrupt)) as image,
    ):
        image.getexif()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(decode(corrupt), decode(content))


def test_exif_rotation_is_ignored():
    content = encode(Image.linear_gradient("L"))
    exif = Image.Exif()
    exif[0x0112] = 6
    assert np.array_equal(decode(with_exif(content, exif.tobytes()[6:])), decode(content))


NOISE = encode(Image.effect_noise((400, 300), 90))


BROKEN = {
    "half": (NOISE[: len(NOISE) // 2], "truncated"),
    "nearly whole": (NOISE[:-2000], "truncated"),
    "within the header": (NOISE[:100], "Truncated"),
    "half a PNG": (encode(plain("RGB"), "PNG")[:200], "truncated"),
    "empty": (b"", "cannot identify"),
    "a page": (b"<html>oh</html>", "cannot identify"),
    "another kind": (encode(plain("RGB"), "BMP"), "cannot identify"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_image_raises_an_error_with_the_reason(kind):
    content, reason = BROKEN[kind]
    with pytest.raises((OSError, SyntaxError, ValueError), match=reason):
        decode(content)


def test_damaged_bytes_give_an_image_or_an_error():
    refused = 0
    for seed in range(300):
        draw = np.random.default_rng(seed)
        damaged = bytearray(encode(plain("RGB", (40, 30))) if seed % 2 else encode(plain("P", (40, 30)), "PNG"))
        for place in draw.integers(2, len(damaged), 4):
            damaged[place] = draw.integers(256)
        try:
            assert decode(bytes(damaged)).shape == (256, 256, 3)
        except Exception:
            refused += 1
    assert 0 < refused < 300


def test_real_images_are_not_damaged(real_source):
    for image in real_source.images("val")[:50]:
        assert decode(image.read()).std() > 5
