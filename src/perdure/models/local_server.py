"""The process of a local model: the llama.cpp server on a loopback port. A crash in its native code ends it alone.

It reads its order, a line of JSON, from standard input, says its address in a line on standard output and serves until
standard input ends or its parent is gone. It imports nothing of Perdure, so it is up as soon as its weights are.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import sys
import threading
import time
from typing import Any

LOOK_SECONDS = 1.0
LOG_LOOKS = 20
LOG_LOOK_SECONDS = 0.05
PROMPT_CACHE_MIB = 512


def main() -> None:
    order = json.loads(sys.stdin.readline())
    # Loading takes a while; the parent may go away meanwhile.
    threading.Thread(target=_watch, args=(order["parent"],), daemon=True).start()
    try:
        server = _serve(order)
    except ImportError as error:
        sys.exit(str(error))
    except RuntimeError as error:
        # Why weights could not be loaded is logged, line by line.
        _let_log()
        sys.exit(str(error))
    print(json.dumps({"address": server.listening_address}), flush=True)
    threading.Event().wait()


def _watch(parent: int) -> None:
    """Ends the process with its parent; the pipe alone would not do, if the parent has forked and the fork lives."""
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin], [], [], LOOK_SECONDS)
        if readable and not os.read(sys.stdin.fileno(), 1024):
            break
    os._exit(0)


def _let_log() -> None:
    """Waits until the log has grown and grows no more: a thread writes it, which the end of the process cuts off."""
    size = 0
    for _ in range(LOG_LOOKS):
        before, size = size, os.fstat(sys.stderr.fileno()).st_size
        if 0 < before == size:
            break
        time.sleep(LOG_LOOK_SECONDS)


def _serve(order: dict[str, Any]) -> Any:
    # It has no types.
    llama: Any = importlib.import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = order["weights"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    # Other users of this machine, and web pages in its browsers, have no key.
    params.api_keys = [order["key"]]
    params.cors_origins = ""
    params.ui = False
    params.n_ctx = order["window"]
    # One answer at a time: several would share the window, and say other things than each says alone.
    params.n_parallel = 1
    params.cache_ram_mib = PROMPT_CACHE_MIB
    # Small models lose themselves in endless repetitions where the dice are hot.
    params.sampling.temp = 0.2
    params.sampling.top_p = 0.9
    # Errors only.
    params.verbosity = 1
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = order["threads"]
        # Waiting by spinning makes a busy machine ten times slower.
        cpu.poll = 0
    return llama.Server(params)


if __name__ == "__main__":
    main()
