"""Switch off the fused path of nn.TransformerEncoder, which calls no hulls."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hullo._compat import is_left_aligned
from hullo.modules import Hull


class SlowEncoder(nn.TransformerEncoder):
    """Encoder without the nested tensors of the fast path, which hulls do not support.

    For padding it returns what the fast path returns: zeros, or the final norm of zeros.
    """

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        output = super().forward(src, mask, src_key_padding_mask, is_causal)
        if src_key_padding_mask is None or mask is not None or not self._was_fast(src):
            return output
        padding = F._canonical_mask(src_key_padding_mask, "src_key_padding_mask", None, "", src.dtype)
        kept = padding.logical_not()  # type: ignore[union-attr]
        if self.mask_check and not is_left_aligned(src, kept):
            return output
        zeros = output.new_zeros(output.shape[-1:])
        return torch.where(kept.unsqueeze(-1), output, zeros if self.norm is None else self.norm(zeros))

    def _was_fast(self, src: Tensor) -> bool:
        """Return whether nn.TransformerEncoder would take its fast path, apart from conditions on the mask."""
        if self.layers[0].training or src.dim() != 3 or src.is_nested or torch.compiler.is_compiling():
            return False
        tensors = (src, *self.layers[0].parameters())
        return (
            torch.backends.mha.get_fastpath_enabled()
            and not torch.is_autocast_enabled()
            and not torch.overrides.has_torch_function(tensors)
            and not (torch.is_grad_enabled() and any(item.requires_grad for item in tensors))
        )


def slow_encoders(model: nn.Module) -> None:
    """Disable the fast path of the encoders whose layers have hulls."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and any(isinstance(part, Hull) for part in module.modules()):
            was_fast = vars(module).get("use_nested_tensor", False)
            module.use_nested_tensor = False
            if was_fast and type(module) is nn.TransformerEncoder:
                module.__class__ = SlowEncoder


def fast_encoders(model: nn.Module) -> None:
    """Enable the fast path again in a folded model, for encoders all of whose layers support it."""
    for module in model.modules():
        if type(module) is SlowEncoder and all(getattr(item, "activation_relu_or_gelu", 0) for item in module.layers):
            module.__class__ = nn.TransformerEncoder  # type: ignore[assignment]
            module.use_nested_tensor = True
