"""The memory that this process can have, and an early refusal of what cannot fit.

Only what certainly cannot fit is refused: the limit is all memory of the machine with its swap, or
a container's limit, whether it is free or not.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from finetune.errors import ConfigError

GIB = 2**30
FLOAT = 4
"""Bytes of a float32."""
TRAINED = 4 * FLOAT
"""Bytes of a trained parameter: itself, its gradient and Adam's two moments."""
_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 2**60
_GROWING_SWAP = 4
"""On other systems than Linux swap grows on demand, and memory is compressed: the largest size that
is assumed, in multiples of the physical memory."""


def machine_bytes() -> int | None:
    """The most memory that this process could ever have, in bytes; None if it is not known."""
    return min(_limits(), default=None)


def check_fits(
    needed: int,
    what: str,
    hint: str = "",
    *,
    most: int | None = None,
    where: str = "this machine",
) -> None:
    """Refuse what needs more memory than there is.

    Args:
        needed: A lower bound in bytes.
        what: What needs the memory, for the message.
        hint: What to lower, for the message.
        most: The limit in bytes; None for `machine_bytes`.
        where: What has the limit, for the message.

    Raises:
        ConfigError: The limit is lower.
    """
    most = machine_bytes() if most is None else most
    if most is not None and needed > most:
        raise ConfigError(
            f"{what} needs about {in_gib(needed)}; {where} has {in_gib(most)}"
            f"{'; ' * bool(hint)}{hint}"
        )


def in_gib(size: int) -> str:
    """A number of bytes in GiB, with at least two digits: `1,600 GiB`, `0.25 GiB`."""
    gib = size / GIB
    return f"{gib:,.0f} GiB" if gib >= 10 else f"{gib:.2g} GiB"


def _limits() -> Iterator[int]:
    """Each limit in bytes: physical memory, the container's limit and that of this process."""
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        physical = 0
    if physical > 0:
        on_linux = sys.platform == "linux"
        yield physical + _swap() if on_linux else physical * _GROWING_SWAP
    for limit in (_CGROUPS / "memory.max", _CGROUPS / "memory" / "memory.limit_in_bytes"):
        allowed = _number_in(limit)
        if allowed is not None and 0 < allowed < _UNLIMITED:
            yield allowed + _swap()
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)  # `ulimit -v`
    if soft != resource.RLIM_INFINITY:
        yield soft


def _swap() -> int:
    """Bytes of swap on Linux."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return 0
    kib = [line.split()[1] for line in lines if line.startswith("SwapTotal:")]
    return int(kib[0]) * 1024 if kib and kib[0].isdecimal() else 0


def _number_in(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isdecimal() else None  # `max` means no limit
