"""The encoder alone, in a training loop of plain torch.

    python examples/own_loop.py ENCODER TRAIN

ENCODER is a run, a checkpoint, a Hugging Face folder or a name on its hub; TRAIN is a CSV with a
`text` and a whole number as `label`. Nothing of Lightning or of `finetune.jobs` is used.
"""

from __future__ import annotations

import csv
import sys

import torch

import finetune
from finetune.text import collate, encode_pairs


def train(encoder_from: str, file: str, *, epochs: int = 3, rate: float = 1e-3) -> list[float]:
    """Train encoder and a linear layer; return the mean loss of each epoch, nats."""
    with open(file, encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    texts, labels = [row["text"] for row in rows], torch.tensor([int(r["label"]) for r in rows])
    checkpoint = finetune.find_checkpoint(encoder_from)
    encoder, tokenizer = checkpoint.encoder().train(), checkpoint.tokenizer()
    output = torch.nn.Linear(encoder.config.hidden_size, int(labels.max()) + 1)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *output.parameters()], lr=rate)
    features = encode_pairs(tokenizer, texts, None, max_length=64)
    losses = []
    for _ in range(epochs):
        total = 0.0
        for numbers in torch.randperm(len(rows)).split(16):
            batch = collate(features, numbers.tolist(), tokenizer.pad_token_id)
            logits = output(encoder(batch).last_hidden_state[:, 0])  # [CLS]
            loss = torch.nn.functional.cross_entropy(logits, labels[numbers])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(numbers)
        losses.append(total / len(rows))
    return losses


if __name__ == "__main__":
    print(*(f"{loss:.4f}" for loss in train(*sys.argv[1:3])))
