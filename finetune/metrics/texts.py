"""How well texts were written: error rates, BLEU, chrF and ROUGE, computed by torchmetrics.

All is local, nothing is downloaded. Texts are compared word by word as BERT's tokenizers split
them first: in lower case, and each punctuation mark is a word. A tokenizer that has read a target
cannot give back more than that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

Texts = Sequence[str]

_WORDS = re.compile(r"\w+|[^\w\s]")


def words_of(text: str) -> str:
    """A text in lower case with spaces between its words and punctuation marks.

    >>> from finetune.metrics.texts import words_of
    >>> words_of("Don't  panic!")
    "don ' t panic !"
    """
    return " ".join(_WORDS.findall(text.lower()))


def exact_match(written: Texts, right: Texts) -> float:
    """Fraction of texts that have the right words."""
    return sum(map(str.__eq__, written, right)) / len(right)


def word_error_rate(written: Texts, right: Texts) -> float:
    """Words to substitute, insert or delete, over the words of the right texts; may exceed 1."""
    from torchmetrics.functional.text import word_error_rate as rate

    return float(rate(list(written), list(right)))


def character_error_rate(written: Texts, right: Texts) -> float:
    """As `word_error_rate`, of characters."""
    from torchmetrics.functional.text import char_error_rate as rate

    return float(rate(list(written), list(right)))


def bleu(written: Texts, right: Texts) -> float:
    """BLEU of the whole corpus, up to four words at a time (Papineni et al., 2002; Post, 2018)."""
    from torchmetrics.functional.text import sacre_bleu_score

    return float(sacre_bleu_score(list(written), [[text] for text in right]))


def chrf(written: Texts, right: Texts) -> float:
    """chrF: F2 of up to six characters at a time (Popović, 2015)."""
    from torchmetrics.functional.text import chrf_score

    score = chrf_score(list(written), [[text] for text in right], n_word_order=0)
    return float(score if not isinstance(score, tuple) else score[0])


def rouge(written: Texts, right: Texts) -> dict[str, float]:
    """F1 of ROUGE-1, ROUGE-2 and ROUGE-L (Lin, 2004), the mean over texts."""
    from torchmetrics.functional.text.rouge import rouge_score

    keys = ("rouge1", "rouge2", "rougeL")
    scores = rouge_score(list(written), list(right), rouge_keys=keys)
    return {key: float(scores[f"{key}_fmeasure"]) for key in keys}


TEXT_METRICS: dict[str, Callable[[Texts, Texts], float | dict[str, float]]] = {
    "word_error_rate": word_error_rate,
    "character_error_rate": character_error_rate,
    "exact_match": exact_match,
    "bleu": bleu,
    "chrf": chrf,
    "rouge": rouge,
}
"""Name -> what was written and what is right, as `words_of` gives them -> the metric, a fraction;
`rouge` gives three, by name."""


def text_scores(
    written: Texts, right: Texts, metrics: Sequence[str] = tuple(TEXT_METRICS)
) -> dict[str, float]:
    """Score written texts, in the order of the metrics.

    Args:
        written: N texts, at least one.
        right: The right ones, none of them empty.
        metrics: Names of `TEXT_METRICS`.
    """
    pairs = [words_of(text) for text in written], [words_of(text) for text in right]
    scores: dict[str, float] = {}
    for name in metrics:
        score = TEXT_METRICS[name](*pairs)
        scores |= score if isinstance(score, dict) else {name: score}
    return scores
