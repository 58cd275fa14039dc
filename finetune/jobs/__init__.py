"""One function a run; everything is put together here and only here.

A name is imported from its module when it is first used: baselines do without a net.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from finetune.machine.packages import lazy_names

if TYPE_CHECKING:
    from finetune.jobs.adapting import adapt
    from finetune.jobs.fine_tuning import fit
    from finetune.jobs.pretraining import make_tokenizer, prepare_corpus, pretrain

__all__ = ["adapt", "fit", "make_tokenizer", "prepare_corpus", "pretrain"]

__getattr__ = lazy_names(__name__, __all__, ("adapting", "fine_tuning", "pretraining"))


def __dir__() -> list[str]:
    return __all__
