"""The twin answers every kind of request as the genuine server did: `answers.jsonl`."""

import aiohttp
import pytest

from gateway.twin.profiles import TINY_CPU
from gateway.twin.server import TwinServer
from tests.twin.kinds import ask, known


async def test_every_kind_of_request_is_answered_alike():
    # The genuine server has the model "tiny".
    wrong = []
    async with TwinServer(TINY_CPU, speed=40.0) as server, aiohttp.ClientSession() as http:
        for kind, answer in known():
            got = await ask(http, server.url, kind)
            if got != answer:
                wrong.append(f"{kind.name}\n    real {answer}\n    twin {got}")
    assert not wrong, f"{len(wrong)} differ:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": [-1]}),
        ("/v1/completions", {"prompt": [999_999_999]}),
        ("/generate", {"text": "hi", "sampling_params": {"max_new_tokens": 1.5}}),
    ],
)
async def test_what_kills_the_genuine_server_kills_the_twin(path, body):
    """Seen on 0.5.17: each of these ended the scheduler, and with it the server."""
    async with TwinServer(TINY_CPU, speed=40.0) as server, aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientError):
            await http.post(server.url + path, json=body)
        assert server.crashes == 1
