"""Muon for the matrices of the blocks, AdamW for everything else, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


class MuonWithAdamW(torch.optim.Optimizer):
    """Torch's Muon (Jordan et al., 2024) and AdamW with one list of groups and one state.

    An orthogonal update is scaled to the size of AdamW's (Liu et al., 2025, section 2.2), so that
    both follow the same learning rate, schedule and weight decay.
    """

    def __init__(
        self, groups: list[dict[str, Any]], adamw: torch.optim.AdamW, momentum: float
    ) -> None:
        """Put the two together.

        Args:
            groups: All groups, made by `parameter_groups`.
            adamw: Made of those that Muon does not move.
            momentum: Decay of Muon's running average of gradients.
        """
        matrices = [group for group in groups if not _is_adamws(group)]
        self._adamw = adamw
        self._muon: torch.optim.Optimizer = torch.optim.Muon(
            matrices, momentum=momentum, adjust_lr_fn="match_rms_adamw"
        )
        super().__init__(groups, {})  # the same dicts, which now have the settings of their kind
        self._share()

    def _share(self) -> None:
        """Let the two work on the groups and the state of this optimizer."""
        self._muon.param_groups = [g for g in self.param_groups if not _is_adamws(g)]
        self._adamw.param_groups = [g for g in self.param_groups if _is_adamws(g)]
        self._muon.state = self._adamw.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put back the moments of both, which makes new groups and a new state."""
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move all weights once.

        Args:
            closure: Computes the loss and the gradients.

        Returns:
            What the closure gives.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._adamw.step()
        self._muon.step()
        return loss


def _is_adamws(group: Mapping[str, Any]) -> bool:
    """Whether AdamW has put its settings into a group."""
    return "betas" in group
