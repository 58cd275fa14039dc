"""A process that has imported everything and forks once a command: half a second in place of six.

It reads a request a line of stdin (JSON, see `harness.Faults`) and answers each with a line. The
child arms the preloaded library, runs the command line with its streams in files, and ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import io
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        if "imports" in request:
            answer = _imported(request["imports"])
        elif "warm_up" in request:
            answer = _warmed_up(request["warm_up"])
        else:
            answer = _ran(request)
        print(json.dumps(answer), file=replies, flush=True)


def _imported(names: list[str]) -> int:
    """Import what a command was seen to import, so that no child has to."""
    for name in names:
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that the children's collections leave its pages shared
    return len(names)


def _warmed_up(words: list[str]) -> int:
    from tasks.__main__ import main as command

    with contextlib.redirect_stdout(io.StringIO()):
        return command([*words, "--print-config"])


def _ran(request: dict[str, Any]) -> dict[str, Any]:
    child = os.fork()
    if child == 0:
        _child(request)
    return {"status": _waited(child, request["seconds"])}


def _waited(child: int, seconds: float) -> int | None:
    """The child's exit status, -N for signal N; None if it hung and was killed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGABRT)  # faulthandler shows where it hung
    os.waitpid(child, 0)
    return None


def _child(request: dict[str, Any]) -> None:
    status = 71
    try:
        os.setsid()
        for number, path in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(path, flags, 0o644), number)
        sys.stdout, sys.stderr = (open(n, "w", buffering=1, closefd=False) for n in (1, 2))
        faulthandler.enable()
        os.environ |= request["environment"]
        os.chdir(request["cwd"])
        _arm(request)
        if request["bytes"]:
            has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (has + request["bytes"],) * 2)
        from finetune.jobs import session
        from tasks.__main__ import main as command

        session.matmul_ceiling = lambda *_: 1.0  # half a second that changes no file
        before = set(sys.modules)
        if "PROFILE" in os.environ:
            import cProfile

            p = cProfile.Profile()
            status = p.runcall(command, request["words"])
            p.dump_stats("/tmp/prof")
        else:
            status = command(request["words"])
        if request["modules"]:
            Path(request["modules"]).write_text(
                "\n".join(name for name in list(sys.modules) if name not in before)
            )
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _arm(request: dict[str, Any]) -> None:
    trace = -1
    if request["trace"]:
        trace = os.open(request["trace"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    ctypes.CDLL(None).armed(
        request["root"].encode(),
        request["point"],
        request["signal"],
        request["torn"],
        request["error"],
        trace,
    )


if __name__ == "__main__":
    main()
