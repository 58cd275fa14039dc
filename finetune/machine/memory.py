"""How much memory this process can have, and a refusal, before it is taken, of what cannot fit.

Only what certainly cannot fit is refused: the bound is all the machine's memory with its swap, or a
container's limit, free or not.
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
"""Bytes of a trained weight: itself, its gradient and Adam's two moments."""
_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 2**60
_GROWING_SWAP = 4
"""Elsewhere than on Linux swap grows with need, and memory is compressed: how much it may become,
in multiples of the memory that is built in."""


def machine_bytes() -> int | None:
    """The most memory that this process could ever have, in bytes; None where nothing tells."""
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
        needed: Bytes, at the least.
        what: What needs them, for the message.
        hint: What to lower, for the message.
        most: Bytes that there are; None for `machine_bytes`.
        where: What has them, for the message.

    Raises:
        ConfigError: There is less.
    """
    most = machine_bytes() if most is None else most
    if most is not None and needed > most:
        raise ConfigError(
            f"{what} needs about {in_gib(needed)}; {where} has {in_gib(most)}"
            f"{'; ' * bool(hint)}{hint}"
        )


def in_gib(size: int) -> str:
    """A number of bytes in GiB, with two digits at least: `1,600 GiB`, `0.25 GiB`."""
    gib = size / GIB
    return f"{gib:,.0f} GiB" if gib >= 10 else f"{gib:.2g} GiB"


def _limits() -> Iterator[int]:
    """Each bound in bytes: what is built in, what a container and this process are allowed."""
    try:
        built_in = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        built_in = 0
    if built_in > 0:
        on_linux = sys.platform == "linux"
        yield built_in + _swap() if on_linux else built_in * _GROWING_SWAP
    for limit in (_CGROUPS / "memory.max", _CGROUPS / "memory" / "memory.limit_in_bytes"):
        allowed = _number_in(limit)
        if allowed is not None and 0 < allowed < _UNLIMITED:
            yield allowed + _swap()
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
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
