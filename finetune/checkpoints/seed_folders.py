"""Where the seeds of a run lie: in folders below it, `RUN/seed-1`, `RUN/seed-2` and so on."""

from __future__ import annotations

from pathlib import Path


def seed_folders(run: Path) -> list[Path]:
    """The folders of the seeds of a run, by number; none where it holds one seed."""
    found = (place for place in run.glob("seed-*") if place.is_dir())
    return sorted(found, key=lambda place: (len(place.name), place.name))
