"""Findings over real servers' arguments and over launch lines; each check seen to speak and to be silent."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.plan.audit import audit
from gateway.plan.findings import Severity, falls_short
from gateway.plan.launch import KEPT, read_launch
from gateway.plan.settings import of_launch, of_server
from gateway.plan.traffic import Traffic
from gateway.policy.schema import Backend
from gateway.upstream.facts import NotSGLangError

URL = "http://127.0.0.1:30000"
DATA = Path(__file__).parent / "data"
REAL: dict[str, Any] = {
    version: json.loads((DATA / f"sglang-{version}.json").read_text())
    for version in ("0.5.12", "0.5.17", "0.5.23")
}
"""Answers of real servers (CPU, pool 2,048), trimmed of what no check reads."""


def traffic(prompt: int | None = None, requests: int | None = None, **backend: Any) -> Traffic:
    return Traffic(Backend(url=URL, **backend), prompt=prompt, requests=requests)


def server(version: str = "0.5.17", /, **args: Any):
    answers = copy.deepcopy(REAL[version])
    free = args.pop("free", None)
    info = answers["server_info"] | args
    if free is not None:
        info["internal_states"][0]["memory_usage"]["startup_available"] = free
    return of_server(info, answers["models"], answers["model_info"])


def line(text: str, version: tuple[int, int, int] | None = (0, 5, 17), **known: Any):
    return of_launch(read_launch(f"{text}", version), **known)


def codes(settings, load: Traffic | None = None) -> dict[str, Severity]:
    return {f.code: f.severity for f in audit(settings, load or traffic())}


def found(settings, code: str, load: Traffic | None = None):
    return next(f for f in audit(settings, load or traffic()) if f.code == code)


@pytest.mark.parametrize("version", REAL)
def test_real_servers(version):
    got = codes(server(version))
    assert got == {
        "context_above_pool": Severity.WARNING,
        "pool_set_by_hand": Severity.NOTE,
        "promises_alone": Severity.NOTE,
        "promises_gate": Severity.NOTE,
        "running_above_pool": Severity.NOTE,
        "no_key": Severity.NOTE,
        "cache_report_off": Severity.NOTE,
    }
    context = found(server(version), "context_above_pool")
    assert "8,192" in context.found
    assert "2,048" in context.found
    assert context.remedy.startswith("Start with --context-length 1024")


def test_a_server_that_is_right_has_notes_only():
    good = server(max_total_num_tokens=20_000, max_req_input_len=8_186, internal_states=[])
    good_findings = audit(good, traffic())
    assert not falls_short(good_findings)
    assert {f.code for f in good_findings} >= {"promises_gate", "no_key"}


INCIDENT_A = "SGLANG_MAX_NEW_TOKENS_LIMIT={} python -m sglang.launch_server --model-path m \
    --context-length 69632 --max-running-requests 3 --enable-metrics"


@pytest.mark.parametrize(("limit", "sum_"), [(32_000, "153,000"), (16_384, "106,152")])
def test_incident_a_and_its_repair(limit, sum_):
    """The repair forgot the prompts."""
    settings = line(INCIDENT_A.format(limit), pool_tokens=67_375)
    got = found(settings, "promises_alone", traffic(19_000, 3))
    assert got.severity is Severity.WARNING
    assert sum_ in got.found
    assert "67,375" in got.found
    gate = found(settings, "promises_gate", traffic(19_000, 3))
    assert gate.severity is Severity.WARNING
    assert "2 run at once, each with a cap of 8,192" in gate.found
    smaller = found(settings, "promises_gate", traffic(19_000, 3, default_output_tokens=3_072))
    assert smaller.severity is Severity.NOTE


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        (1, "1 chat without max_tokens may write "),
        (2, "2 chats without max_tokens may each write "),
    ],
)
def test_one_chat_is_one(requests, told):
    got = found(line("sglang serve", pool_tokens=5000), "promises_alone", traffic(None, requests))
    assert got.found.startswith(told)


def test_incident_b_chunk_in_headroom():
    def judged(free, chunk):
        settings = server(device="cuda", free=free, chunked_prefill_size=chunk)
        return found(settings, "chunk_in_headroom")

    assert judged(0.65, 2048).severity is Severity.ERROR
    assert "0.65" in judged(0.65, 2048).found
    assert judged(1.09, 2048).severity is Severity.NOTE
    assert judged(1.09, 8192).severity is Severity.ERROR
    assert "--chunked-prefill-size 2048" in judged(1.09, 8192).remedy
    assert "chunk_in_headroom" not in codes(server(free=0.1))  # a CPU's memory is another matter


def test_incident_d():
    both = line(
        r"python3 -m sglang.launch_server \ --model-path /m \ --enable-paged-attention \ --page-size 16 \
        --max-total-tokens 8192 --max-running-requests 16 --max-pending-requests 64 --disable-drafting",
        (0, 5, 6),
    )
    wrong = [f for f in audit(both, traffic()) if f.severity is Severity.ERROR]
    assert [f.subject for f in wrong] == [
        "--enable-paged-attention",
        "--max-pending-requests",
        "--disable-drafting",
    ]
    assert "--max-queued-requests" in wrong[1].remedy
    assert "--page-size" in wrong[0].remedy
    assert "--speculative-algorithm" in wrong[2].remedy
    got = codes(both)
    assert got["lone_request_kills"] is Severity.WARNING
    assert "not the longest request" in found(both, "pool_set_by_hand").found


@pytest.mark.parametrize(
    ("version", "algorithm", "off"),
    [
        ((0, 5, 6), "EAGLE", True),
        ((0, 5, 12), "NGRAM", True),
        ((0, 5, 17), "EAGLE3", True),
        ((0, 5, 23), "NGRAM", True),
        ((0, 5, 23), "EAGLE", False),
    ],
)
def test_speculation_and_mixed_chunks(version, algorithm, off):
    text = f"sglang serve --enable-mixed-chunk --speculative-algorithm {algorithm}"
    assert ("mixed_chunk_off" in codes(line(text, version))) is off
    assert "mixed_chunk_off" not in codes(line("sglang serve --enable-mixed-chunk", version))


SPEAKS = [
    ("metrics_off", {"enable_metrics": False}, {"enable_metrics": True}),
    ("engine_queue_bounded", {"max_queued_requests": 8}, {"max_queued_requests": None}),
    ("prompts_cut", {"allow_auto_truncate": True}, {}),
    ("token_ids_only", {"skip_tokenizer_init": True}, {}),
    ("disaggregated", {"disaggregation_mode": "decode"}, {"disaggregation_mode": "null"}),
    ("no_prefix_cache", {"disable_radix_cache": True}, {}),
    ("conservativeness_low", {"schedule_conservativeness": 0.3}, {}),
    ("content_logged", {"log_requests": True}, {"log_requests": True, "log_requests_level": 1}),
    ("chunking_off", {"chunked_prefill_size": -1}, {}),
    ("clients_send_code", {"enable_custom_logit_processor": True}, {}),
    ("model_brings_code", {"trust_remote_code": True}, {}),
    ("keys_in_server_info", {"api_key": "k"}, {}),
    ("version_not_read", {"version": "0.7.1"}, {}),
    ("cache_report_off", {}, {"enable_cache_report": True}),
    (
        "key_on_the_line",
        {"launch_command": "--model m --api-key k"},
        {"launch_command": "--port 1"},
    ),
    ("headroom_not_known", {"device": "cuda", "internal_states": []}, {"internal_states": []}),
]


@pytest.mark.parametrize(("code", "bad", "good"), SPEAKS)
def test_each_check_speaks_and_is_silent(code, bad, good):
    assert code in codes(server(**bad))
    assert code not in codes(server(**good))


@pytest.mark.parametrize(
    ("version", "listed", "at_once", "severity"),
    [
        ("0.5.12", 8, None, Severity.ERROR),
        ("0.5.17", 8, None, Severity.WARNING),
        ("0.5.12", 7, None, None),
        ("0.5.12", 2, 2, Severity.ERROR),
        ("0.5.12", 2, 3, None),
        ("0.5.12", 0, 1, None),
    ],
)
def test_adapters_that_do_not_run_together(version, listed, at_once, severity):
    """sgl-project/sglang#23141: one adapter too many in a batch, and nobody is served."""
    answers = copy.deepcopy(REAL[version])
    base = answers["models"]["data"][0]["id"]
    answers["models"]["data"] += [{"id": f"a{i}", "parent": base} for i in range(listed)]
    info = answers["server_info"] | ({} if at_once is None else {"max_loras_per_batch": at_once})
    got = codes(of_server(info, answers["models"], answers["model_info"]))
    assert got.get("adapters_over_batch") is severity


def test_attention_dp_lowers_conservativeness_itself():
    args = {"schedule_conservativeness": 0.3, "enable_dp_attention": True}
    assert "conservativeness_low" not in codes(server(**args))


@pytest.mark.parametrize(
    ("keys", "host", "code", "severity"),
    [
        ({}, "0.0.0.0", "no_key", Severity.ERROR),
        ({}, "127.0.0.1", "no_key", Severity.NOTE),
        ({"api_key": "k"}, "0.0.0.0", "no_admin_key", Severity.WARNING),
        ({"api_key": "k"}, "::1", "no_admin_key", Severity.NOTE),
        ({"admin_api_key": "k"}, "127.0.0.1", "admin_key_readable", Severity.ERROR),
    ],
)
def test_doors(keys, host, code, severity):
    got = codes(server(host=host, **keys))
    assert got[code] is severity
    assert sum(name in got for name in ("no_key", "no_admin_key", "admin_key_readable")) == 1


def test_both_keys_close_the_doors():
    got = codes(server(host="0.0.0.0", api_key="a", admin_api_key="b"))
    assert not {"no_key", "no_admin_key", "admin_key_readable"} & set(got)


def test_environment():
    limited = "SGLANG_MAX_NEW_TOKENS_LIMIT=9 SGLANG_REQUEST_STATE_WAIT_TIMEOUT={} sglang serve"
    got = codes(line(limited.format(300), (0, 5, 12)))
    assert got["limit_not_known"] is Severity.WARNING
    assert got["not_a_timeout"] is Severity.WARNING
    got = codes(line(limited.format(10)))
    assert "limit_not_known" not in got
    assert got["not_a_timeout"] is Severity.NOTE


def test_options_of_a_line():
    got = codes(line("sglang serve --admin-api-key k --max-que 4 --config f stray", (0, 5, 6)))
    assert got["option_of_another_version"] is Severity.ERROR
    assert got["abbreviated"] is Severity.NOTE
    assert got["config_file"] is Severity.NOTE
    got = codes(line("sglang serve --admin-api-key k", None))
    assert got["version_not_said"] is got["not_in_every_version"] is Severity.NOTE
    got = codes(line("sglang serve —tp 2 x y --stream-output", (0, 5, 17)))
    assert got["wrong_dash"] is got["stray_words"] is Severity.ERROR
    assert got["deprecated"] is Severity.NOTE
    near = found(line("sglang serve --max-runing-requests 4"), "no_such_option")
    assert near.remedy == "Did you mean --max-running-requests?"


def test_policy_beside_the_server():
    got = audit(server(), traffic(max_prompt_tokens=9000, slots=4000, max_output_tokens=3000))
    beyond = {f.subject for f in got if f.code == "policy_beyond_server"}
    assert beyond == {"max_prompt_tokens", "slots", "max_output_tokens"}
    assert "policy_beyond_server" not in codes(server(), traffic(slots=10))
    assert codes(server(), traffic(9_000, 1))["prompt_never_fits"] is Severity.WARNING
    off = Traffic(Backend(url=URL), admission=False)
    assert codes(server(), off)["admission_off"] is Severity.WARNING
    assert codes(server(), off)["promises_alone"] is Severity.WARNING


def test_no_secret_in_any_finding():
    secret = "Sk0secret"
    answers = copy.deepcopy(REAL["0.5.23"])
    for name, value in answers["server_info"].items():
        if isinstance(value, str) and name != "version":
            answers["server_info"][name] = f"{secret} {value}"
    answers["server_info"] |= {
        "api_key": secret,
        "launch_command": f"--api-key {secret} --admin-api-key={secret} --{secret} {secret}",
        "device": "cuda",
    }
    settings = of_server(answers["server_info"], answers["models"])
    said = json.dumps([f.as_json() for f in audit(settings, traffic())])
    assert secret not in said
    assert not {"api_key", "launch_command", "model_path"} & set(settings.args)
    text = f"sglang serve --{secret}=1 --host '{secret} x' {secret} --x={secret}"
    for with_key in (text, f"{text} --api-key {secret}"):
        said = json.dumps([f.as_json() for f in audit(line(with_key), traffic())])
        assert "no_such_option" in said
        assert secret not in said


@pytest.mark.parametrize("number", [float("inf"), float("nan"), -float("inf"), 10**20])
@pytest.mark.parametrize("name", ["max_total_tokens", "max_queued_requests", "log_requests_level"])
def test_numbers_that_are_none_are_not_set(name, number):
    settings = server(log_requests=True, **{name: number})
    assert settings.whole(name) is None
    assert audit(settings, traffic())


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers()),
)


@given(
    st.dictionaries(
        st.sampled_from(sorted({*KEPT, "internal_states", "max_total_num_tokens"})), odd
    )
)
@example({"chunked_prefill_size": 8.9e306})
def test_odd_arguments_are_judged_or_refused(changed):
    answers = copy.deepcopy(REAL["0.5.23"])
    try:
        settings = of_server(answers["server_info"] | changed, answers["models"])
    except NotSGLangError:
        return
    assert audit(settings, traffic())


@given(
    st.dictionaries(
        st.sampled_from(sorted(KEPT)),
        st.one_of(st.integers(), st.floats(), st.text("a9.-", max_size=6)),
    )
)
def test_odd_options_are_judged(changed):
    text = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in changed.items())
    assert audit(line(f"SGLANG_MAX_NEW_TOKENS_LIMIT=9e99 sglang serve {text}"), traffic(9, 2))
