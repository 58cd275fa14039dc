from __future__ import annotations

import os
import subprocess
import sys

import pytest

from finetune.text.tokenizer.tokenizer import tokenizer_threads

SWITCH = "TOKENIZERS_PARALLELISM"


def test_threads_are_on_inside_and_off_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    with tokenizer_threads():
        assert os.environ[SWITCH] == "true"
    assert os.environ[SWITCH] == "false"


def test_one_worker_uses_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    with tokenizer_threads(1):
        assert os.environ[SWITCH] == "false"


def test_what_the_user_has_set_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    with tokenizer_threads():
        assert os.environ[SWITCH] == "0"
    assert os.environ[SWITCH] == "0"


def test_number_of_workers_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.delenv("RAYON_NUM_THREADS", raising=False)
    with tokenizer_threads(3):
        assert os.environ["RAYON_NUM_THREADS"] == "3"


FORK_AFTER_TRAINING = """
import os
from finetune.text import TokenizerConfig, train_tokenizer
tokenizer = train_tokenizer(["some text"] * 9, TokenizerConfig(algorithm="bpe", vocab_size=262))
child = os.fork()
ids = tokenizer.encode_ids(["some text", "more"])
if child:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0 if len(ids) == 2 else 1)
"""


def test_process_may_fork_after_training_without_a_warning() -> None:
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    # Python 3.12 warns of any thread at all; here it is about the library of tokenizers.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning"]
    command += ["-c", FORK_AFTER_TRAINING]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_room_is_entered_without_torch() -> None:
    heavy = ("torch", "transformers", "datasets", "tokenizers", "rich")
    code = f"import sys, finetune.text; print([n for n in {heavy!r} if n in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "[]"
