"""Models of diffusers, each with the tiny configuration of diffusers.txt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from checks import Case
from table import evaluate, read_table
from torch import randn as R

TIME = torch.tensor([3, 7])
BLOCKS = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
UNET = BLOCKS | {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D",
    "CrossAttnUpBlock2D"),
    "cross_attention_dim": 8, "attention_head_dim": 4,
}  # fmt: skip
VAE = BLOCKS | {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
DIT = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "in_channels": 4, "sample_size": 8}
JOINT = DIT | {"joint_attention_dim": 8, "caption_projection_dim": 16, "pos_embed_max_size": 8, "out_channels": 4}
FLUX = {"in_channels": 4, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2,
        "joint_attention_dim": 8, "axes_dims_rope": (4, 4, 8)}  # fmt: skip
CONTROL = {name: value for name, value in UNET.items() if name != "up_block_types"}


def _flux(**more: Any) -> dict[str, Any]:
    return {"hidden_states": R(2, 4, 4), "encoder_hidden_states": R(2, 3, 8), "timestep": torch.rand(2),
            "img_ids": torch.zeros(4, 3), "txt_ids": torch.zeros(3, 3), **more}  # fmt: skip


def cases() -> Iterator[Case]:
    import diffusers

    diffusers.utils.logging.set_verbosity_error()
    for name, config, inputs in read_table("diffusers.txt"):
        kind = getattr(diffusers, name)  # imported now, once
        build = lambda kind=kind, config=config: kind(**evaluate(config, globals()))  # noqa: E731
        yield Case("diffusers", name, build, lambda inputs=inputs: evaluate(inputs, globals()))
