"""The schema: strict, frozen, explained, and free of traps of YAML."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel, ValidationError

from gateway.policy import schema
from gateway.policy.load import json_schema
from gateway.policy.schema import Backend, Client, Policy
from gateway.policy.types import host_port, is_loopback

URL = "http://127.0.0.1:30000"


SECTIONS = sorted(schema.Section.__subclasses__(), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda kind: kind.__name__)
def test_every_field_is_described_with_the_reason_of_its_default(section: type[BaseModel]) -> None:
    for name, info in section.model_fields.items():
        assert info.description, name
        assert "efault" in info.description, name


def test_the_derived_default_cap_is_explained_in_the_schema() -> None:
    text = json_schema()["$defs"]["Backend"]["properties"]["default_output_tokens"]["description"]
    for fact in (
        "a quarter of the pool, prompt included",
        "min(8,192, pool/8)",
        "16,384",
        "14,446",
    ):
        assert fact in text


def test_the_schema_is_json_and_forbids_unknown_keys_everywhere() -> None:
    whole = json.loads(json.dumps(json_schema()))
    for part in (whole, *whole["$defs"].values()):
        assert part["additionalProperties"] is False


def test_a_policy_cannot_be_changed() -> None:
    policy = Policy(backends=(Backend(url=URL),))
    with pytest.raises(ValidationError):
        policy.listen = "0.0.0.0:80"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("http://LOCALHOST:30000/", "http://localhost:30000"),
        ("http://box", "http://box:80"),
        ("https://box/sglang/", "https://box:443/sglang"),
        ("http://[::1]:30000", "http://[::1]:30000"),
    ],
)
def test_urls_are_normalised(written: str, meant: str) -> None:
    assert Backend(url=written).url == meant


@pytest.mark.parametrize(
    "url",
    ["box:30000", "ftp://box", "http://", "http://box:99999", "http://box/v1", "http://box/v1/", "http://u:p@box",
     "http://box?x=1", "http://box#x", "http://bo x", ""],
)  # fmt: skip
def test_urls_that_cannot_be_meant_are_refused(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Backend(url=url)
    assert caught.value.errors()[0]["type"] == "kvgate"


def test_a_backend_without_a_name_is_called_by_host_and_port() -> None:
    assert Backend(url="http://Box:30000/").name == "box:30000"
    assert Backend(url=URL, name="gpu0").name == "gpu0"


@pytest.mark.parametrize(
    ("written", "meant"),
    [(True, "on"), (False, "off"), ("off", "off"), ("shadow", "shadow")],
)
def test_bare_on_and_off_of_yaml_are_the_words(written: object, meant: str) -> None:
    assert Policy.model_validate({"admission": written}).admission == meant


@pytest.mark.parametrize("value", ["16384", 0, -1, 1.5, True, None, "Auto"])
def test_a_count_is_a_positive_whole_number_or_auto(value: object) -> None:
    with pytest.raises(ValidationError) as caught:
        Backend.model_validate({"url": URL, "slots": value})
    assert [e["loc"] for e in caught.value.errors()] == [("slots",)]


@pytest.mark.parametrize("off", [False, "off"])
def test_a_bare_off_is_the_word_where_a_number_may_be_off(off: object) -> None:
    policy = Policy.model_validate(
        {"backends": [{"url": URL, "tpot_s": off}], "queue": {"retry_budget": off}}
    )
    assert (policy.backends[0].tpot_s, policy.queue.retry_budget) == ("off", "off")


@pytest.mark.parametrize("value", [0, -1, True, "4", None, float("nan")])
def test_a_number_that_may_be_off_is_above_nothing(value: object) -> None:
    for wrong in (
        {"backends": [{"url": URL, "tpot_s": value}]},
        {"queue": {"retry_budget": value}},
    ):
        with pytest.raises(ValidationError, match="or the word off"):
            Policy.model_validate(wrong)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 0, -1, "5"])
def test_seconds_are_finite_and_positive(value: object) -> None:
    with pytest.raises(ValidationError):
        Policy.model_validate({"limits": {"connect_s": value}})


@pytest.mark.parametrize(
    ("written", "host", "port", "local"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080, True),
        ("127.9.9.9:0", "127.9.9.9", 0, True),
        ("localhost:80", "localhost", 80, True),
        ("[::1]:80", "::1", 80, True),
        ("[::]:80", "::", 80, False),
        (":80", "0.0.0.0", 80, False),
        ("box:80", "box", 80, False),
    ],
)
def test_addresses(written: str, host: str, port: int, local: bool) -> None:
    address = Policy.model_validate({"listen": written, "allow_open": True}).listen
    assert host_port(address) == (host, port)
    assert is_loopback(address) is local


@pytest.mark.parametrize(
    "address", ["8080", "box", "box:", "box:x", "box:65536", "::1:80", "box:-1", "box:²"]
)
def test_addresses_that_are_none_are_refused(address: str) -> None:
    with pytest.raises(ValidationError):
        Policy.model_validate({"listen": address, "allow_open": True})


def test_a_policy_built_in_code_is_checked_too() -> None:
    with pytest.raises(ValidationError, match=r"backends\[1\].name: is already used"):
        Policy(backends=(Backend(url=URL, name="a"), Backend(url="http://b", name="a")))
    with pytest.raises(ValidationError, match="reachable from the network"):
        Policy(listen="0.0.0.0:8080")
    with pytest.raises(ValidationError, match="nothing would recognise"):
        Policy(clients=(Client(name="team"),))


def test_no_reply_can_start_after_the_first_byte_limit_of_a_whole_context_prefill() -> None:
    """The reason given for 900 s: 262,000 tokens at 300 tokens/s."""
    limits = Policy().limits
    assert 262_000 / 300 < limits.first_byte_s < limits.answer_s
    assert limits.answer_s > 32_000 / 10


@pytest.mark.parametrize(
    "written", ["http://Box:4318", "http://box:4318/", "http://box:4318/v1/traces"]
)
def test_a_collector_is_named_by_its_root_with_or_without_the_route(written: str) -> None:
    assert schema.Observe(otlp=written).otlp == "http://box:4318"


@pytest.mark.parametrize("written", ["box:4318", "http://user:secret@box:4318", "grpc://box:4317"])
def test_a_collector_is_an_http_url_without_credentials(written: str) -> None:
    with pytest.raises(ValidationError) as caught:
        schema.Observe(otlp=written)
    assert "otlp" in str(caught.value)
