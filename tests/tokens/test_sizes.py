"""Headers that say another size than a reader finds: what is not plain counts as the largest there may be.

Each file here is one that Pillow 12 and 13 opened with the size in its name's place, 13,000 × 13,000, while
its first bytes told 1 × 1 (`kept` ones are whole files as people send them).
"""

import base64
import struct
import time
import zlib

import pytest

from gateway.tokens import Counter, CountRefused, Kind
from gateway.tokens.images import LARGEST_IMAGE, MediaRules, pixels_of, rules_for
from gateway.tokens.request import Media, Request
from gateway.tokens.sizes import size_of_source

LARGE = 13_000
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunk(kind, data=b""):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def ihdr(width, height):
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))


def png(*chunks):
    return SIGNATURE + b"".join(chunks) + chunk(b"IDAT", bytes(9)) + chunk(b"IEND")


def frame(width, height, left=0, top=0):
    return b"," + struct.pack("<HHHHB", left, top, width, height, 0) + b"\x02\x02\x4c\x01\x00"


def gif(*blocks, screen=(1, 1), colours=2):
    flags = 0x80 | (colours.bit_length() - 2)
    return b"".join(
        (b"GIF89a", struct.pack("<HHBBB", *screen, flags, 0, 0), bytes(3 * colours), *blocks, b";")
    )


CONTROL = b"!\xf9\x04\x01\x05\x00\x00\x00"
LOOP = b"!\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"


def sof(width, height):
    return b"\xff\xc0" + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\x01\x11\x00"


def jpeg_that_skips(marker):
    """To one who takes every marker for one with a length, the small frame within the comment comes first."""
    comment = b"\xff\xfe" + struct.pack(">H", 32) + bytes(10) + sof(1, 1) + bytes(7)
    return b"\xff\xd8\xff" + marker + b"\x00\x10" + comment + sof(LARGE, LARGE) + bytes(9)


def os2(width, height):
    return (
        b"BM" + struct.pack("<IHHI", 0, 0, 0, 26) + struct.pack("<IHHHH", 12, width, height, 1, 1)
    )


def url(data, start="data:image/x;base64,"):
    return start + base64.b64encode(data).decode()


@pytest.mark.parametrize(
    "data",
    [
        png(chunk(b"tEXt", struct.pack(">II", 1, 1) + b"a\0b"), ihdr(LARGE, LARGE)),
        png(chunk(b"IHDR", struct.pack(">II", 1, 1)), ihdr(LARGE, LARGE)),
        jpeg_that_skips(b"\x00"),
        jpeg_that_skips(b"\xf0"),
        gif(b"!\x01\x00", b"\x0e" + frame(1, 1), b"\x00", frame(LARGE, LARGE)),
        gif(b"!\xff\x0bNETSCAPE2.0\x00", b"\x0e" + frame(1, 1), b"\x00", frame(LARGE, LARGE)),
        gif(b"\x00", frame(LARGE, LARGE)),
        b"BM" + struct.pack("<IHHI", 0, 0, 0, 26) + struct.pack("<Iii", 13, 1, 1) + bytes(40),
    ],
    ids=["text first", "short IHDR", "junk", "JPG0", "no block", "no loop", "odd byte", "13"],
)
def test_what_is_not_plain_has_no_size(data):
    assert size_of_source(url(data)) is None


@pytest.mark.parametrize(
    "data",
    [
        png(ihdr(1, 1), ihdr(LARGE, LARGE)),
        png(ihdr(1, 1), chunk(b"iCCP", bytes(90_000)), ihdr(LARGE, LARGE)),
        png(ihdr(LARGE, LARGE), ihdr(1, 1)),
        gif(frame(LARGE, LARGE)),
        gif(CONTROL, LOOP, b"!\xfe\x03abc\x00", frame(LARGE - 1, LARGE - 2, 1, 2), colours=256),
        gif(frame(1, 1), screen=(LARGE, LARGE)),
        b"\xff\xd8" + sof(1, 1) + sof(LARGE, LARGE) + b"\xff\xda" + bytes(9),
    ],
    ids=["two", "behind a profile", "the first", "frame", "offset", "screen", "two frames"],
)
def test_of_several_sizes_the_largest_counts(data):
    assert size_of_source(url(data)) == (LARGE, LARGE)


def test_the_short_header_of_a_bmp_is_read():
    """It was read as one of 40 bytes: 3,145,792 × 65,537 pixels, and refused."""
    assert size_of_source(url(os2(64, 48) + bytes(400))) == (64, 48)


@pytest.mark.parametrize("start", ["data:a://b;base64,", "data:image/png;a=://;base64,"])
def test_a_data_url_that_looks_like_an_address_has_its_pixels(start):
    data = png(ihdr(LARGE, LARGE))
    request = Request(media=(Media("image", url(data, start)),))
    assert pixels_of(request) == (LARGE**2, 0)


async def test_a_small_screen_does_not_hide_a_large_frame():
    """Neither from the ledger nor from the bound on main memory."""
    rules = rules_for("qwen3_vl", {"patch_size": 16, "merge_size": 2})
    part = {"type": "image_url", "image_url": {"url": url(gif(frame(LARGE, LARGE)))}}
    body = {"messages": [{"role": "user", "content": [part]}]}
    counted = await Counter(media=rules).count(Kind.CHAT, body, 100)
    assert counted.pixels == LARGE**2
    assert counted.media > 16_000


async def test_a_frame_beyond_every_reader_is_refused():
    part = {"type": "image_url", "image_url": {"url": url(gif(frame(65_535, 65_535)))}}
    body = {"messages": [{"role": "user", "content": [part]}]}
    with pytest.raises(CountRefused, match="65,535 × 65,535 pixels"):
        await Counter(media=MediaRules()).count(Kind.CHAT, body, 100)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8" + b"\xff" * 1_500_000,
        b"\xff\xd8" + b"\xff\xfe\x00\x02" * 375_000,
        SIGNATURE + ihdr(1, 1) + chunk(b"tEXt") * 125_000,
        gif(b"!\xfe" + b"\x01a" * 750_000),
    ],
    ids=["padding", "segments", "chunks", "blocks"],
)
def test_a_header_without_end_is_not_walked_to_its_end(data):
    """1.2 s of the loop for each such image of 2 MB, twice, and 30 of them fit into a body."""
    source = url(data)
    least = min(_timed(source) for _ in range(5))
    assert least < 0.03, least


def _timed(source):
    began = time.thread_time()
    assert size_of_source(source) is None
    return time.thread_time() - began


def test_an_unknown_image_counts_as_the_largest():
    request = Request(media=(Media("image", url(jpeg_that_skips(b"\x00"))),))
    assert pixels_of(request) == (LARGEST_IMAGE, 1)
