"""The two commands: contract, exit codes, a live server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.twin.profiles import PROFILES
from gateway.twin.server import TwinServer

DATA = Path(__file__).parent / "data"
BOX = ["--available-gib", "23.2", "--weights-gib", "17.67", "--state-gib", "0.70"]
B = ["plan", *BOX, "--cell-bytes", "32768"]
GOOD_LINE = (
    "python -m sglang.launch_server --model-path m --context-length 65536 --enable-metrics "
    "--mem-fraction-static 0.91"
)


def test_the_contract(capsys):
    assert main([*B, "--fraction", "0.95", "--fraction", "0.93", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [set(row) for row in rows] == [
        {"fraction", "pool_tokens", "headroom_gib", "context_tokens"}
    ] * 2
    assert [row["fraction"] for row in rows] == [0.95, 0.93]
    assert [row["pool_tokens"] for row in rows] == [120_258, 105_054]


def test_a_file_and_a_table(tmp_path, capsys):
    path = tmp_path / "plan.json"
    assert main([*B, "--fraction", "0.93", "--json", str(path)]) == 0
    assert json.loads(path.read_text())["risk"] == ["low"]
    out = capsys.readouterr().out
    assert "105,054" in out
    assert "--mem-fraction-static 0.93 --context-length 103424" in out


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["--want-context", "100000"], 0),
        (["--want-context", "119000"], 1),
        (["--want-context", "100000", "--requests", "3", "--prompt-tokens", "60000"], 1),
        (["--fraction", "0.7"], 1),  # no pool
        (["--measured", "0.95:120079:0.65", "--measured", "0.93:105256:1.09"], 0),
    ],
)
def test_exit_codes(argv, code, capsys):
    assert main([*B, *argv]) == code
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["plan", *BOX], "--cell-bytes"),
        (["plan", "--cell-bytes", "32768"], "--available-gib"),
        (["plan", "--card", "l4", "--cell-bytes", "32768"], "--weights-gib"),
        ([*B, "--fraction", "93"], "fraction"),
        ([*B, "--measured", "0.93"], "--measured takes"),
        ([*B, "--measured", "0.93:5"], "twice"),
        ([*B, "--requests", "0"], "at least 1"),
        ([*B, "--engine-version", "new"], "0.5.17"),
        ([*B, "--cell-bytes", "-5"], "above 0"),
        ([*B, "--model", "/nowhere"], "/nowhere"),
        ([*B, "--json", "/nowhere/x"], "/nowhere/x"),
        (["audit"], "one of"),
        (["audit", "x", "--command", "y"], "one of"),
        (["audit", "ftp://x"], "http"),
        (["audit", "http://key@host"], "credentials"),
        (["audit", "--command", "vllm serve"], "no SGLang server"),
        (["audit", "--command", "sglang serve", "--engine-version", "new"], "0.5.17"),
        (["audit", "--command", "sglang serve", "--policy", "/nowhere"], "/nowhere"),
        (["audit", "--command", "sglang serve", "--backend", "x"], "has: none"),
        (["audit", "--info", "/nowhere"], "/nowhere"),
        (["audit", "--info", str(Path(__file__))], "JSON"),
        (["audit", "--info", str(DATA / "sglang-0.5.17.json")], "names no KV pool"),
        (["audit", "http://127.0.0.1:1"], "did not tell"),
        (["audit", "http://127.0.0.1:1", "--key-env", "KVGATE_ABSENT"], "not set"),
    ],
)
def test_usage(argv, said, capsys):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert "Traceback" not in err
    assert out == ""


def test_a_model_and_a_card(tmp_path, capsys):
    config = {
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "max_position_embeddings": 40960,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    argv = ["plan", "--card", "rtx3090", "--weights-gib", "8", "--model", str(tmp_path)]
    assert main([*argv, "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["chain"]["cell_bytes"] == 147_456
    assert result["chain"]["available_gib"] == pytest.approx(23.2)
    assert max(row["context_tokens"] for row in result["rows"]) == 40_960  # the model's own
    hybrid = config | {"full_attention_interval": 4, "linear_num_value_heads": 32}
    hybrid |= {f"linear_{name}_head_dim": 128 for name in ("key", "value")}
    hybrid |= {"linear_num_key_heads": 16, "linear_conv_kernel_dim": 4}
    (tmp_path / "config.json").write_text(json.dumps(hybrid))
    assert main(argv) == 2
    assert "--state-slots" in capsys.readouterr().err
    assert main([*argv, "--state-slots", "9", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["chain"]["state_gib"] > 0.1
    (tmp_path / "config.json").write_text("[]")
    assert main(argv) == 2


@pytest.mark.parametrize(("version", "chunk"), [("0.5.17", 2048), ("0.5.23", 4096)])
def test_the_chunk_is_picked_as_the_version_picks_it(version, chunk, capsys):
    argv = ["plan", "--card", "rtx3090", "--weights-gib", "8", "--cell-bytes", "32768"]
    assert main([*argv, "--engine-version", version]) == 0
    assert f"--chunked-prefill-size {chunk}" in capsys.readouterr().out
    assert main([*argv, "--engine-version", version, "--chunk", "512"]) == 0
    assert "--chunked-prefill-size 512" in capsys.readouterr().out


def test_audit_of_a_line(capsys):
    assert main(["audit", "--command", GOOD_LINE, "--engine-version", "0.5.17", "--json"]) == 0
    good = json.loads(capsys.readouterr().out)
    assert good["counts"]["error"] == good["counts"]["warning"] == 0
    assert set(good["findings"][0]) == {"severity", "code", "subject", "found", "remedy"}
    assert main(["audit", "--command", GOOD_LINE + " --max-pending-requests 4"]) == 1
    assert "ERROR    --max-pending-requests" in capsys.readouterr().out


def test_a_card_tells_the_headroom(capsys):
    argv = ["audit", "--command", GOOD_LINE.replace("0.91", "0.95"), "--card", "rtx3090"]
    assert main(argv) == 1
    assert "headroom is 0.64 GiB" in capsys.readouterr().out


def test_saved_answers_with_or_without_their_head(tmp_path, capsys):
    saved = json.loads((DATA / "sglang-0.5.17.json").read_text())
    info, models = tmp_path / "server_info.txt", tmp_path / "models.json"
    info.write_text("HTTP/1.1 200 OK\ncontent-type: x\n\n" + json.dumps(saved["server_info"]))
    models.write_text(json.dumps(saved["models"]))
    assert main(["audit", "--info", str(models), str(info)]) == 1
    out = capsys.readouterr().out
    assert "SGLang 0.5.17, from its server" in out
    assert "8,192" in out


def test_the_policy_of_the_box(capsys):
    argv = ["audit", "--command", GOOD_LINE, "--pool-tokens", "67375"]
    argv += ["--policy", "policies/dual-3090.yaml", "--prompt-tokens", "19000", "--requests", "3"]
    assert main(argv) == 2
    assert "gpu0, gpu1" in capsys.readouterr().err
    assert main([*argv, "--backend", "gpu0"]) == 1
    assert "2 run at once" in capsys.readouterr().out


async def test_a_live_server(tmp_path, capsys):
    policy = tmp_path / "policy.yaml"
    async with TwinServer(next(iter(PROFILES.values())), version="0.5.17") as twin:
        policy.write_text(f'backends: [{{url: "{twin.url}", default_output_tokens: 999}}]')
        code = await asyncio.to_thread(
            main, ["audit", twin.url, "--policy", str(policy), "--prompt-tokens", "500", "--json"]
        )
    result = json.loads(capsys.readouterr().out)
    assert code in {0, 1}
    assert (result["source"], result["version"]) == ("server", "0.5.17")
    gate = next(f for f in result["findings"] if f["code"] == "promises_gate")
    assert "a cap of 999" in gate["found"]
