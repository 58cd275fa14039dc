"""What a run made and started from, as artifacts that join pretraining, adapting and fine-tuning.

An encoder is known by a hash of its weights, a tokenizer by its fingerprint: a run that starts from
what another one made names the same artifact, wherever the folders lie. The weights themselves are
handed over only on request.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from finetune.checkpoints.folder import WEIGHTS, Checkpoint, load_checkpoint
from finetune.checkpoints.hub import find_checkpoint
from finetune.files.checksums import file_digest
from finetune.runs.folder import RunFolder
from finetune.runs.results import Results
from finetune.runs.settings import AdaptRun, FitRun, PretrainRun
from finetune.tracking import Artifact, plain_name

_DIGITS = 12  # of a hash, in a name


def artifacts_of(
    run: PretrainRun | AdaptRun | FitRun, folder: RunFolder, results: Results
) -> list[Artifact]:
    """The artifacts of a run that has ended.

    Args:
        run: Its settings.
        folder: RUN, with results, predictions and the best checkpoint.
        results: What results.json holds.

    Returns:
        Used: encoder and tokenizer that it started from. Made: the encoder; of a language model
        the statistics of its corpus, and the tokenizer that was trained with it; of a fine-tuning
        run the predictions and the submission; the checkpoint where that is wanted.
    """
    best = load_checkpoint(folder.path)
    start = _start(run)
    artifacts = [] if start is None else [_encoder(start, used=True)]
    own_tokenizer = start is None and getattr(run, "tokenizer", None) is None
    artifacts += [_tokenizer(best, used=not own_tokenizer), _encoder(best, used=False)]
    if run.tracking.checkpoint_artifact:
        artifacts.append(_checkpoint(best))
    return [*artifacts, *_outputs(run, folder, results)]


def _start(run: PretrainRun | AdaptRun | FitRun) -> Checkpoint | None:
    if isinstance(run, PretrainRun) or run.encoder_from == "none":
        return None
    return find_checkpoint(run.encoder_from, run.cache_dir)


def _encoder(checkpoint: Checkpoint, *, used: bool) -> Artifact:
    digest = file_digest(checkpoint.folder / WEIGHTS)
    about = {"weights_sha256": digest, "encoder": checkpoint.encoder_config.to_dict()}
    facts: dict[str, Any] = {"folder": str(checkpoint.folder), "head": checkpoint.head.get("kind")}
    return Artifact(
        f"encoder-{digest[:_DIGITS]}",
        "encoder",
        texts={"encoder.json": _json(about)},
        facts=facts | {"source": dict(checkpoint.source)},
        used=used,
    )


def _tokenizer(checkpoint: Checkpoint, *, used: bool) -> Artifact:
    tokenizer = checkpoint.tokenizer()
    return Artifact(
        f"tokenizer-{tokenizer.fingerprint[:_DIGITS]}",
        "tokenizer",
        files={path.name: path for path in _tokenizer_files(checkpoint.folder)},
        facts={"tokens": tokenizer.vocab_size},
        used=used,
    )


def _tokenizer_files(folder: Path) -> Iterator[Path]:
    names = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
    return (folder / name for name in names if (folder / name).is_file())


def _checkpoint(best: Checkpoint) -> Artifact:
    files = {path.name: path for path in sorted(best.folder.iterdir()) if path.is_file()}
    return Artifact(f"checkpoint-{file_digest(files[WEIGHTS])[:_DIGITS]}", "model", files=files)


def _outputs(
    run: PretrainRun | AdaptRun | FitRun, folder: RunFolder, results: Results
) -> Iterator[Artifact]:
    if not isinstance(run, FitRun):
        text = _json(results["data"])
        name = f"corpus-{hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"
        yield Artifact(name, "corpus", texts={"statistics.json": text}, facts=results["data"])
        return
    place = folder.path.absolute()
    name = plain_name(f"{place.parent.name}-{place.name}")
    for kind, files in folder.outputs().items():
        if files:
            yield Artifact(f"{kind}-{name}", kind, files=files, facts={"task": results["task"]})


def _json(content: Any) -> str:
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
