"""What a prompt points to: the engine's own disk never, the network inside only where the policy says so."""

from __future__ import annotations

import base64
import ipaddress
import socket
import time
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.edge.dialects import pointers
from gateway.policy.bounds import Limits

PUBLIC, ANY, DATA = Limits(), Limits(media="any"), Limits(media="data")
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 40).decode()
VIDEO = base64.b64encode(b"\0\0\0 ftypisom" + b"\x07" * 9_000).decode()
UNKNOWN = base64.b64encode(b"\x11\x22\x33" * 4_000).decode()

PASS = (
    *(
        "https://upload.wikimedia.org/a/b.png",
        "http://a.example:8000?x=http://127.0.0.1/",
        "https://8.8.8.8/",
    ),
    *(
        "https://[2606:4700:4700::1111]:443/a#b",
        "https://xn--bcher-kva.example/",
        "https://a_b.example./p",
    ),
    *(
        f"data:image/png;base64,{PNG}",
        "data:,",
        "data:/etc/passwd",
        PNG,
        "/9j/4AAQSkZJRg==",
        VIDEO,
        UNKNOWN,
        "",
    ),
)

FILES = (
    *(
        "file:///etc/hosts",
        "FILE:/x",
        "/srv/private/face.png",
        "../face.jpeg",
        "/etc/passwd",
        "etc/passwd",
    ),
    *("voice.wav", "a", "models/secret", "/9k/x", " data:image/png;base64,", "DATA:image/png,"),
    # To the decoder of videos, where the path is a file: fetched by whatever has that scheme.
    *(
        "rtmp://h/etc/passwd",
        "HTTP://169.254.169.254/etc/passwd",
        "http:/etc/passwd",
        "http:etc/passwd",
    ),
    *(
        "ftp://a.example/a.png",
        "gopher://h/",
        "concat:/etc/passwd",
        " http://a.example/",
        "\thttps://a.example/",
    ),
    *(
        "//a.example/a.png",
        "blob:https://a.example/1",
        "a" * 4_097 + ":/etc/passwd",
        "/" + "a" * 200,
    ),
)

INSIDE = (
    *(
        "127.0.0.1",
        "127.0.0.1:30000",
        "127.8.9.10",
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
    ),
    *(
        "169.254.169.254",
        "169.254.170.2",
        "100.100.100.200",
        "192.0.0.192",
        "0.0.0.0",
        "255.255.255.255",
    ),
    *("224.0.0.1", "198.18.0.1", "168.63.129.16", "192.0.2.1", "203.0.113.9"),
    # The same in other spellings, and public ones in those.
    *(
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "017700000001",
        "127.1",
        "127.0.1",
        "0",
        "1",
    ),
    *(
        "127.0.0.01",
        "0x7f.1",
        "127.0.0.0x1",
        "127.0.0.1.",
        "1.1",
        "8.8.8.8.",
        "08.8.8.8",
        "8.8.2056",
        "0x",
    ),
    *(
        "999.1.1.1",
        "1.2.3.4.5",
        "127.0.0.1..",
        "a.127",
        "127.0.0.1%00",
        "127%2e0.0.1",
        "%31270.0.1",
    ),
    *(
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[fe80::1]",
        "[fe80::1%25eth0]",
    ),
    *(
        "[fe80::1%eth0]",
        "[fd00:ec2::254]",
        "[fd20:ce::254]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b::169.254.169.254]",
    ),
    *(
        "[2002:7f00:1::]",
        "[2001:0:7f00:1::]",
        "[2001:db8::1]",
        "[ff02::1]",
        "[100::1]",
        "[fec0::1]",
        "[::1",
        "::1",
    ),
    *("[1.2.3.4]", "[v1.x]", "[]", "[:::]", "[0:0:0:0:0:ffff:a9fe:a9fe]", "[::ffff:0:127.0.0.1]"),
    *(
        "localhost",
        "LOCALHOST",
        "localhost.",
        "a.localhost",
        "localhost.localdomain",
        "printer.local",
        "engine",
    ),
    *(
        "metadata",
        "metadata.google.internal",
        "METADATA.GOOG",
        "metadata.tencentyun.com",
        "metadata.goog.",
    ),
    *(
        "instance-data.ec2.internal",
        "engine.default.svc",
        "engine.default.svc.cluster.local",
        "nas.lan",
        "x.corp",
    ),
    *(
        "router.home.arpa",
        "1.0.0.127.in-addr.arpa",
        "box.intranet",
        "box.private",
        "nas.home",
        "shop.test",
    ),
    *(
        "a.example@127.0.0.1",
        "127.0.0.1@a.example",
        "user:pass@a.example",
        "a.example:80@127.0.0.1",
        "@a.example",
    ),
    *(
        "a.example\\@127.0.0.1",
        "127.0.0.1\\@a.example",
        "127.0.0.1\\.a.example",
        "\\\\127.0.0.1",
        "\\127.0.0.1",
    ),
    *(
        "１２７.0.0.1",
        "①②⑦.0.0.1",
        "127。0。0。1",
        "127．0．0．1",
        "ⓛocalhost",
        "localhoſt",
        "loc\u00adalhost",
        "bücher.example",
    ),
    *(
        "127.0.0.1\t",
        "127.0.0.1 .a.example",
        "a.example\r\nhost: 127.0.0.1",
        "\x00127.0.0.1",
        "a.example\n",
    ),
    *(
        "",
        ":80",
        "a.example:",
        "a.example:x",
        "a.example:0",
        "a.example:65536",
        "a.example:80:80",
        ".",
        "..",
        "a..b.example",
    ),
    *(
        "-a.example",
        "a" * 64 + ".example",
        "a." * 150 + "example",
        "a.example,127.0.0.1",
        "a.example;127.0.0.1",
    ),
)


def wrong(text: str, limits: Limits = PUBLIC, *, sound: bool = False) -> str | None:
    return pointers.fault(text, limits, sound=sound)


@pytest.mark.parametrize("text", PASS)
def test_pictures_of_the_open_internet_and_pictures_themselves_pass(text: str) -> None:
    assert wrong(text) is None


@pytest.mark.parametrize("text", FILES)
@pytest.mark.parametrize("limits", [PUBLIC, ANY, DATA], ids=["public", "any", "data"])
def test_what_is_read_from_the_servers_disk_passes_nowhere(text: str, limits: Limits) -> None:
    told = wrong(text, limits)
    assert told is not None
    assert "files of the server's own" in told
    assert "data:image/png;base64,…" in told


@pytest.mark.parametrize("scheme", ["http://", "https://"])
@pytest.mark.parametrize("host", INSIDE)
def test_addresses_inside_are_refused_in_every_spelling(host: str, scheme: str) -> None:
    for rest in ("", "/latest/meta-data/", "?x", "#x"):
        assert wrong(f"{scheme}{host}{rest}"), f"{scheme}{host}{rest}"
    assert wrong(f"{scheme}{host}/a.png", ANY) is None


@pytest.mark.parametrize("text", [PNG, VIDEO, UNKNOWN, "/etc/passwd", "voice", "file:///a"])
def test_a_bare_text_for_a_sound_is_a_file_to_every_version(text: str) -> None:
    assert "data:audio/wav;base64,…" in (wrong(text, sound=True) or "")
    assert wrong(f"data:audio/wav;base64,{text}", sound=True) is None
    assert wrong("https://a.example/a.wav", sound=True) is None


def test_only_what_is_sent_itself_passes_where_the_policy_says_so() -> None:
    assert "fetches none" in (wrong("https://a.example/a.png", DATA) or "")
    assert wrong(f"data:image/png;base64,{PNG}", DATA) is None
    assert wrong(PNG, DATA) is None


@pytest.mark.parametrize("media", ["public", "data"])
@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("http://pictures.lan/a", "pictures.lan"),
        ("http://PICTURES.lan.:8000/a", "pictures.lan"),
        ("http://pictures.lan:8000/a", "pictures.lan:8000"),
        ("http://pictures.lan/a", None),
        ("http://pictures.lan:8001/a", None),
        ("http://a.b.corp.lan/a", "*.corp.lan"),
        ("http://corp.lan/a", None),
        ("http://xcorp.lan/a", None),
        ("http://10.0.0.7/a", "10.0.0.7"),
        ("http://10.0.0.07/a", None),
        ("http://10.0.0.77/a", None),
        ("http://[fd00::7]:80/a", "[fd00::7]"),
        ("http://[fd00::8]/a", None),
        ("http://u@pictures.lan/a", None),
        ("http://pictures.lan@10.0.0.1/a", None),
        ("http://pictures.lan\\@10.0.0.1/a", None),
    ],
)
def test_hosts_that_the_policy_names_pass(url: str, named: str | None, media: Any) -> None:
    every = ("pictures.lan:8000", "*.corp.lan", "10.0.0.7", "[fd00::7]")
    found = (named,) if named is not None else every
    assert (wrong(url, Limits(media=media, media_hosts=found)) is None) == (named is not None)


# ---- every spelling ----------------------------------------------------------------------------

PRIVATE_4 = st.sampled_from(
    ["10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"]
).flatmap(lambda net: st.ip_addresses(network=ipaddress.ip_network(net)))
PRIVATE_6 = st.sampled_from(["fc00::/7", "fe80::/10", "::1/128"]).flatmap(
    lambda net: st.ip_addresses(network=ipaddress.ip_network(net))
)


def number(value: int, base: str, zeros: int) -> str:
    return {
        "d": f"{value}",
        "o": f"0{'0' * zeros}{value:o}",
        "x": f"0x{'0' * zeros}{value:x}",
        "X": f"0X{value:X}",
    }[base]


@st.composite
def four(draw: st.DrawFn) -> str:
    """An IPv4 address as inet_aton reads it: one to four numbers, the last one wide, each in any base."""
    value = int(draw(PRIVATE_4))
    wide = draw(st.integers(1, 4))
    parts = [(value >> (24 - 8 * i)) & 255 for i in range(wide - 1)]
    parts.append(value & ((1 << (8 * (5 - wide))) - 1))
    spelled = [
        number(part, draw(st.sampled_from("doxX")), draw(st.integers(0, 3))) for part in parts
    ]
    text = ".".join(spelled) + draw(st.sampled_from(["", "."]))
    assert socket.inet_aton(text.removesuffix("."))  # it is one
    return text


CARRIERS = st.sampled_from(
    [
        lambda inner: 0xFFFF << 32 | inner,  # mapped
        lambda inner: inner,  # compatible
        lambda inner: 0x64FF9B << 96 | inner,  # NAT64
        lambda inner: 0x2002 << 112 | inner << 80,  # 6to4
        lambda inner: 0x20010000 << 96 | inner,  # Teredo
    ]
)
"""IPv6 addresses that mean an IPv4 one."""


@st.composite
def six(draw: st.DrawFn) -> str:
    carried = st.builds(
        lambda carry, inner: ipaddress.IPv6Address(carry(int(inner))), CARRIERS, PRIVATE_4
    )
    value = draw(PRIVATE_6 | carried)
    tail = ipaddress.IPv4Address(int(value) & 0xFFFFFFFF)
    spellings = (
        value.compressed,
        value.exploded,
        value.exploded.upper(),
        f"{value.exploded[:-9]}{tail}",
    )
    zone = draw(st.sampled_from(["", "%25eth0", "%1"]))
    return f"[{draw(st.sampled_from(spellings))}{zone}]"


FULL = str.maketrans(
    "0123456789.abcdefghijklmnopqrstuvwxyz",
    "０１２３４５６７８９。ａｂｃｄｅｆｇｈｉｊｋｌｍｎｏｐｑｒｓｔｕｖｗｘｙｚ",
)
NAMES = st.builds(
    lambda front, name, dot: f"{front}{name}{dot}",
    st.sampled_from(["", "a.", "a-b.c."]),
    st.sampled_from(["localhost", "b.local", "x.internal", "metadata.google.internal", "nas.lan"]),
    st.sampled_from(["", "."]),
)
DRESS = st.sampled_from(
    [
        lambda host: host,
        str.upper,
        lambda host: host.translate(FULL),
        lambda host: quote(host, safe="[]:"),
        lambda host: "".join(f"%{ord(letter):02x}" for letter in host),
        lambda host: f"a.example@{host}",
        lambda host: f"a.example:80@{host}",
        lambda host: f"a.example\\@{host}",
        lambda host: f"{host}\\@a.example",
        lambda host: f"{host}:30000",
        lambda host: f"/{host}",
        lambda host: f"\t{host}",
    ]
)


@given(
    st.one_of(four(), six(), NAMES),
    DRESS,
    st.sampled_from(["http://", "https://", "HTTP://", "http:\\\\", "http:/", " http://"]),
    st.sampled_from(["", "/", "/a.png", "?a", "#a", "\\a"]),
)
def test_no_spelling_of_a_private_address_passes(
    host: str, dress: Any, scheme: str, end: str
) -> None:
    assert wrong(f"{scheme}{dress(host)}{end}")
    assert wrong(f"{scheme}{dress(host)}{end}", DATA)


@given(st.text(alphabet="0123456789abcdefxX.:[]@\\/%#?-_１。 \t", max_size=24))
@example("0x7f.1")
@example("127.0.0.1#@8.8.8.8")
def test_what_passes_is_the_same_host_to_pythons_parser_and_none_inside_to_the_c_library(
    rest: str,
) -> None:
    url = f"http://{rest}"
    if wrong(url) is not None:
        return
    host = urlsplit(url).hostname or ""
    assert host == pointers.hosts.split(pointers._END.split(rest)[0])[0].strip("[]")
    try:
        address = (
            ipaddress.ip_address(host)
            if ":" in host
            else ipaddress.IPv4Address(socket.inet_aton(host))
        )
    except OSError:
        assert "." in host
        return
    assert address.is_global


NETS = (
    "1.0.0.0/8",
    "8.0.0.0/8",
    "11.0.0.0/8",
    "126.0.0.0/8",
    "128.0.0.0/8",
    "172.32.0.0/11",
    "223.0.0.0/8",
    "2606:4700::/32",
)


@given(st.sampled_from(NETS).flatmap(lambda net: st.ip_addresses(network=net)))
def test_a_public_address_in_its_usual_spelling_passes(address: Any) -> None:
    text = f"[{address}]" if address.version == 6 else str(address)
    assert wrong(f"https://{text}:8443/a.png") is None


def test_the_length_of_what_is_sent_costs_nothing() -> None:
    """60 MB in base64, as a video has them; and texts made to send a pattern back and forth."""
    megabytes = "A" * (60 << 20)
    for text in (
        f"data:video/mp4;base64,{megabytes}",
        megabytes,
        f"http://{megabytes}",
        f"http://a.{'a.' * (1 << 20)}",
    ):
        began = time.thread_time()
        wrong(text)
        assert time.thread_time() - began < 0.1
