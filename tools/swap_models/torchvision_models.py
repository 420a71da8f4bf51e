"""Models of torchvision, and torchvision itself where only its Python part can be loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from checks import Case

# name: shape of the input without the batch, and arguments for the model
IMAGES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "alexnet": ((3, 64, 64), {}),
    "convnext_tiny": ((3, 64, 64), {}),
    "densenet121": ((3, 64, 64), {}),
    "efficientnet_b0": ((3, 64, 64), {}),
    "efficientnet_v2_s": ((3, 64, 64), {}),
    "googlenet": ((3, 64, 64), {"init_weights": False, "aux_logits": True}),
    "inception_v3": ((3, 80, 80), {"init_weights": False, "aux_logits": False}),
    "mnasnet0_5": ((3, 64, 64), {}),
    "mobilenet_v2": ((3, 64, 64), {}),
    "mobilenet_v3_small": ((3, 64, 64), {}),
    "mobilenet_v3_large": ((3, 64, 64), {}),
    "regnet_x_400mf": ((3, 64, 64), {}),
    "regnet_y_400mf": ((3, 64, 64), {}),
    "resnet18": ((3, 64, 64), {}),
    "resnet50": ((3, 64, 64), {}),
    "resnext50_32x4d": ((3, 64, 64), {}),
    "shufflenet_v2_x0_5": ((3, 64, 64), {}),
    "squeezenet1_0": ((3, 64, 64), {}),
    "squeezenet1_1": ((3, 64, 64), {}),
    "swin_t": ((3, 64, 64), {}),
    "swin_v2_t": ((3, 64, 64), {}),
    "mc3_18": ((3, 4, 32, 32), {}),
    "r3d_18": ((3, 4, 32, 32), {}),
    "r2plus1d_18": ((3, 4, 32, 32), {}),
    "swin3d_t": ((3, 4, 32, 32), {}),
    "fcn_resnet50": ((3, 64, 64), {"weights_backbone": None, "aux_loss": True}),
    "deeplabv3_mobilenet_v3_large": ((3, 64, 64), {"weights_backbone": None, "aux_loss": True}),
    "lraspp_mobilenet_v3_large": ((3, 64, 64), {"weights_backbone": None}),
}


def load() -> Any:
    """Import torchvision; where its compiled operators do not fit this build of PyTorch, without them."""
    try:
        import torchvision
    except RuntimeError:
        for name in ("nms", "qnms"):  # torchvision describes them, and fails where they are not defined
            torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        import torchvision
    return torchvision


def cases() -> Iterator[Case]:
    models = load().models
    for name, (shape, options) in IMAGES.items():
        options = {"num_classes": 5, "weights": None} | options
        build = lambda name=name, options=options: models.get_model(name, **options)  # noqa: E731
        yield Case("torchvision", name, build, lambda shape=shape: (torch.randn(2, *shape),))
    images = lambda: (torch.randn(1, 3, 128, 128), torch.randn(1, 3, 128, 128), 2)  # noqa: E731
    yield Case("torchvision", "raft_small", lambda: models.get_model("raft_small", weights=None), images)
