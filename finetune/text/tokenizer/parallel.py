"""The threads of the `tokenizers` library: on while a corpus is read, off for everything after.

Off afterwards, because a process that has used these threads must not fork (a data worker does)
with them switched on: the library would warn, or the child would wait for threads it has not got.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_SWITCH = "TOKENIZERS_PARALLELISM"


@contextmanager
def tokenizer_threads(workers: int = 0) -> Iterator[None]:
    """Let `tokenizers` use several threads inside the `with` block.

    Args:
        workers: Number of threads, 1 or more; 0 for one a core. The library makes its threads
            once a process, so the first number above 1 stands.
    """
    chosen = os.environ.get(_SWITCH)
    if workers > 1:
        os.environ.setdefault("RAYON_NUM_THREADS", str(workers))
    os.environ[_SWITCH] = chosen or ("false" if workers == 1 else "true")
    try:
        yield
    finally:
        os.environ[_SWITCH] = chosen or "false"
