"""Launch lines: incident D's, the shell's and docker's ways, and secrets that must not stay."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.plan.launch import LaunchError, read_launch
from gateway.plan.options import INSTEAD, table

D_MEMORY = r"""python3 -m sglang.launch_server \ --model-path /path/to/your/model \
  --enable-paged-attention \ --page-size 16 \ --max-total-tokens 8192"""
D_BATCH = r"""python3 -m sglang.launch_server \ --model-path /path/to/your/model \
  --max-running-requests 16 \ --max-pending-requests 64 \ --schedule-policy lpm"""

ALL = [(0, 5, 6), (0, 5, 12), (0, 5, 17), (0, 5, 23)]


def test_the_table():
    known = table()
    assert list(known.versions) == ALL
    counts = [sum(v in o.versions for o in known.options.values()) for v in ALL]
    assert counts == [296, 402, 491, 559]  # the options that add_cli_args registered, less --help
    assert known.options["--admin-api-key"].versions == tuple(ALL[1:])
    assert known.options["--tensor-parallel-size"].sets == "tp_size"
    assert known.options["--enable-metrics"].takes == "0"
    assert known.options["--max-queued-requests"].versions == tuple(ALL)


@pytest.mark.parametrize("name", INSTEAD)
def test_advice_is_for_options_that_do_not_exist(name):
    assert all(table().find(name, version) is None for version in [*ALL, None])


@pytest.mark.parametrize("version", [*ALL, None])
def test_incident_d(version):
    memory, batch = read_launch(D_MEMORY, version), read_launch(D_BATCH, version)
    assert memory.unknown == ["--enable-paged-attention"]
    assert memory.args == {"page_size": 16, "max_total_tokens": 8192}
    assert batch.unknown == ["--max-pending-requests"]
    assert batch.args == {"max_running_requests": 16, "schedule_policy": "lpm"}
    assert (memory.strays, batch.strays) == (0, 0)
    draft = read_launch("sglang serve --disable-drafting", version)
    assert draft.unknown == ["--disable-drafting"]


def test_docker_environment_and_image():
    line = read_launch(
        "docker run --gpus all -p 30000:30000 -e SGLANG_MAX_NEW_TOKENS_LIMIT=32000 "
        "--env=SGLANG_REQUEST_STATE_WAIT_TIMEOUT=10 -e HF_TOKEN=hf_secret lmsysorg/sglang:v0.5.17-cu129 "
        "python3 -m sglang.launch_server --model-path m --mem-fraction-static=0.93 --host 0.0.0.0"
    )
    assert line.version == (0, 5, 17)
    assert line.environment == {
        "SGLANG_MAX_NEW_TOKENS_LIMIT": "32000",
        "SGLANG_REQUEST_STATE_WAIT_TIMEOUT": "10",
    }
    assert line.args == {"mem_fraction_static": 0.93, "host": "0.0.0.0"}
    assert "secret" not in repr(line)


def test_as_argparse_reads_it():
    line = read_launch(
        "python -m sglang.launch_server --model m --mem-frac .9 --context-length 4096 "
        "--context-length 8192 --tp 2 --chunked-prefill-size -1 --cuda-graph-bs 1 2 4",
        (0, 5, 12),
    )
    assert line.args["context_length"] == 8192  # the last one counts
    assert line.args["chunked_prefill_size"] == -1
    assert line.args["tp_size" if "tp_size" in line.args else "tensor_parallel_size"] == 2
    assert (line.unknown, line.strays) == ([], 0)
    assert ("--mem-frac", "--mem-fraction-static") in [(n, o.name) for n, o in line.used]


def test_versions_differ():
    old = read_launch("sglang serve --admin-api-key k --retraction-policy length", (0, 5, 6))
    assert [o.name for o in old.elsewhere] == ["--admin-api-key", "--retraction-policy"]
    assert old.unknown == []
    between = read_launch("sglang serve --admin-api-key k", (0, 5, 14))
    assert between.elsewhere == []  # judged by 0.5.12


def test_what_copying_from_a_page_does():
    line = read_launch("sglang serve –max-running-requests 4 — —tp 2 stray words")
    assert line.dashes == 3
    assert line.args["max_running_requests"] == 4
    assert line.strays >= 2


@pytest.mark.parametrize(
    "text", ["", "vllm serve model", "sglang", "python -m sglang.bench_serving"]
)
def test_no_server_in_it(text):
    with pytest.raises(LaunchError, match="starts no SGLang server"):
        read_launch(text)


def test_an_open_quote():
    with pytest.raises(LaunchError, match="quote"):
        read_launch("sglang serve --model 'm")


SECRET = "Sk0secret"


@given(
    st.lists(
        st.sampled_from(
            ["--api-key", "--admin-api-key", "--model-path", "--host", "-x", "--zz", "=", ""]
        ),
        max_size=6,
    ),
    st.sampled_from([" ", "=", "  ", "-"]),
)
def test_secrets_do_not_stay(options, joint):
    text = "sglang serve " + " ".join(f"{option}{joint}{SECRET}" for option in options)
    line = read_launch(text)
    line.args.pop("host", None)  # an address is needed; it is not shown when it is no address
    assert SECRET not in repr(line)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(LaunchError):
        read_launch(f"sglang serve --host {text}")
