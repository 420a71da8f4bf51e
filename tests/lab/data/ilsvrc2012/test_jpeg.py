"""Test that damage in the middle of a JPEG is detected, and intact files are not reported."""

import random
import re

import huffman
import numpy as np
import pytest
from made_ilsvrc import encode
from PIL import Image

from hullo.lab.data.ilsvrc2012.jpeg import SURPLUS, find_damage


def photograph(size=(120, 90), mode="RGB", seed=0):
    """Return an image with areas, edges and grain, as photographs have."""
    draw = np.random.default_rng(seed)
    areas = Image.fromarray(draw.integers(0, 255, (6, 8, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    grain = draw.normal(0, 6, (size[1], size[0], 1))
    return Image.fromarray((np.asarray(areas) + grain).clip(0, 255).astype(np.uint8)).convert(mode)


def compressed(content):
    """Return where the compressed data of a JPEG of one scan begin and end."""
    scan = content.index(b"\xff\xda")
    return scan + 2 + int.from_bytes(content[scan + 2 : scan + 4]), content.rindex(b"\xff\xd9")


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("size", [(1, 1), (17, 9), (120, 90)])
def test_intact_jpegs_are_not_reported(mode, size):
    image = photograph(size, mode)
    for quality in (5, 50, 95):
        for subsampling in (0, 1, 2) if mode != "L" else (0,):
            options = {"quality": quality, "subsampling": subsampling}
            for more in ({}, {"optimize": True}, {"progressive": True}, {"restart_marker_blocks": 7}):
                assert find_damage(encode(image, **options, **more)) is None, (options, more)


@pytest.mark.parametrize("content", [b"", b"\x89PNG", encode(photograph(), "PNG")])
def test_other_formats_are_ignored(content):
    assert find_damage(content) is None


def test_bytes_after_the_end_are_ignored():
    assert find_damage(encode(photograph()) + b"\xff\xd8 a thumbnail \xff\xc0") is None


WHOLE = encode(photograph(), quality=90)
START, END = compressed(WHOLE)
RESTARTED = encode(photograph(), quality=90, restart_marker_blocks=7)
PROGRESSIVE = encode(photograph(), quality=90, progressive=True)
FIRST, THIRD = RESTARTED.index(b"\xff\xd0"), RESTARTED.index(b"\xff\xd2")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (WHOLE[: START + 300] + b"\xff\xc7" + WHOLE[START + 302 :], f"the marker ff c7 .* {START + 300:,}"),
        (WHOLE[: START + 300] + b"\xff\xd3" + WHOLE[START + 302 :], "the marker ff d3 within compressed data"),
        (WHOLE[: START + 300] + b"\xff\xe1" + WHOLE[START + 302 :], "the marker ff e1 within compressed data"),
        (WHOLE[: START + 300] + b"\xff\xd9" + WHOLE[START + 302 :], "too little compressed data"),
        (WHOLE[: START + 300] + WHOLE[START + 500 :], "too little compressed data"),
        (WHOLE[:END] + WHOLE[START : START + SURPLUS + 2] + WHOLE[END:], "too much compressed data"),
        (WHOLE[:END], "truncated markers"),
        (WHOLE[:2] + b"\0" + WHOLE[2:], "no marker at byte 2, where one is expected"),
        (RESTARTED[:FIRST] + b"\xff\xd5" + RESTARTED[FIRST + 2 :], "a restart out of order"),
        (RESTARTED[:FIRST] + RESTARTED[THIRD:], "a restart out of order"),
        (RESTARTED.replace(b"\xff\xd2", b"\0\0", 1), "a restart out of order"),
        (RESTARTED[: FIRST - 60] + RESTARTED[FIRST:], "too little compressed data"),
        (PROGRESSIVE[:-400] + PROGRESSIVE[-100:], "too little compressed data"),
    ],
)
def test_warnings_of_the_decoder_are_reported(content, message):
    assert re.match(message, find_damage(content) or "")


def test_damage_that_changes_the_amount_of_data_is_detected_anywhere():
    """Of damage that changes pixels, all is found after which blocks take another number of bits, to a few bytes."""
    draw = random.Random(0)
    outcomes = {"known": 0, "unknown": 0}
    for seed in range(80):
        whole = encode(photograph(seed=seed % 5), quality=85)
        start, end = compressed(whole)
        content, size = bytearray(whole), draw.choice([1, 8, 64, 300])
        place = draw.randrange(start, end - size)
        kind = draw.choice(["zeros", "noise", "lost", "doubled"])
        if kind == "lost":
            del content[place : place + size]
        else:
            others = {"zeros": bytes(size), "noise": draw.randbytes(size).replace(b"\xff", b"\xfe")}
            content[place : place + size] = others.get(kind, 2 * content[place : place + size])
        spare = huffman.spare_bits(bytes(content))
        result = find_damage(bytes(content))
        if spare is not None and (spare < -100 or spare > 8 * (SURPLUS + 2)):
            assert result, (seed, kind, size, spare)
            outcomes["known"] += 1
        elif result is None:
            outcomes["unknown"] += 1
    assert outcomes["known"] > 20
    assert outcomes["unknown"] < 40
    assert huffman.spare_bits(WHOLE) in range(8)
