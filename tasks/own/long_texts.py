"""What tasks share whose texts may be read in windows: how the windows' outputs become answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from finetune.task.answers.classes import over_windows
from finetune.task.interface import Outputs, Task
from finetune.text.features.long_texts import CUT, LongConfig

if TYPE_CHECKING:
    from finetune.text.features.pairs import Features


class LongTextTask(Task):
    """A task whose long texts may be cut, or be read in windows."""

    long: LongConfig = CUT
    """How texts longer than a sequence are read."""

    @property
    def head_kind(self) -> str:
        """Kind of the head: what of the windows' outputs is averaged."""
        raise NotImplementedError

    def merged(self, outputs: Outputs, features: Sequence[Features]) -> Outputs:
        """The average of the windows of each example, unless they are read together."""
        return (
            outputs if self.long.pools_windows else over_windows(outputs, features, self.head_kind)
        )
