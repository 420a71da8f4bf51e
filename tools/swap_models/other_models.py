"""Models of other packages, at most three of each, in small configurations."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from checks import Case
from torch import Tensor, nn
from torch import randn as some

IMAGE = lambda: (some(2, 3, 32, 32),)  # noqa: E731
TOKENS = lambda: (torch.randint(0, 20, (2, 16)),)  # noqa: E731
TABLE = lambda: (torch.randint(0, 4, (5, 2)), some(5, 3))  # noqa: E731  (of categories and of numbers)
SERIES = lambda: (some(2, 3, 24),)  # noqa: E731


def _graph(features: int = 4) -> tuple[Any, ...]:
    """Return the nodes of a graph, a ring with chords, and its edges."""
    nodes = torch.arange(6)
    edges = torch.stack([torch.cat([nodes, nodes]), torch.cat([(nodes + 1) % 6, (nodes + 2) % 6])])
    return some(6, features), torch.cat([edges, edges.flip(0)], 1)


_NNUNET = {
    "input_channels": 3, "n_stages": 3, "features_per_stage": (4, 8, 8), "conv_op": nn.Conv2d, "kernel_sizes": 3,
    "strides": (1, 2, 2), "num_classes": 2, "n_conv_per_stage_decoder": 1, "norm_op": nn.InstanceNorm2d,
}  # fmt: skip

# the package and a name, the path of the class or a function below, its arguments, and the inputs of the model
Entry = tuple[str, str, dict[str, Any], Callable[[], Any]]
MODELS: list[Entry] = [
    ("torch-geometric/GAT", "torch_geometric.nn.models.GAT",
     {"in_channels": 4, "hidden_channels": 8, "num_layers": 2, "out_channels": 3, "act": "elu"}, _graph),
    ("torch-geometric/GIN", "torch_geometric.nn.models.GIN",
     {"in_channels": 4, "hidden_channels": 8, "num_layers": 2, "out_channels": 3}, _graph),
    ("torch-geometric/AttentiveFP", "torch_geometric.nn.models.AttentiveFP",
     {"in_channels": 4, "hidden_channels": 8, "out_channels": 3, "edge_dim": 2, "num_layers": 2, "num_timesteps": 2},
     lambda: (*_graph(), some(24, 2), torch.tensor([0, 0, 0, 1, 1, 1]))),
    ("monai/BasicUNet", "monai.networks.nets.BasicUNet",
     {"spatial_dims": 2, "in_channels": 3, "features": (4, 4, 8, 8, 8, 4)}, IMAGE),
    ("monai/SegResNet", "monai.networks.nets.SegResNet",
     {"spatial_dims": 2, "in_channels": 3, "init_filters": 8}, IMAGE),
    ("monai/UNETR", "monai.networks.nets.UNETR",
     {"in_channels": 3, "out_channels": 2, "img_size": 32, "spatial_dims": 2, "hidden_size": 16, "mlp_dim": 32,
      "num_heads": 2, "feature_size": 4}, IMAGE),
    ("segmentation-models-pytorch/Unet", "segmentation_models_pytorch.Unet",
     {"encoder_name": "timm-mobilenetv3_small_minimal_100", "encoder_weights": None}, IMAGE),
    ("segmentation-models-pytorch/FPN", "segmentation_models_pytorch.FPN",
     {"encoder_name": "mobilenet_v2", "encoder_weights": None, "decoder_pyramid_channels": 16,
      "decoder_segmentation_channels": 32}, IMAGE),
    ("segmentation-models-pytorch/Segformer", "segmentation_models_pytorch.Segformer",
     {"encoder_name": "mit_b0", "encoder_weights": None}, lambda: (some(2, 3, 64, 64),)),
    ("efficientnet-pytorch/EfficientNet", "_efficientnet", {}, lambda: (some(2, 3, 64, 64),)),
    ("pretrainedmodels/xception", "pretrainedmodels.models.xception", {"pretrained": None},
     lambda: (some(2, 3, 64, 64),)),
    ("speechbrain/ECAPA_TDNN", "speechbrain.lobes.models.ECAPA_TDNN.ECAPA_TDNN",
     {"input_size": 8, "lin_neurons": 8, "channels": [16, 16, 16, 16, 48], "attention_channels": 8,
      "res2net_scale": 4, "se_channels": 8}, lambda: (some(2, 30, 8),)),
    ("speechbrain/CRDNN", "speechbrain.lobes.models.CRDNN.CRDNN",
     {"input_shape": [None, None, 20], "cnn_channels": (4, 4), "rnn_neurons": 8, "rnn_layers": 1, "dnn_neurons": 8,
      "dropout": 0.0},
     lambda: (some(2, 24, 20),)),
    ("speechbrain/ConformerEncoder", "speechbrain.lobes.models.transformer.Conformer.ConformerEncoder",
     {"num_layers": 1, "nhead": 2, "d_ffn": 16, "d_model": 8}, lambda: (some(2, 12, 8), None, None, some(1, 23, 8))),
    ("demucs/Demucs", "demucs.demucs.Demucs", {"sources": ["a", "b"], "channels": 8, "depth": 3, "lstm_layers": 1},
     lambda: (some(1, 2, 2000),)),
    ("demucs/HDemucs", "demucs.hdemucs.HDemucs",
     {"sources": ["a", "b"], "channels": 8, "depth": 6, "dconv_lstm": 4, "dconv_attn": 4}, lambda: (some(1, 2, 8000),)),
    ("demucs/HTDemucs", "demucs.htdemucs.HTDemucs",
     {"sources": ["a", "b"], "channels": 8, "nfft": 512, "depth": 2, "t_layers": 1, "t_heads": 2, "use_train_segment":
      False}, lambda: (some(1, 2, 8000),)),
    ("asteroid/ConvTasNet", "asteroid.models.ConvTasNet",
     {"n_src": 2, "n_blocks": 2, "n_repeats": 1, "bn_chan": 8, "hid_chan": 8, "skip_chan": 8, "n_filters": 8},
     lambda: (some(2, 400),)),
    ("asteroid/DPRNNTasNet", "asteroid.models.DPRNNTasNet",
     {"n_src": 2, "n_repeats": 1, "bn_chan": 8, "hid_size": 8, "chunk_size": 8, "n_filters": 8},
     lambda: (some(2, 400),)),
    ("rtdl-revisiting-models/ResNet", "rtdl_revisiting_models.ResNet",
     {"d_in": 3, "d_out": 1, "n_blocks": 2, "d_block": 8, "d_hidden": 16, "d_hidden_multiplier": None, "dropout1": 0.1,
      "dropout2": 0.1}, lambda: (some(5, 3),)),
    ("rtdl-revisiting-models/FTTransformer", "rtdl_revisiting_models.FTTransformer",
     {"n_cont_features": 3, "cat_cardinalities": [4, 4], "d_out": 1, "n_blocks": 2, "d_block": 8,
      "attention_n_heads": 2, "attention_dropout": 0.1, "ffn_d_hidden": 16, "ffn_d_hidden_multiplier": None,
      "ffn_dropout": 0.1, "residual_dropout": 0.1}, lambda: TABLE()[::-1]),
    ("tabm/TabM", "tabm.TabM",
     {"n_num_features": 3, "cat_cardinalities": [4, 4], "d_out": 1, "k": 4, "n_blocks": 2, "d_block": 8, "dropout": 0.1,
      "arch_type": "tabm", "start_scaling_init": "normal"},
     lambda: TABLE()[::-1]),
    ("pytorch-tabnet/TabNet", "pytorch_tabnet.tab_network.TabNet",
     {"input_dim": 6, "output_dim": 2, "n_d": 4, "n_a": 4, "virtual_batch_size": 4, "group_attention_matrix":
      torch.eye(6)}, lambda: (some(8, 6),)),
    ("pytorch-widedeep/TabMlp", "_widedeep",
     {"name": "TabMlp", "mlp_hidden_dims": [8, 4], "mlp_activation": "leaky_relu"},
     lambda: (torch.cat([part.float() for part in TABLE()], 1),)),
    ("pytorch-widedeep/SAINT", "_widedeep", {"name": "SAINT", "input_dim": 8, "n_heads": 2, "n_blocks": 1},
     lambda: (torch.cat([part.float() for part in TABLE()], 1),)),
    ("pytorch-widedeep/TabPerceiver", "_widedeep",
     {"name": "TabPerceiver", "input_dim": 8, "n_latents": 4, "latent_dim": 8,
     "n_latent_heads": 2, "n_latent_blocks": 1, "n_perceiver_blocks": 1},
     lambda: (torch.cat([part.float() for part in TABLE()], 1),)),
    ("neuraloperator/FNO", "neuralop.models.FNO",
     {"n_modes": (4, 4), "in_channels": 3, "out_channels": 1, "hidden_channels": 8, "n_layers": 2},
     lambda: (some(2, 3, 16, 16),)),
    ("neuraloperator/UNO", "neuralop.models.UNO",
     {"in_channels": 3, "out_channels": 1, "hidden_channels": 8, "n_layers": 3, "uno_out_channels": [8, 8, 8],
      "channel_mlp_skip": "linear", "uno_n_modes": [[4, 4]] * 3, "uno_scalings": [[1.0, 1.0], [0.5, 0.5], [2.0, 2.0]]},
     lambda: (some(2, 3, 16, 16),)),
    ("stable-baselines3/ActorCriticPolicy", "_policy", {"name": "ActorCriticPolicy"}, lambda: (some(4, 6), True)),
    ("stable-baselines3/ActorCriticCnnPolicy", "_policy", {"name": "ActorCriticCnnPolicy"},
     lambda: (torch.randint(0, 256, (2, 3, 36, 36)), True)),
    ("tianshou/Net", "tianshou.utils.net.common.Net", {"state_shape": 4, "action_shape": 2, "hidden_sizes": [8, 8]},
     lambda: (some(5, 4),)),
    ("x-transformers/ff_glu", "_x_transformer", {"ff_glu": True, "ff_swish": True}, TOKENS),
    ("x-transformers/ff_relu_squared", "_x_transformer",
     {"ff_relu_squared": True, "attn_dim_head": 32, "use_rmsnorm": True, "rotary_pos_emb": True}, TOKENS),
    ("x-transformers/macaron", "_x_transformer",
     {"macaron": True, "sandwich_norm": True, "attn_gate_values": True}, TOKENS),
    ("vit-pytorch/MobileViT", "vit_pytorch.mobile_vit.MobileViT",
     {"image_size": (64, 64), "dims": [8, 8, 16], "channels": [4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8], "num_classes": 3,
      "depths": (1, 1, 1)}, lambda: (some(2, 3, 64, 64),)),
    ("vit-pytorch/CrossViT", "vit_pytorch.cross_vit.CrossViT",
     {"image_size": 32, "num_classes": 3, "depth": 1, "sm_dim": 8, "lg_dim": 8, "sm_patch_size": 8, "lg_patch_size": 16,
      "sm_enc_depth": 1, "lg_enc_depth": 1, "sm_enc_heads": 2, "lg_enc_heads": 2, "sm_enc_mlp_dim": 16,
      "lg_enc_mlp_dim": 16, "cross_attn_depth": 1, "cross_attn_heads": 2}, IMAGE),
    ("vit-pytorch/MaxViT", "vit_pytorch.max_vit.MaxViT",
     {"num_classes": 3, "dim": 8, "depth": (1, 1), "dim_head": 4, "dim_conv_stem": 8, "window_size": 4}, IMAGE),
    ("e3nn/Gate", "_e3nn_gate", {}, lambda: (some(5, 6),)),
    ("e3nn/FullyConnectedNet", "_e3nn_network", {}, lambda: (some(5, 3),)),
    ("normflows/RealNVP", "_normflows", {}, lambda: (some(5, 4),)),
    ("normflows/NeuralSpline", "_normflows", {"spline": True}, lambda: (some(5, 4),)),
    ("nflows/MaskedAffineAutoregressiveTransform", "_nflows", {}, lambda: (some(5, 4),)),
    ("zuko/MAF", "_zuko", {"name": "MAF"}, lambda: (some(5, 3), some(5, 2))),
    ("zuko/NSF", "_zuko", {"name": "NSF", "activation": nn.ELU}, lambda: (some(5, 3), some(5, 2))),
    ("torchdiffeq/odeint", "_ode", {}, lambda: (some(5, 3),)),
    ("torchdiffeq/odeint_adjoint", "_ode", {"adjoint": True}, lambda: (some(5, 3),)),
    ("torchsde/sdeint", "_sde", {}, lambda: (some(5, 3),)),
    ("denoising-diffusion-pytorch/Unet", "denoising_diffusion_pytorch.Unet",
     {"dim": 8, "dim_mults": (1, 2), "attn_dim_head": 4, "flash_attn": False},
     lambda: (*IMAGE(), torch.tensor([1, 5]))),
    ("denoising-diffusion-pytorch/GaussianDiffusion", "_diffusion", {}, IMAGE),
    ("kornia/VisionTransformer", "kornia.models.vit.VisionTransformer",
     {"image_size": 32, "patch_size": 8, "in_channels": 3, "embed_dim": 16, "depth": 2, "num_heads": 2}, IMAGE),
    ("kornia/TinyViT", "kornia.models.tiny_vit.TinyViT",
     {"img_size": 64, "num_classes": 3, "embed_dims": [8, 8, 16, 16], "depths": [1, 1, 1, 1],
      "num_heads": [1, 1, 2, 2], "window_sizes": [4, 4, 4, 4]}, lambda: (some(2, 3, 64, 64),)),
    ("facenet-pytorch/InceptionResnetV1", "facenet_pytorch.InceptionResnetV1",
     {"pretrained": None}, lambda: (some(2, 3, 80, 80),)),
    ("facenet-pytorch/PNet", "facenet_pytorch.models.mtcnn.PNet", {"pretrained": False}, IMAGE),
    ("ultralytics/yolov8n", "_yolo", {"cfg": "yolov8n.yaml"}, lambda: (some(2, 3, 64, 64),)),
    ("ultralytics/yolo11n-seg", "_yolo", {"cfg": "yolo11n-seg.yaml"}, lambda: (some(2, 3, 64, 64),)),
    ("gpytorch/ExactGP", "_deep_kernel", {}, lambda: (some(6, 3),)),
    ("neuralforecast/NHITS", "_forecaster", {"name": "NHITS", "mlp_units": [[8, 8]] * 3}, lambda: (_windows(),)),
    ("neuralforecast/TSMixer", "_forecaster", {"name": "TSMixer", "n_series": 3}, lambda: (_windows(),)),
    ("neuralforecast/PatchTST", "_forecaster",
     {"name": "PatchTST", "hidden_size": 8, "linear_hidden_size": 8, "n_heads": 2},
     lambda: (_windows(),)),
    ("tsai/InceptionTime", "tsai.models.InceptionTime.InceptionTime", {"c_in": 3, "c_out": 2, "nf": 4}, SERIES),
    ("tsai/TST", "tsai.models.TST.TST", {"c_in": 3, "c_out": 2, "seq_len": 24, "d_model": 8, "n_heads": 2, "d_ff": 16,
     "n_layers": 1}, SERIES),
    ("open-clip-torch/CLIP", "_open_clip", {}, lambda: (*IMAGE(), *TOKENS())),
    ("clip-anytorch/CLIP", "clip.model.CLIP",
     {"embed_dim": 8, "image_resolution": 32, "vision_layers": 1, "vision_width": 64, "vision_patch_size": 8,
      "context_length": 16, "vocab_size": 20, "transformer_width": 16, "transformer_heads": 2, "transformer_layers": 1},
     lambda: (*IMAGE(), *TOKENS())),
    ("mambapy/Mamba", "_mamba", {}, lambda: (some(2, 12, 8),)),
    ("pykan/KAN", "kan.KAN", {"width": [2, 3, 1], "auto_save": False, "symbolic_enabled": False},
     lambda: (some(5, 2),)),
    ("tab-transformer-pytorch/TabTransformer", "tab_transformer_pytorch.TabTransformer",
     {"categories": (4, 4), "num_continuous": 3, "dim": 8, "depth": 1, "heads": 2, "mlp_act": nn.SELU()}, TABLE),
    ("perceiver-pytorch/Perceiver", "perceiver_pytorch.Perceiver",
     {"num_freq_bands": 2, "depth": 2, "max_freq": 10.0, "num_latents": 4, "latent_dim": 8, "cross_dim_head": 4,
      "latent_heads": 2, "latent_dim_head": 4, "num_classes": 3, "weight_tie_layers": True},
     lambda: (some(2, 8, 8, 3),)),
    ("g-mlp-pytorch/gMLPVision", "g_mlp_pytorch.gMLPVision",
     {"image_size": 32, "patch_size": 8, "num_classes": 3, "dim": 8, "depth": 2}, IMAGE),
    ("mlp-mixer-pytorch/MLPMixer", "mlp_mixer_pytorch.MLPMixer",
     {"image_size": 32, "channels": 3, "patch_size": 8, "dim": 8, "depth": 2, "num_classes": 3}, IMAGE),
    ("siren-pytorch/SirenNet", "siren_pytorch.SirenNet", {"dim_in": 2, "dim_hidden": 8, "dim_out": 1, "num_layers": 2},
     lambda: (some(5, 2),)),
    ("egnn-pytorch/EGNN_Network", "egnn_pytorch.EGNN_Network",
     {"num_tokens": 20, "num_positions": 16, "dim": 8, "depth": 2, "num_nearest_neighbors": 4},
     lambda: (*TOKENS(), some(2, 16, 3))),
    ("vector-quantize-pytorch/VectorQuantize", "_quantizer", {}, lambda: (some(2, 1, 8, 8),)),
    ("performer-pytorch/PerformerLM", "performer_pytorch.PerformerLM",
     {"num_tokens": 20, "max_seq_len": 16, "dim": 8, "depth": 2, "heads": 2, "dim_head": 4, "generalized_attention":
      True}, TOKENS),
    ("reformer-pytorch/ReformerLM", "reformer_pytorch.ReformerLM",
     {"num_tokens": 20, "dim": 8, "depth": 2, "max_seq_len": 16, "heads": 2, "bucket_size": 4, "n_hashes": 2}, TOKENS),
    ("conformer/Conformer", "conformer.Conformer",
     {"dim": 8, "depth": 2, "dim_head": 4, "heads": 2}, lambda: (some(2, 12, 8),)),
    ("snac/SNAC", "_snac", {}, lambda: (some(1, 1, 512),)),
    ("encodec/SEANetEncoder", "encodec.modules.SEANetEncoder", {"n_filters": 4, "dimension": 8, "ratios": [4, 2]},
     lambda: (some(1, 1, 256),)),
    ("vocos/VocosBackbone", "vocos.models.VocosBackbone",
     {"input_channels": 8, "dim": 8, "intermediate_dim": 16, "num_layers": 2}, lambda: (some(1, 8, 24),)),
    ("geffnet/mixnet_s", "geffnet.mixnet_s", {}, lambda: (some(2, 3, 64, 64),)),
    ("unet/UNet2D", "unet.UNet2D",
     {"in_channels": 3, "out_channels_first_layer": 4, "num_encoding_blocks": 3, "padding": 1,
     "activation": "PReLU", "normalization": "batch"}, IMAGE),
    ("deepxde/PFNN", "_deepxde", {}, lambda: (some(5, 2),)),
    ("segment-anything/ImageEncoderViT", "_sam_encoder", {}, IMAGE),
    ("lpips/LPIPS", "lpips.LPIPS", {"pretrained": False, "pnet_rand": True, "net": "squeeze", "verbose": False},
     lambda: (some(2, 3, 32, 32), some(2, 3, 32, 32))),
    ("torchxrayvision/DenseNet", "torchxrayvision.models.DenseNet",
     {"growth_rate": 4, "block_config": (2, 2, 2), "num_init_features": 8}, lambda: (some(2, 1, 32, 32),)),
    ("bs-roformer/BSRoformer", "bs_roformer.BSRoformer",
     {"dim": 8, "depth": 1, "heads": 2, "dim_head": 4, "flash_attn": False, "stft_n_fft": 64, "stft_hop_length": 16,
      "stft_win_length": 64, "freqs_per_bands": (8, 8, 17)}, lambda: (some(2, 512),)),
    ("torchrl/MLP", "torchrl.modules.MLP", {"in_features": 4, "out_features": 2, "num_cells": [8, 8]},
     lambda: (some(5, 4),)),
    ("torchrl/DuelingCnnDQNet", "torchrl.modules.DuelingCnnDQNet",
     {"out_features": 2, "cnn_kwargs": {"num_cells": [4, 4], "in_features": 3, "kernel_sizes": 3, "strides": 2},
      "mlp_kwargs": {"num_cells": 8, "in_features": 196}}, IMAGE),
    ("openunmix/OpenUnmix", "openunmix.model.OpenUnmix",
     {"nb_bins": 33, "nb_channels": 2, "hidden_size": 8, "nb_layers": 1}, lambda: (some(2, 2, 33, 10).abs(),)),
    ("torchcrepe/Crepe", "torchcrepe.Crepe", {"model": "tiny"}, lambda: (some(2, 1024),)),
    ("descript-audio-codec/DAC", "dac.model.dac.DAC",
     {"encoder_dim": 4, "encoder_rates": [2, 2], "decoder_dim": 16, "decoder_rates": [2, 2], "n_codebooks": 2,
      "codebook_size": 16}, lambda: (some(1, 1, 64),)),
    ("openai-whisper/Whisper", "_whisper", {}, lambda: (some(2, 8, 20), torch.randint(0, 20, (2, 6)))),
    ("dynamic-network-architectures/PlainConvUNet",
     "dynamic_network_architectures.architectures.unet.PlainConvUNet",
     _NNUNET | {"n_conv_per_stage": 1, "nonlin": nn.LeakyReLU, "nonlin_kwargs": {"inplace": True}}, IMAGE),
    ("dynamic-network-architectures/ResidualEncoderUNet",
     "dynamic_network_architectures.architectures.unet.ResidualEncoderUNet",
     _NNUNET | {"n_blocks_per_stage": 1, "nonlin": nn.ReLU}, IMAGE),
    ("pfrl/DuelingDQN", "_pfrl", {}, lambda: (some(2, 4, 84, 84),)),
    ("FrEIA/SequenceINN", "_freia", {}, lambda: (some(5, 4),)),
    ("glasflow/CouplingNSF", "_glasflow", {}, lambda: (some(5, 4),)),
    ("neurodiffeq/FCNN", "neurodiffeq.networks.FCNN",
     {"n_input_units": 2, "n_output_units": 1, "hidden_units": (8, 8)}, lambda: (some(5, 2),)),
    ("neurodiffeq/Resnet", "neurodiffeq.networks.Resnet",
     {"n_input_units": 2, "n_output_units": 1, "hidden_units": (8,)}, lambda: (some(5, 2),)),
    ("torchdyn/NeuralODE", "_torchdyn", {}, lambda: (some(5, 3),)),
    ("ncps/CfC", "ncps.torch.CfC", {"input_size": 3, "units": 8}, lambda: (some(2, 6, 3),)),
    ("pytorch-tcn/TCN", "pytorch_tcn.TCN", {"num_inputs": 3, "num_channels": [4, 4]}, SERIES),
    ("nbeats-pytorch/NBeatsNet", "nbeats_pytorch.model.NBeatsNet",
     {"forecast_length": 3, "backcast_length": 10, "hidden_layer_units": 8, "thetas_dim": (4, 4),
      "nb_blocks_per_stack": 1}, lambda: (some(4, 10),)),
    ("pytorch-tsmixer/TSMixer", "torchtsmixer.TSMixer",
     {"sequence_length": 24, "prediction_length": 4, "input_channels": 3, "output_channels": 3},
     lambda: (some(2, 24, 3),)),
    ("linformer/LinformerLM", "linformer.LinformerLM",
     {"num_tokens": 20, "dim": 8, "seq_len": 16, "depth": 2, "heads": 2, "k": 4}, TOKENS),
    ("nystrom-attention/Nystromformer", "nystrom_attention.Nystromformer",
     {"dim": 8, "dim_head": 4, "heads": 2, "depth": 2, "num_landmarks": 4}, lambda: (some(2, 16, 8),)),
    ("soft-moe-pytorch/SoftMoE", "soft_moe_pytorch.SoftMoE", {"dim": 8, "seq_len": 16, "num_experts": 4},
     lambda: (some(2, 16, 8),)),
    ("axial-attention/AxialImageTransformer", "axial_attention.AxialImageTransformer",
     {"dim": 8, "depth": 2, "heads": 2, "reversible": False}, lambda: (some(1, 8, 4, 4),)),
    ("bottleneck-transformer-pytorch/BottleStack", "bottleneck_transformer_pytorch.BottleStack",
     {"dim": 8, "fmap_size": 8, "dim_out": 16, "heads": 2, "dim_head": 4, "num_layers": 2, "rel_pos_emb": True,
      "activation": nn.SiLU()}, lambda: (some(2, 8, 8, 8),)),
    ("super-image/EdsrModel", "_edsr", {}, lambda: (some(1, 3, 8, 8),)),
    ("torchscale/RetNetDecoder", "_retnet", {}, TOKENS),
    ("snntorch/Leaky", "_spiking", {}, lambda: (some(5, 3),)),
    ("bayesian-torch/LinearReparameterization", "_bayesian", {}, lambda: (some(5, 3),)),
    ("deepctr-torch/DeepFM", "_deepfm", {},
     lambda: (torch.cat([torch.randint(0, 4, (5, 2)).float(), some(5, 1)], 1),)),
    ("torch-rechub/MLP", "torch_rechub.basic.layers.MLP", {"input_dim": 4, "dims": [8, 8], "activation": "dice"},
     lambda: (some(6, 4),)),
    ("peft/LoraModel", "_lora", {}, lambda: (some(5, 4),)),
    ("lightly/DINOProjectionHead", "lightly.models.modules.heads.DINOProjectionHead",
     {"input_dim": 8, "hidden_dim": 8, "bottleneck_dim": 4, "output_dim": 8}, lambda: (some(4, 8),)),
    ("iTransformer/iTransformer", "iTransformer.iTransformer",
     {"num_variates": 3, "lookback_len": 24, "depth": 1, "dim": 8, "heads": 2, "dim_head": 4, "pred_length": 4},
     lambda: (some(2, 24, 3),)),
    ("pytorch-forecasting/GatedResidualNetwork",
     "pytorch_forecasting.models.temporal_fusion_transformer.sub_modules.GatedResidualNetwork",
     {"input_size": 4, "hidden_size": 8, "output_size": 4}, lambda: (some(5, 4),)),
]  # fmt: skip


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


_imported: set[str] = set()


def _make(what: str, options: dict[str, Any]) -> nn.Module:
    path, _, name = what.rpartition(".")
    if what not in _imported:  # importing may draw random numbers
        _imported.add(what)
        state = random.getstate()
        with torch.random.fork_rng():
            _make(what, options)
        random.setstate(state)
    make = getattr(importlib.import_module(path), name) if path else globals()[name]
    return make(**options)


def cases() -> Iterator[Case]:
    for key, what, options, inputs in MODELS:
        library, name = key.split("/")
        yield Case(library, name, lambda what=what, options=options: _make(what, options), inputs)
