"""Features on disk come back as they were, and a damaged file as none."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from finetune.text.features.files import load_features, save_features
from finetune.text.features.pairs import Features

CLASSES = [Features([2, 7, 3], [0, 0, 1], 1, trimmed=4), Features([2, 3], [0, 0], 0)]
NUMBERS = [Features([2, 7, 3], [0, 0, 1], 1.0), Features([2, 3], [0, 0], 2.5)]
SEVERAL = [Features([2, 7, 3], [0, 0, 1], [1.0, 0.0]), Features([2, 3], [0, 0], [0.0, 0.0])]
UNLABELLED = [Features([2, 7, 3], [0, 0, 1])]
WINDOWS = [
    Features(
        [2, 9, 3, 7, 8, 3], [0, 0, 0, 1, 1, 1], (3, 4), 0, 0, (3, 5), np.int32([[0, 2], [3, 9]])
    ),
    Features([2, 9, 3, 8, 3], [0, 0, 0, 1, 1], (0, 0), 2, 0, (3, 4), np.int32([[3, 9]])),
    Features([2, 9, 3, 3], [0, 0, 0, 1], (-100, -100), 0, 1, (3, 3), np.zeros((0, 2), np.int32)),
]
TARGETS = [
    Features([2, 7, 3], [0, 0, 0], target=[2, 8, 9, 3]),
    Features([2, 3], [0, 0], target=[2, 3]),
]
TRAINED = [Features([2, 9, 3, 7, 3], [0, 0, 0, 1, 1], (3, 3), 0, 5, (3, 4))]


def plain(feature: Features) -> list[object]:
    offsets = None if feature.offsets is None else feature.offsets.tolist()
    ids, types = map(list, (feature.input_ids, feature.token_type_ids))
    values = [ids, types, feature.label, feature.trimmed]
    target = None if feature.target is None else list(feature.target)
    return [*values, feature.example, feature.context, offsets, target]


@pytest.mark.parametrize(
    "features", [CLASSES, NUMBERS, SEVERAL, UNLABELLED, WINDOWS, TARGETS, TRAINED]
)
def test_features_come_back_as_they_were(features: list[Features], tmp_path: Path) -> None:
    path = tmp_path / "kept" / "features.npz"
    save_features(features, path)
    kept = load_features(path)
    assert kept is not None
    assert [plain(feature) for feature in kept] == [plain(feature) for feature in features]
    assert [type(feature.label) for feature in kept] == [type(f.label) for f in features]
    assert [file.name for file in path.parent.iterdir()] == ["features.npz"]


def test_a_file_that_is_not_there_or_damaged_gives_none(tmp_path: Path) -> None:
    path = tmp_path / "features.npz"
    assert load_features(path) is None
    save_features(WINDOWS, path)
    content = path.read_bytes()
    for damaged in (b"", content[: len(content) // 2], b"\0" * len(content)):
        path.write_bytes(damaged)
        with pytest.warns(UserWarning, match="damaged; computing it again"):
            assert load_features(path) is None


def test_no_flipped_byte_of_a_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "features.npz"
    save_features(WINDOWS, path)
    content = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place in range(0, len(content), 7):
            path.write_bytes(
                content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]
            )
            kept = load_features(path)
            assert kept is None or [plain(one) for one in kept] == [plain(one) for one in WINDOWS]
