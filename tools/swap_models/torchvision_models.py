"""Models of torchvision, and torchvision itself where only its Python part can be loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from checks import Case
from torch import Tensor

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
FEW = {f"rpn_{when}_nms_top_n_{mode}": 20 for when in ("pre", "post") for mode in ("train", "test")}
DETECTION: dict[str, dict[str, Any]] = {
    "fasterrcnn_mobilenet_v3_large_fpn": {"box_score_thresh": 0.0} | FEW,
    "retinanet_resnet50_fpn": {"score_thresh": 0.0, "topk_candidates": 20},
    "fcos_resnet50_fpn": {"score_thresh": 0.0, "topk_candidates": 20},
    "ssdlite320_mobilenet_v3_large": {"score_thresh": 0.0, "topk_candidates": 20},
}


# class: shape of the input, and arguments, where no model of the list is small enough
CLASSES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "MaxVit": ((3, 64, 64), {
        "input_size": (64, 64), "stem_channels": 8, "partition_size": 2, "block_channels": [8, 16, 16, 32],
        "block_layers": [1, 1, 1, 1], "head_dim": 8, "stochastic_depth_prob": 0.1,
    }),
    "VisionTransformer": ((3, 32, 32), {
        "image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32,
    }),
}  # fmt: skip


def load() -> Any:
    """Import torchvision; where its compiled operators do not fit this build of PyTorch, without them."""
    try:
        import torchvision
    except RuntimeError:
        for name in ("nms", "qnms"):  # torchvision describes them, and fails where they are not defined
            torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        import torchvision
    if not torchvision.extension._has_ops():
        torchvision.ops.boxes.nms = _keep_best
        torch._dynamo.config.disable = True  # the Python form of roi_align would be compiled
    return torchvision


def _keep_best(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the boxes, best first, that overlap no better one by more than the threshold."""
    from torchvision.ops import box_iou

    overlaps, kept = box_iou(boxes, boxes) > iou_threshold, []
    for number in scores.argsort(descending=True, stable=True).tolist():
        if not overlaps[number, kept].any():
            kept.append(number)
    return torch.tensor(kept, dtype=torch.long)


def _targets() -> tuple[Any, ...]:
    """Return two images, and a box in each."""
    target = {"boxes": torch.tensor([[8.0, 8.0, 40.0, 48.0]]), "labels": torch.tensor([1])}
    return [torch.rand(3, 64, 64), torch.rand(3, 64, 64)], [target, target]


def cases() -> Iterator[Case]:
    models = load().models
    for name, (shape, options) in IMAGES.items():
        options = {"num_classes": 5, "weights": None} | options
        build = lambda name=name, options=options: models.get_model(name, **options)  # noqa: E731
        yield Case("torchvision", name, build, lambda shape=shape: (torch.randn(2, *shape),))
    for name, (shape, options) in CLASSES.items():
        build = lambda name=name, options=options: getattr(models, name)(num_classes=5, **options)  # noqa: E731
        yield Case("torchvision", name, build, lambda shape=shape: (torch.randn(2, *shape),))
    for name, options in DETECTION.items():
        sizes = {} if name.startswith("ssd") else {"min_size": 64, "max_size": 64}
        options = {"num_classes": 2, "weights": None, "weights_backbone": None} | sizes | options
        build = lambda name=name, options=options: models.get_model(name, **options)  # noqa: E731
        yield Case("torchvision", name, build, _targets)
    images = lambda: (torch.randn(1, 3, 128, 128), torch.randn(1, 3, 128, 128), 2)  # noqa: E731
    yield Case("torchvision", "raft_small", lambda: models.get_model("raft_small", weights=None), images)
