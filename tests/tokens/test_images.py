"""Image sizes from headers, tokens from sizes; never a decoder, never a fetch, never base64 as text."""

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tokens import Counter, CountRefused, Kind, MediaRules, Method
from gateway.tokens.images import (
    LARGEST_IMAGE,
    image_tokens,
    rules_for,
)
from gateway.tokens.sizes import size_of_source

QWEN25 = rules_for(
    "qwen2_5_vl", {"patch_size": 14, "merge_size": 2, "min_pixels": 3136, "max_pixels": 12845056}
)
QWEN3 = rules_for(
    "qwen3_vl",
    {"patch_size": 16, "merge_size": 2, "size": {"shortest_edge": 65536, "longest_edge": 16777216}},
)


def png(width, height):
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\x08\x02"


def jpeg(width, height, before=0):
    segments = b"\xff\xe1" + struct.pack(">H", before + 2) + b"E" * before if before else b""
    frame = b"\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width) + bytes(12)
    return b"\xff\xd8\xff\xff" + b"\xe0\x00\x04ab" + segments + b"\xff\xc4\x00\x03x" + frame


def gif(width, height):
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(3) + b"," + bytes(9)


def bmp(width, height):
    return b"BM" + bytes(12) + b"\x28\0\0\0" + struct.pack("<ii", width, -height) + bytes(4)


def webp(chunk, body):
    return b"RIFF\0\0\0\0WEBP" + chunk + bytes(4) + body + bytes(12)


def vp8(width, height):
    return webp(b"VP8 ", b"\x30\x01\x00\x9d\x01\x2a" + struct.pack("<HH", width | 0x4000, height))


def vp8l(width, height):
    return webp(b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14))


def vp8x(width, height):
    three = lambda n: (n - 1).to_bytes(3, "little")
    return webp(b"VP8X", bytes(4) + three(width) + three(height))


def url(data):
    return "data:image/x;base64," + base64.b64encode(data).decode()


@pytest.mark.parametrize("make", [png, jpeg, gif, bmp, vp8, vp8l, vp8x])
@given(width=st.integers(1, 16_000), height=st.integers(1, 16_000))
def test_sizes_from_headers(make, width, height):
    data = make(width, height)
    assert size_of_source(url(data)) == (width, height)
    assert size_of_source(base64.b64encode(data).decode()) == (width, height)


@pytest.mark.parametrize("before", [100, 5_000, 65_000])
def test_a_jpeg_behind_its_thumbnail(before):
    assert size_of_source(url(jpeg(640, 480, before))) == (640, 480)


@given(
    st.binary(max_size=64),
    st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8", b"RIFF....WEBPVP8X", b"BM"]),
)
def test_garbage_has_no_size_or_one_but_never_fails(data, magic):
    size = size_of_source(url(magic + data))
    assert size is None or len(size) == 2


@pytest.mark.parametrize(
    "source",
    [
        "",
        "http://10.0.0.1/x.png",
        "data:image/png,raw",
        "data:image/png;base64,",
        "data:;base64,!!!",
        "ü",
    ],
)
def test_no_size_without_bytes_of_its_own(source):
    assert size_of_source(source) is None


@pytest.mark.parametrize(
    ("size", "rules", "tokens"),
    [
        ((1920, 1080), QWEN25, 2691),  # all computed with transformers' smart_resize
        ((1920, 1080), QWEN3, 2040),
        ((28, 28), QWEN25, 4),
        ((1, 1), QWEN3, 64),
        ((10_000, 10_000), QWEN25, 16_129),
        ((10_000, 10_000), QWEN3, 16_384),
        ((200, 2), QWEN25, 20),
        ((4_000, 30), QWEN25, 143),
        ((127, 3001), QWEN3, 376),
        ((201, 1), QWEN25, None),
    ],
)
def test_tokens_of_an_image(size, rules, tokens):
    assert image_tokens(*size, rules) == tokens


@given(st.integers(1, 9_000), st.integers(1, 9_000))
def test_no_image_costs_more_than_the_ceiling(width, height):
    for rules in (QWEN25, QWEN3):
        tokens = image_tokens(width, height, rules)
        assert tokens is None or 1 <= tokens <= rules.image_ceiling


class Local:
    renders = True

    async def count(self, request, body_bytes, client):
        return (50,) * max(1, len(request.prompts))


async def counted(*parts, rules=QWEN25, **body):
    counter = Counter(local=Local(), media=rules)
    chat = {"messages": [{"role": "user", "content": list(parts)}], **body}
    return await counter.count(Kind.CHAT, chat, 100)


def image(source, **fields):
    return {"type": "image_url", "image_url": {"url": source, **fields}}


async def test_a_placeholder_becomes_its_image():
    count = await counted(image(url(png(1920, 1080))), image(url(png(28, 28))))
    assert (count.total, count.images, count.method) == (50 - 2 + 2691 + 4, 2, Method.EXACT)


@pytest.mark.parametrize(
    ("part", "rules", "tokens"),
    [
        (image("https://example.org/a.png"), QWEN25, 16_384),
        (image(url(png(1920, 1080))), MediaRules(), 16_384),
        (image("data:image/png;base64,AAAA"), QWEN3, 16_384),
        ({"type": "video_url", "video_url": {"url": "https://example.org/v"}}, QWEN25, 120_000),
        ({"type": "input_audio", "input_audio": {"data": "AAAA"}}, QWEN25, 8_192),
        (image(url(png(13_000, 13_000)), max_pixels=1 << 40), QWEN25, 465 * 465),
    ],
)
async def test_what_cannot_be_known_costs_its_ceiling(part, rules, tokens):
    count = await counted(part, rules=rules)
    assert count.total == 50 + 2 + tokens
    assert count.method is Method.BOUND


async def test_images_of_several_prompts_stay_apart():
    counter = Counter(local=Local(), media=QWEN25)
    body = {"text": ["a", "b"], "image_data": [[url(png(28, 28))] * 2, url(png(1920, 1080))]}
    count = await counter.count(Kind.GENERATE, body, 100)
    assert count.prompts == (50 - 2 + 8, 50 - 1 + 2691)


async def test_media_at_a_ceiling_teach_nothing_about_text():
    counter = Counter(local=Local(), media=QWEN25)
    chat = {"messages": [{"role": "user", "content": [image("https://x/y")]}]}
    count = await counter.count(Kind.CHAT, chat, 100)
    counter.observe(count, 900)
    again = await counter.count(Kind.CHAT, {"messages": [{"role": "user", "content": "x"}]}, 100)
    assert again.method is Method.EXACT


def test_the_source_is_not_in_a_repr():
    from gateway.tokens.request import Media

    assert "secret" not in repr(Media("image", "data:secret"))


def pictured(*sources):
    parts = [{"type": "image_url", "image_url": {"url": source}} for source in sources]
    return {"messages": [{"role": "user", "content": parts}]}


def inline(data):
    return "data:image/png;base64," + base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("sources", "pixels"),
    [
        ([inline(png(4000, 3000)), inline(jpeg(100, 50))], 12_005_000),
        ([inline(png(13_377, 13_377))], 13_377**2),
        (["https://example.org/a.png"], 0),
        ([inline(b"II*\0" + bytes(60))], LARGEST_IMAGE),  # a TIFF: as large as it may be
        ([base64.b64encode(png(10, 10)).decode()], 100),
    ],
)
async def test_pixels_of_a_request(sources, pixels):
    counted = await Counter().count(Kind.CHAT, pictured(*sources), 100)
    assert counted.pixels == pixels


@pytest.mark.parametrize("size", [(13_378, 13_378), (1, 2**31), (2**31, 2**31)])
async def test_an_image_that_no_reader_takes_is_refused(size):
    """sgl-project/sglang#28587: it would be unpacked before it is made smaller."""
    with pytest.raises(CountRefused, match="pixels"):
        await Counter().count(Kind.CHAT, pictured(inline(png(*size))), 100)
