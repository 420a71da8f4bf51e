"""Models of other packages, at most three of each, in small configurations: other.txt, and functions for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from checks import Case
from table import evaluate, make, read_table
from torch import Tensor, nn
from torch import randn as some

TABLE = lambda: (torch.randint(0, 4, (5, 2)), some(5, 3))  # noqa: E731  (of categories and of numbers)


def _graph(features: int = 4) -> tuple[Any, ...]:
    """Return the nodes of a graph, a ring with chords, and its edges."""
    nodes = torch.arange(6)
    edges = torch.stack([torch.cat([nodes, nodes]), torch.cat([(nodes + 1) % 6, (nodes + 2) % 6])])
    return some(6, features), torch.cat([edges, edges.flip(0)], 1)


_NNUNET = {
    "input_channels": 3, "n_stages": 3, "features_per_stage": (4, 8, 8), "conv_op": nn.Conv2d, "kernel_sizes": 3,
    "strides": (1, 2, 2), "num_classes": 2, "n_conv_per_stage_decoder": 1, "norm_op": nn.InstanceNorm2d,
}  # fmt: skip


def _windows() -> dict[str, Tensor | None]:
    """Return a batch as the models of neuralforecast take it."""
    return {"insample_y": some(2, 12, 1), "insample_mask": torch.ones(2, 12, 1)} | dict.fromkeys(
        ("futr_exog", "hist_exog", "stat_exog")
    )


def _efficientnet() -> nn.Module:
    from efficientnet_pytorch import EfficientNet

    return EfficientNet.from_name("efficientnet-b0", num_classes=3, drop_connect_rate=0.0)


def _widedeep(name: str, **options: Any) -> nn.Module:
    from pytorch_widedeep import models

    columns = {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4}
    width = (lambda name: (name, 4, 8)) if name == "TabMlp" else (lambda name: (name, 4))
    return getattr(models, name)(
        column_idx=columns, cat_embed_input=[width("a"), width("b")], continuous_cols=["c", "d", "e"], **options
    )


def _policy(name: str) -> nn.Module:
    import numpy as np
    from gymnasium.spaces import Box, Discrete
    from stable_baselines3.common import policies

    images = Box(0, 255, (3, 36, 36), np.uint8)
    seen = images if name == "ActorCriticCnnPolicy" else Box(-1.0, 1.0, (6,))
    return getattr(policies, name)(seen, Discrete(3), lr_schedule=lambda _: 1e-3)


def _x_transformer(**options: Any) -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=8, depth=2, heads=2, **{"attn_dim_head": 4} | options)
    return TransformerWrapper(num_tokens=20, max_seq_len=16, attn_layers=layers)


def _e3nn_gate() -> nn.Module:
    from e3nn import nn as e3
    from e3nn import o3

    gate = e3.Gate("2x0e", [torch.tanh], "1x0e", [torch.relu], "1x1o")
    return nn.Sequential(o3.Linear("3x0e+1x1o", gate.irreps_in), gate)


def _e3nn_network() -> nn.Module:
    from e3nn.nn import FullyConnectedNet

    return FullyConnectedNet([3, 8, 8, 2], torch.nn.functional.silu)


class Likelihood(nn.Module):
    """A flow that returns the logarithm of a likelihood."""

    def __init__(self, flow: nn.Module) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, x: Tensor) -> Tensor:
        return self.flow.log_prob(x)


def _normflows(spline: bool = False) -> nn.Module:
    import normflows

    flows: list[nn.Module] = []
    for _ in range(2):
        if spline:
            flows += [normflows.flows.AutoregressiveRationalQuadraticSpline(4, 1, 8)]
        else:
            flows += [normflows.flows.AffineCouplingBlock(normflows.nets.MLP([2, 8, 4])), normflows.flows.Permute(4)]
    return Likelihood(normflows.NormalizingFlow(normflows.distributions.DiagGaussian(4, trainable=False), flows))


def _nflows() -> nn.Module:
    from nflows import distributions, flows, transforms

    steps = [transforms.MaskedAffineAutoregressiveTransform(4, 8), transforms.ReversePermutation(4)]
    return Likelihood(flows.Flow(transforms.CompositeTransform(steps), distributions.StandardNormal([4])))


def _zuko(name: str, **options: Any) -> nn.Module:
    import zuko

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flow = getattr(zuko.flows, name)(3, context=2, transforms=2, hidden_features=(8, 8), **options)

        def forward(self, x: Tensor, context: Tensor) -> Tensor:
            return self.flow(context).log_prob(x)

    return Net()


class Field(nn.Module):
    """A vector field, and its diffusion."""

    noise_type, sde_type = "diagonal", "ito"

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.spread = nn.Linear(3, 8), nn.Linear(8, 3), nn.Linear(3, 3)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.other(torch.tanh(self.one(y)))

    f = forward

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.elu(self.spread(y)) + 1.1


class Solver(nn.Module):
    def __init__(self, solve: Callable[..., Any], **options: Any) -> None:
        super().__init__()
        self.field, self.solve, self.options = Field(), solve, options

    def forward(self, y: Tensor) -> Tensor:
        return self.solve(self.field, y, torch.linspace(0, 0.5, 3).to(y), **self.options)


def _ode(adjoint: bool = False) -> nn.Module:
    import torchdiffeq

    return Solver(torchdiffeq.odeint_adjoint if adjoint else torchdiffeq.odeint, method="rk4")


def _sde() -> nn.Module:
    import torchsde

    return Solver(torchsde.sdeint, dt=0.1, method="euler")


def _diffusion() -> nn.Module:
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    unet = Unet(dim=8, dim_mults=(1, 2), attn_dim_head=4, flash_attn=False)
    return GaussianDiffusion(unet, image_size=32, timesteps=10)


def _yolo(cfg: str) -> nn.Module:
    from ultralytics.nn import tasks

    kind = tasks.SegmentationModel if "seg" in cfg else tasks.DetectionModel
    return kind(cfg, nc=2, verbose=False)


def _deep_kernel() -> nn.Module:
    import gpytorch

    class Net(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(some(6, 3), some(6), gpytorch.likelihoods.GaussianLikelihood())
            self.features = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
            self.mean, self.kernel = gpytorch.means.ConstantMean(), gpytorch.kernels.RBFKernel()

        def forward(self, x: Tensor) -> Any:
            x = self.features(x)
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    class Covariance(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.process = Net()

        def forward(self, x: Tensor) -> Tensor:
            return self.process.forward(x).covariance_matrix

    return Covariance()


def _forecaster(name: str, **options: Any) -> nn.Module:
    from neuralforecast import models

    return getattr(models, name)(h=4, input_size=12, **options)


def _open_clip() -> nn.Module:
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    vision = CLIPVisionCfg(layers=1, width=64, image_size=32, patch_size=8)
    return CLIP(8, vision, CLIPTextCfg(context_length=16, vocab_size=20, width=16, heads=2, layers=1))


def _mamba() -> nn.Module:
    from mambapy.mamba import Mamba, MambaConfig

    return Mamba(MambaConfig(d_model=8, n_layers=2, d_state=4, use_cuda=False))


def _quantizer() -> nn.Module:
    from vector_quantize_pytorch import VectorQuantize

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Conv2d(1, 8, 3, 1, 1), nn.GELU(), nn.Conv2d(8, 8, 3, 1, 1))
            self.codes = VectorQuantize(
                dim=8, codebook_size=16, accept_image_fmap=True, learnable_codebook=True, ema_update=False
            )
            self.decoder = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.GELU(), nn.Conv2d(8, 1, 3, 1, 1), nn.Tanh())

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            codes, _, commitment = self.codes(self.encoder(x))
            return self.decoder(codes), commitment

    return Net()


def _snac() -> nn.Module:
    from snac import SNAC

    return SNAC(encoder_dim=4, encoder_rates=[2, 2], decoder_dim=16, decoder_rates=[2, 2], attn_window_size=None,
                codebook_size=16, vq_strides=[2, 1])  # fmt: skip


def _deepxde() -> nn.Module:
    import os

    os.environ["DDE_BACKEND"] = "pytorch"
    import deepxde

    return deepxde.nn.PFNN([2, [8, 8], [8, 8], 2], "tanh", "Glorot normal")


def _sam_encoder() -> nn.Module:
    from segment_anything.modeling import ImageEncoderViT

    return ImageEncoderViT(img_size=32, patch_size=8, embed_dim=8, depth=2, num_heads=2, out_chans=8, use_rel_pos=True,
                           window_size=2)  # fmt: skip


def _whisper() -> nn.Module:
    from whisper.model import ModelDimensions, Whisper

    sizes = {"n_mels": 8, "n_audio_ctx": 10, "n_audio_state": 16, "n_audio_head": 2, "n_audio_layer": 1, "n_vocab": 20,
             "n_text_ctx": 16, "n_text_state": 16, "n_text_head": 2, "n_text_layer": 1}  # fmt: skip
    model: Any = Whisper(ModelDimensions(**sizes))
    nn.init.normal_(model.decoder.positional_embedding)  # it has the values that were in memory
    return model


def _pfrl() -> nn.Module:
    from pfrl.q_functions import DuelingDQN

    class Values(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = DuelingDQN(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.network(x).q_values

    return Values()


def _freia() -> nn.Module:
    from FrEIA.framework import SequenceINN
    from FrEIA.modules import AllInOneBlock

    def network(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))

    model = SequenceINN(4)
    for _ in range(2):
        model.append(AllInOneBlock, subnet_constructor=network)
    return model


def _glasflow() -> nn.Module:
    from glasflow import CouplingNSF

    return Likelihood(CouplingNSF(n_inputs=4, n_transforms=2, n_neurons=8, n_blocks_per_transform=1))


def _torchdyn() -> nn.Module:
    from torchdyn.core import NeuralODE

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            field = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))
            self.solver = NeuralODE(field, solver="rk4", sensitivity="autograd")

        def forward(self, x: Tensor) -> Tensor:
            return self.solver(x, torch.linspace(0, 1, 3).to(x))[1]

    return Net()


def _edsr() -> nn.Module:
    from super_image import EdsrConfig, EdsrModel

    return EdsrModel(EdsrConfig(scale=2, n_resblocks=2, n_feats=8))


def _retnet() -> nn.Module:
    from torchscale.architecture.config import RetNetConfig
    from torchscale.architecture.retnet import RetNetDecoder

    config = RetNetConfig(vocab_size=20, decoder_embed_dim=8, decoder_value_embed_dim=16, decoder_ffn_embed_dim=16,
                          decoder_layers=2, decoder_retention_heads=2)  # fmt: skip
    return RetNetDecoder(config, embed_tokens=nn.Embedding(20, 8))


def _spiking() -> nn.Module:
    import snntorch

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.neurons, self.act = nn.Linear(3, 8), snntorch.Leaky(beta=0.9), nn.ReLU()
            self.other = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            potential, outputs = self.neurons.init_leaky(), []
            for _ in range(3):
                _, potential = self.neurons(self.one(x), potential)
                outputs.append(self.other(self.act(potential)))
            return torch.stack(outputs)

    return Net()


def _bayesian() -> nn.Module:
    from bayesian_torch.layers import LinearReparameterization

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = LinearReparameterization(3, 8), LinearReparameterization(8, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x, divergence = self.one(x)
            x, own = self.other(torch.nn.functional.relu(x))
            return x, divergence + own

    return Net()


def _deepfm() -> nn.Module:
    from deepctr_torch.inputs import DenseFeat, SparseFeat
    from deepctr_torch.models import DeepFM

    columns = [SparseFeat("a", 4, 4), SparseFeat("b", 4, 4), DenseFeat("c", 1)]
    return DeepFM(columns, columns, dnn_hidden_units=(8, 8), task="binary")


def _lora() -> nn.Module:
    from peft import LoraConfig, get_peft_model

    base = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    return get_peft_model(base, LoraConfig(r=2, target_modules=["0"], init_lora_weights=False))


def _quantile_policy() -> nn.Module:
    from gymnasium.spaces import Box, Discrete
    from sb3_contrib.qrdqn.policies import QRDQNPolicy

    policy: Any = QRDQNPolicy(Box(-1.0, 1.0, (6,)), Discrete(3), lambda _: 1e-3, n_quantiles=4, net_arch=[8, 8])
    return policy.quantile_net  # type: ignore[no-any-return]


def _xlstm() -> nn.Module:
    from xlstm import (
        FeedForwardConfig,
        mLSTMBlockConfig,
        mLSTMLayerConfig,
        sLSTMBlockConfig,
        sLSTMLayerConfig,
        xLSTMBlockStack,
        xLSTMBlockStackConfig,
    )

    return xLSTMBlockStack(xLSTMBlockStackConfig(
        mlstm_block=mLSTMBlockConfig(mlstm=mLSTMLayerConfig(num_heads=2)),
        slstm_block=sLSTMBlockConfig(slstm=sLSTMLayerConfig(backend="vanilla", num_heads=2),
                                     feedforward=FeedForwardConfig(act_fn="gelu")),
        context_length=8, num_blocks=2, embedding_dim=16, slstm_at=[1],
    ))  # fmt: skip


class Atoms(nn.Module):
    """An ensemble of networks, one for each element."""

    def __init__(self) -> None:
        super().__init__()
        from torchani.nn import AtomicNetwork

        self.networks = nn.ModuleList(AtomicNetwork((4, 8, 1), activation=name) for name in ("celu", "gelu"))

    def forward(self, x: Tensor) -> Tensor:
        return sum(network(x) for network in self.networks)  # type: ignore[return-value]


class Labelled(nn.Module):
    """A network whose inputs are tensors with names, as those of PINA."""

    def __init__(self, network: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, x: Tensor) -> Tensor:
        from pina import LabelTensor

        return self.network(LabelTensor(x, self.names)).as_subclass(Tensor)  # type: ignore[no-any-return]


def _deeponet() -> nn.Module:
    from pina.model import DeepONet, FeedForward

    return Labelled(DeepONet(FeedForward(2, 4), FeedForward(1, 4), ["a", "b"], ["x"]), ["a", "b", "x"])


def _enformer() -> nn.Module:
    from enformer_pytorch import Enformer

    return Enformer.from_hparams(dim=24, depth=1, heads=2, output_heads={"human": 3}, target_length=2, attn_dim_key=4,
                                 num_downsamples=3, dim_divisible_by=2)  # fmt: skip


class Embedding(nn.Module):
    """The last layer of a model of sentence-transformers, which takes and returns a dictionary."""

    def __init__(self, dense: nn.Module) -> None:
        super().__init__()
        self.dense = dense

    def forward(self, x: Tensor) -> Tensor:
        return self.dense({"sentence_embedding": x})["sentence_embedding"]  # type: ignore[no-any-return]


def _sentence_embedding() -> nn.Module:
    from sentence_transformers.base.modules.dense import Dense

    return Embedding(Dense(4, 3))


def cases() -> Iterator[Case]:
    for key, model, inputs in read_table("other.txt"):
        library, name = key.split("/")
        yield Case(library, name, partial(make, model, globals()), partial(evaluate, inputs, globals()))
