"""Old names of settings: read from the command line, from YAML and from the folders of old runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from finetune.errors import ConfigError
from finetune.runs.families import families
from finetune.runs.folder import RunFolder
from finetune.runs.opening import check_folder
from finetune.runs.settings import AdaptRun, FitRun, PretrainRun
from finetune.settings import fields as settings
from finetune.settings.renames import NAMES, OTHER_TOOLS
from finetune.training.config import LoaderConfig, RegularizationConfig, TrainerConfig
from finetune.training.unfreezing.policies import UnfreezeConfig
from tasks.__main__ import main
from tasks.run_settings import ClassifyRun

OLD = """\
encoder_from: none
unfreezing:
  unfreeze: gradual
  span: phase
  rewarm_fraction: 0.05
  moments: cleared
aids:
  mixout: 0.5
"""
NEW = FitRun(
    "none",
    unfreezing=UnfreezeConfig(
        "gradual", schedule_scope="phase", thaw_warmup_ratio=0.05, optimizer_state="reset"
    ),
    regularization=RegularizationConfig(mixout=0.5),
)


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    file = tmp_path / "old.yaml"
    file.write_text(OLD)
    return file


def test_old_keys_of_a_file_are_read_with_a_warning_each(old_file: Path) -> None:
    with pytest.warns(FutureWarning) as warned:
        assert settings.read(FitRun, old_file) == NEW
    assert [str(each.message) for each in warned] == [
        "span is now schedule_scope; please rename it",
        "rewarm_fraction is now thaw_warmup_ratio; please rename it",
        "moments is now optimizer_state; please rename it",
        "optimizer_state: cleared is now optimizer_state: reset; please rename it",
        "aids is now regularization; please rename it",
    ]


@pytest.mark.parametrize("old", NAMES)
def test_every_new_name_is_a_setting(old: str) -> None:
    keys = (*_keys(settings.plain(NEW)), *_keys(settings.plain(ClassifyRun("none"))))
    assert f"{NAMES[old]}." in "".join(f"{key}." for key in keys)


def _keys(content: dict[str, object], prefix: str = "") -> list[str]:
    keys = []
    for name, value in content.items():
        keys.append(f"{prefix}{name}")
        if isinstance(value, dict):
            keys += _keys(value, f"{prefix}{name}.")
    return keys


def test_old_flags_are_read_with_a_warning_each(capsys: pytest.CaptureFixture[str]) -> None:
    words = "glue cola --encoder none --print-config --span phase --rewarm-fraction 0.05"
    with pytest.warns(FutureWarning) as warned:
        assert main([*words.split(), "--moments", "kept"]) == 0
    assert [str(each.message) for each in warned] == [
        "--span is now --schedule-scope; please rename it",
        "--rewarm-fraction is now --thaw-warmup-ratio; please rename it",
        "--moments is now --optimizer-state; please rename it",
        "optimizer_state: kept is now optimizer_state: keep; please rename it",
    ]
    shown = capsys.readouterr().out
    assert "schedule_scope: phase" in shown
    assert "thaw_warmup_ratio: 0.05" in shown
    assert "optimizer_state: keep" in shown


def test_each_warning_is_one_line_on_stderr(old_file: Path) -> None:
    words = f"-m tasks glue cola --config {old_file} --print-config --span run --dry-run"
    done = subprocess.run([sys.executable, *words.split()], capture_output=True, text=True)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert lines[0] == "finetune: warning: --span is now --schedule-scope; please rename it"
    assert lines.count("finetune: warning: moments is now optimizer_state; please rename it") == 1
    assert len(lines) == 6


def test_help_shows_the_new_names_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["glue", "cola", "--help-all"]) == 0
    shown = capsys.readouterr().out
    assert "--schedule-scope {run,phase}" in shown
    assert not any(flag in shown for flag in ("--span ", "--moments", "--rewarm-fraction"))


def test_both_names_at_once_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "both.yaml"
    file.write_text("encoder_from: none\nunfreezing: {span: run, schedule_scope: phase}\n")
    message = "both.yaml: span is the old name of schedule_scope, and both are given; remove span"
    with pytest.raises(ConfigError, match=message):
        settings.read(FitRun, file)


def test_a_run_of_an_earlier_version_is_read_without_a_word(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(OLD)
    assert RunFolder(run).read_settings(FitRun) == NEW
    check_folder(RunFolder(run), NEW, resume=True, overwrite=False)  # nothing has changed
    read = RunFolder(run).read_config()
    assert read["unfreezing"]["optimizer_state"] == "reset"
    assert read["regularization"] == {"mixout": 0.5}


# Names of other tools


def test_each_name_of_another_tool_leads_to_a_flag_and_is_none_of_ours() -> None:
    kinds = [PretrainRun, AdaptRun, *(family.settings() for family in families().values())]
    ours = {setting.flag for kind in kinds for setting in settings.settings_of(kind)}
    assert set(OTHER_TOOLS.values()) <= ours | {"--config"}
    assert not {"--" + name.replace("_", "-") for name in OTHER_TOOLS} & ours


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("--lr", "--learning-rate"),
        ("--epochs", "--max-epochs"),
        ("--per-device-train-batch-size", "--batch-size"),
        ("--per_device_train_batch_size", "--batch-size"),
        ("--model_name_or_path", "--encoder"),
        ("--output_dir", "--out"),
        ("--metric-for-best-model", "--monitor"),
    ],
)
def test_who_writes_the_name_of_another_tool_is_told_ours(
    theirs: str, ours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["glue", "sst2", "--encoder", "none", theirs, "1"]) == 2
    told = capsys.readouterr().err
    assert told == f"finetune: glue: unknown option {theirs}; it is {ours} here\n"


def test_key_of_another_tool_in_a_file_leads_to_ours(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("encoder_from: none\nlearning_rate_scheduler: 1\nlr: 0.1\n")
    with pytest.raises(ConfigError, match="unknown key 'learning_rate_scheduler'; (did|choose)"):
        settings.read(FitRun, file)
    file.write_text("encoder_from: none\nlr: 0.1\n")
    with pytest.raises(ConfigError, match="unknown key 'lr'; it is 'optimizer.learning_rate' here"):
        settings.read(FitRun, file)


OLD_STEPS = """
encoder_from: runs/pretrained
loader: {batch_size: 16, num_workers: 2}
trainer: {accumulate_grad_batches: 4, gradient_clip: 2.0}
"""


def test_batches_that_were_accumulated_are_micro_batches_of_one(tmp_path: Path) -> None:
    """A step has as many examples as before, of as many at once; and so has a validation."""
    file = tmp_path / "old.yaml"
    file.write_text(OLD_STEPS)
    with pytest.warns(FutureWarning, match="4 with batch_size 16 is now micro_batches 4 "):
        run = settings.read(FitRun, file)
    assert run.loader == LoaderConfig(64, micro_batches=4, num_workers=2, validation_batches=8)
    assert run.trainer == TrainerConfig(gradient_clip=2.0)


def test_numbers_in_quotes_are_numbers(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text(OLD_STEPS.replace("16", "'16'").replace("batches: 4", "batches: '4'"))
    with pytest.warns(FutureWarning, match="4 with batch_size 16 is now micro_batches 4 "):
        assert settings.read(FitRun, file).loader.batch_size == 64


def test_one_batch_a_step_is_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text(OLD_STEPS.replace("batches: 4", "batches: 1"))
    assert settings.read(FitRun, file).loader == LoaderConfig(16, num_workers=2)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            OLD_STEPS.replace("num_workers", "micro_batches"),
            "both are given; remove accum",
        ),
        (
            OLD_STEPS.replace("batches: 4", "batches: many"),
            "batches: expected 1 or more, got",
        ),
        (
            OLD_STEPS.replace("size: 16", "size: none"),
            "loader.batch_size: expected 1 or more, got none",
        ),
        (
            "trainer: {accumulate_grad_batches: 2}\nloader: 5",
            "loader: expected a section .*, got 5",
        ),
    ],
)
def test_accumulation_that_is_unclear_is_refused(
    content: str, complaint: str, tmp_path: Path
) -> None:
    file = tmp_path / "old.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=complaint):
        settings.read(FitRun, file)


def test_the_flag_of_accumulation_names_the_one_of_now(capsys: pytest.CaptureFixture[str]) -> None:
    words = "glue cola --encoder none --print-config --accumulate-grad-batches 2"
    assert main(words.split()) == 2
    assert "--micro-batches" in capsys.readouterr().err
