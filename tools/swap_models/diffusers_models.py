"""Models of diffusers, each with a tiny configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from checks import Case
from torch import nn
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


# class: its configuration, and what makes its inputs
MODELS: dict[str, tuple[dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "UNet2DModel": (
        BLOCKS | {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D",
            "UpBlock2D"), "attention_head_dim": 4},
        lambda: {"sample": R(2, 3, 16, 16), "timestep": TIME},
    ),
    "UNet2DConditionModel": (
        UNET, lambda: {"sample": R(2, 4, 16, 16), "timestep": TIME, "encoder_hidden_states": R(2, 3, 8)}
    ),
    "UNet1DModel": (
        {"sample_size": 32, "in_channels": 4, "out_channels": 4, "extra_in_channels": 64},
        lambda: {"sample": R(2, 4, 32), "timestep": TIME},
    ),
    "UNet3DConditionModel": (
        BLOCKS | {"down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"), "up_block_types": ("UpBlock3D",
            "CrossAttnUpBlock3D"), "cross_attention_dim": 8, "attention_head_dim": 4},
        lambda: {"sample": R(2, 4, 2, 8, 8), "timestep": TIME, "encoder_hidden_states": R(2, 3, 8)},
    ),
    "UNetMotionModel": (
        BLOCKS | {"down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
            "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"), "cross_attention_dim": 8,
            "num_attention_heads": 2, "motion_num_attention_heads": 2, "use_motion_mid_block": False},
        lambda: {"sample": R(2, 4, 2, 8, 8), "timestep": TIME, "encoder_hidden_states": R(4, 3, 8)},
    ),
    "UNetSpatioTemporalConditionModel": (
        {"block_out_channels": (32, 64), "layers_per_block": 1,
            "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
            "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"), "cross_attention_dim": 8,
            "num_attention_heads": 2, "addition_time_embed_dim": 8, "projection_class_embeddings_input_dim": 24},
        lambda: {"sample": R(2, 2, 8, 8, 8), "timestep": TIME, "encoder_hidden_states": R(2, 1, 8),
            "added_time_ids": R(2, 3)},
    ),
    "I2VGenXLUNet": (
        BLOCKS | {"down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"), "up_block_types": ("UpBlock3D",
            "CrossAttnUpBlock3D"), "cross_attention_dim": 8, "attention_head_dim": 4},
        lambda: {"sample": R(2, 4, 2, 8, 8), "timestep": TIME, "fps": torch.tensor([8, 8]), "image_latents": R(2, 4,
            2, 8, 8), "image_embeddings": R(2, 8), "encoder_hidden_states": R(2, 3, 8)},
    ),
    "Kandinsky3UNet": (
        {"time_embedding_dim": 8, "groups": 4, "attention_head_dim": 4, "layers_per_block": 3,
            "block_out_channels": (8, 16, 16, 32), "cross_attention_dim": 8, "encoder_hid_dim": 8},
        lambda: {"sample": R(2, 4, 8, 8), "timestep": TIME, "encoder_hidden_states": R(2, 3, 8),
            "encoder_attention_mask": torch.ones(2, 3)},
    ),
    "StableCascadeUNet": (
        {"in_channels": 4, "out_channels": 4, "conditioning_dim": 16, "block_out_channels": (16, 16),
            "num_attention_heads": (2, 2), "down_num_layers_per_block": (1, 1), "up_num_layers_per_block": (1, 1),
            "clip_text_pooled_in_channels": 8},
        lambda: {"sample": R(2, 4, 8, 8), "timestep_ratio": torch.rand(2), "clip_text_pooled": R(2, 1, 8)},
    ),
    "UVit2DModel": (
        {"hidden_size": 16, "cond_embed_dim": 8, "micro_cond_encode_dim": 2, "micro_cond_embed_dim": 10,
            "encoder_hidden_size": 8, "vocab_size": 32, "codebook_size": 31, "in_channels": 8,
            "block_out_channels": 8, "num_res_blocks": 1, "block_num_heads": 2, "num_hidden_layers": 1,
            "num_attention_heads": 2, "intermediate_size": 16, "sample_size": 4},
        lambda: {"input_ids": torch.randint(0, 31, (2, 4, 4)), "encoder_hidden_states": R(2, 3, 8),
            "pooled_text_emb": R(2, 8), "micro_conds": R(2, 5)},
    ),
    "ControlNetModel": (
        CONTROL | {"conditioning_embedding_out_channels": (4, 8)},
        lambda: {"sample": R(2, 4, 16, 16), "timestep": TIME, "encoder_hidden_states": R(2, 3, 8),
            "controlnet_cond": R(2, 3, 32, 32)},
    ),
    "SparseControlNetModel": (
        BLOCKS | {"down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"), "cross_attention_dim": 8,
            "attention_head_dim": 4, "motion_num_attention_heads": 2, "conditioning_embedding_out_channels": (4, 8)},
        lambda: {"sample": R(2, 4, 2, 8, 8), "timestep": TIME, "encoder_hidden_states": R(4, 3, 8),
            "controlnet_cond": R(2, 4, 2, 8, 8), "conditioning_mask": torch.ones(2, 1, 2, 8, 8)},
    ),
    "T2IAdapter": ({"channels": [8, 16], "num_res_blocks": 1, "downscale_factor": 2}, lambda: {"x": R(2, 3, 16, 16)}),
    "AutoencoderKL": (VAE, lambda: {"sample": R(2, 3, 16, 16)}),
    "AsymmetricAutoencoderKL": (
        {"down_block_types": ("DownEncoderBlock2D",) * 2, "down_block_out_channels": (8, 16),
            "up_block_types": ("UpDecoderBlock2D",) * 2, "up_block_out_channels": (8, 16), "norm_num_groups": 4},
        lambda: {"sample": R(2, 3, 16, 16), "mask": torch.ones(2, 1, 16, 16)},
    ),
    "VQModel": (VAE, lambda: {"sample": R(2, 3, 16, 16)}),
    "AutoencoderTiny": (
        {"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8), "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1)},
        lambda: {"sample": R(2, 3, 16, 16)},
    ),
    "AutoencoderKLTemporalDecoder": (
        {"down_block_types": ("DownEncoderBlock2D",) * 2, "block_out_channels": (32, 64)},
        lambda: {"sample": R(2, 3, 16, 16), "num_frames": 2},
    ),
    "AutoencoderDC": (
        {"latent_channels": 4, "attention_head_dim": 2, "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "decoder_block_types": ("ResBlock", "EfficientViTBlock"), "encoder_block_out_channels": (8, 8),
            "decoder_block_out_channels": (8, 8), "encoder_layers_per_block": (1, 1), "decoder_layers_per_block": (1,
            1), "encoder_qkv_multiscales": ((), (5,)), "decoder_qkv_multiscales": ((), (5,))},
        lambda: {"sample": R(2, 3, 16, 16)},
    ),
    "AutoencoderOobleck": (
        {"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "channel_multiples": [1, 2], "decoder_channels": 8,
            "decoder_input_channels": 4},
        lambda: {"sample": R(2, 2, 64)},
    ),
    "AutoencoderKLCogVideoX": (
        BLOCKS | {"down_block_types": ("CogVideoXDownBlock3D",) * 2, "up_block_types": ("CogVideoXUpBlock3D",) * 2,
            "block_out_channels": (8, 8), "latent_channels": 4, "temporal_compression_ratio": 2},
        lambda: {"sample": R(1, 3, 1, 16, 16)},
    ),
    "AutoencoderKLHunyuanVideo": (
        BLOCKS | {"down_block_types": ("HunyuanVideoDownBlock3D",) * 4,
            "up_block_types": ("HunyuanVideoUpBlock3D",) * 4, "block_out_channels": (8, 8, 8, 8),
            "latent_channels": 4},
        lambda: {"sample": R(1, 3, 5, 16, 16)},
    ),
    "AutoencoderKLLTXVideo": (
        {"latent_channels": 8, "block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8),
            "layers_per_block": (1, 1, 1), "decoder_layers_per_block": (1, 1, 1),
            "down_block_types": ("LTXVideoDownBlock3D",) * 2, "spatio_temporal_scaling": (True, False),
            "decoder_spatio_temporal_scaling": (True, False), "decoder_inject_noise": (False,) * 3,
            "upsample_residual": (False,) * 2, "upsample_factor": (1, 1), "downsample_type": ("conv", "conv")},
        lambda: {"sample": R(1, 3, 3, 16, 16)},
    ),
    "AutoencoderKLMagvit": (
        BLOCKS | {"block_out_channels": [8, 8], "down_block_types": ["SpatialDownBlock3D",
            "SpatialTemporalDownBlock3D"], "up_block_types": ["SpatialUpBlock3D", "SpatialTemporalUpBlock3D"],
            "latent_channels": 4},
        lambda: {"sample": R(1, 3, 5, 16, 16)},
    ),
    "AutoencoderKLMochi": (
        {"encoder_block_out_channels": (32,) * 4, "decoder_block_out_channels": (32,) * 4, "latent_channels": 4,
            "layers_per_block": (1, 1, 1, 1, 1), "latents_mean": (0.0,) * 4, "latents_std": (1.0,) * 4},
        lambda: {"sample": R(1, 3, 6, 16, 16)},
    ),
    "AutoencoderKLWan": (
        {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 1], "num_res_blocks": 1, "temperal_downsample": [True]},
        lambda: {"sample": R(1, 3, 5, 8, 8)},
    ),
    "AutoencoderKLQwenImage": (
        {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 1], "num_res_blocks": 1, "temperal_downsample": [True]},
        lambda: {"sample": R(1, 3, 1, 8, 8)},
    ),
    "AutoencoderKLFlux2": (
        VAE | {"latent_channels": 4}, lambda: {"sample": R(2, 3, 16, 16)}
    ),
    "Transformer2DModel": (
        {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 8, "norm_num_groups": 4,
            "cross_attention_dim": 8},
        lambda: {"hidden_states": R(2, 8, 4, 4), "encoder_hidden_states": R(2, 3, 8)},
    ),
    "TransformerTemporalModel": (
        {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 8, "norm_num_groups": 4},
        lambda: {"hidden_states": R(4, 8, 4, 4), "num_frames": 2},
    ),
    "DiTTransformer2DModel": (
        DIT | {"num_embeds_ada_norm": 8},
        lambda: {"hidden_states": R(2, 4, 8, 8), "timestep": TIME, "class_labels": torch.tensor([1, 2])},
    ),
    "PixArtTransformer2DModel": (
        DIT | {"cross_attention_dim": 16, "caption_channels": 8, "use_additional_conditions": False},
        lambda: {"hidden_states": R(2, 4, 8, 8), "timestep": TIME, "encoder_hidden_states": R(2, 3, 8),
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}},
    ),
    "HunyuanDiT2DModel": (
        {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "in_channels": 4, "sample_size": 8,
            "patch_size": 2, "hidden_size": 16, "cross_attention_dim": 8, "cross_attention_dim_t5": 8,
            "pooled_projection_dim": 4, "text_len": 3, "text_len_t5": 3, "use_style_cond_and_image_meta_size": False},
        lambda: {"hidden_states": R(2, 4, 8, 8), "timestep": torch.rand(2), "encoder_hidden_states": R(2, 3, 8),
            "text_embedding_mask": torch.ones(2, 3), "encoder_hidden_states_t5": R(2, 3, 8),
            "text_embedding_mask_t5": torch.ones(2, 3), "image_rotary_emb": (torch.ones(16, 8), torch.zeros(16, 8))},
    ),
    "LatteTransformer3DModel": (
        {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "out_channels": 4, "num_layers": 1,
            "sample_size": 8, "patch_size": 2, "num_embeds_ada_norm": 8, "norm_type": "ada_norm_single",
            "activation_fn": "gelu-approximate", "norm_elementwise_affine": False, "caption_channels": 8,
            "cross_attention_dim": 16, "video_length": 2},
        lambda: {"hidden_states": R(2, 4, 2, 8, 8), "timestep": TIME, "encoder_hidden_states": R(2, 3, 8)},
    ),
    "SD3Transformer2DModel": (
        JOINT | {"pooled_projection_dim": 8},
        lambda: {"hidden_states": R(2, 4, 8, 8), "encoder_hidden_states": R(2, 3, 8), "pooled_projections": R(2, 8),
            "timestep": TIME},
    ),
    "SD3ControlNetModel": (
        JOINT | {"pooled_projection_dim": 8},
        lambda: {"hidden_states": R(2, 4, 8, 8), "controlnet_cond": R(2, 4, 8, 8), "encoder_hidden_states": R(2, 3,
            8), "pooled_projections": R(2, 8), "timestep": TIME},
    ),
    "AuraFlowTransformer2DModel": (
        {name: value for name, value in JOINT.items() if name != "num_layers"} | {"num_mmdit_layers": 1,
            "num_single_dit_layers": 1, "pos_embed_max_size": 16},
        lambda: {"hidden_states": R(2, 4, 8, 8), "encoder_hidden_states": R(2, 3, 8), "timestep": torch.rand(2)},
    ),
    "FluxTransformer2DModel": (FLUX | {"pooled_projection_dim": 8}, lambda: _flux(pooled_projections=R(2, 8))),
    "FluxControlNetModel": (
        FLUX | {"pooled_projection_dim": 8}, lambda: _flux(pooled_projections=R(2, 8), controlnet_cond=R(2, 4, 4))
    ),
    "ChromaTransformer2DModel": (
        FLUX | {"approximator_num_channels": 8, "approximator_hidden_dim": 8, "approximator_layers": 1}, _flux
    ),
    "BriaTransformer2DModel": (FLUX | {"axes_dims_rope": [0, 8, 8]}, _flux),
    "Flux2Transformer2DModel": (
        FLUX | {"axes_dims_rope": (4, 4, 4, 4), "timestep_guidance_channels": 16, "guidance_embeds": False},
        lambda: _flux(img_ids=torch.zeros(4, 4), txt_ids=torch.zeros(3, 4)),
    ),
    "QwenImageTransformer2DModel": (
        {"in_channels": 16, "out_channels": 4, "num_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2,
            "joint_attention_dim": 8, "axes_dims_rope": (4, 4, 8)},
        lambda: {"hidden_states": R(2, 4, 16), "encoder_hidden_states": R(2, 3, 8),
            "encoder_hidden_states_mask": torch.ones(2, 3), "timestep": torch.rand(2), "img_shapes": [[(1, 2,
            2)]] * 2},
    ),
    "SanaTransformer2DModel": (
        {"in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1,
            "num_cross_attention_heads": 2, "cross_attention_head_dim": 8, "cross_attention_dim": 16,
            "caption_channels": 8, "sample_size": 8},
        lambda: {"hidden_states": R(2, 4, 8, 8), "encoder_hidden_states": R(2, 3, 8), "timestep": TIME},
    ),
    "LTXVideoTransformer3DModel": (
        {"in_channels": 8, "out_channels": 8, "num_attention_heads": 2, "attention_head_dim": 8,
            "cross_attention_dim": 16, "num_layers": 1, "caption_channels": 8},
        lambda: {"hidden_states": R(2, 8, 8), "encoder_hidden_states": R(2, 3, 8), "timestep": torch.rand(2),
            "encoder_attention_mask": torch.ones(2, 3), "num_frames": 2, "height": 2, "width": 2},
    ),
    "CogVideoXTransformer3DModel": (
        {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "out_channels": 4, "time_embed_dim": 4,
            "text_embed_dim": 8, "num_layers": 1, "sample_width": 8, "sample_height": 8, "sample_frames": 5,
            "max_text_seq_length": 3},
        lambda: {"hidden_states": R(2, 2, 4, 8, 8), "encoder_hidden_states": R(2, 3, 8), "timestep": TIME},
    ),
    "CogView3PlusTransformer2DModel": (
        {"in_channels": 4, "num_layers": 1, "attention_head_dim": 8, "num_attention_heads": 2, "out_channels": 4,
            "text_embed_dim": 8, "time_embed_dim": 8, "condition_dim": 2, "pos_embed_max_size": 8, "sample_size": 8},
        lambda: {"hidden_states": R(2, 4, 8, 8), "encoder_hidden_states": R(2, 3, 8), "timestep": TIME,
            "original_size": R(2, 2), "target_size": R(2, 2), "crop_coords": R(2, 2)},
    ),
    "MochiTransformer3DModel": (
        {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "pooled_projection_dim": 16,
            "in_channels": 4, "text_embed_dim": 8, "time_embed_dim": 4, "max_sequence_length": 3},
        lambda: {"hidden_states": R(2, 4, 2, 8, 8), "encoder_hidden_states": R(2, 3, 8), "timestep": TIME,
            "encoder_attention_mask": torch.ones(2, 3, dtype=torch.bool)},
    ),
    "HunyuanVideoTransformer3DModel": (
        {"in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1,
            "num_single_layers": 1, "num_refiner_layers": 1, "text_embed_dim": 8, "pooled_projection_dim": 8,
            "rope_axes_dim": (4, 4, 8)},
        lambda: {"hidden_states": R(1, 4, 2, 4, 4), "encoder_hidden_states": R(1, 3, 8), "timestep": TIME[:1],
            "encoder_attention_mask": torch.ones(1, 3), "pooled_projections": R(1, 8),
            "guidance": torch.tensor([6.0])},
    ),
    "WanTransformer3DModel": (
        {"num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 4, "out_channels": 4, "text_dim": 8,
            "freq_dim": 16, "ffn_dim": 16, "num_layers": 1, "rope_max_seq_len": 16},
        lambda: {"hidden_states": R(1, 4, 2, 4, 4), "timestep": TIME[:1], "encoder_hidden_states": R(1, 3, 8)},
    ),
    "AllegroTransformer3DModel": (
        {"num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 4, "out_channels": 4, "num_layers": 1,
            "cross_attention_dim": 24, "sample_width": 8, "sample_height": 8, "sample_frames": 2,
            "caption_channels": 8},
        lambda: {"hidden_states": R(1, 4, 2, 8, 8), "encoder_hidden_states": R(1, 3, 8), "timestep": TIME[:1],
            "attention_mask": torch.ones(1, 2, 8, 8)},
    ),
    "Lumina2Transformer2DModel": (
        {"sample_size": 8, "in_channels": 4, "hidden_size": 24, "num_layers": 1, "num_refiner_layers": 1,
            "num_attention_heads": 2, "num_kv_heads": 1, "multiple_of": 8, "axes_dim_rope": (4, 4, 4),
            "axes_lens": (16, 16, 16), "cap_feat_dim": 8},
        lambda: {"hidden_states": R(2, 4, 8, 8), "timestep": torch.rand(2), "encoder_hidden_states": R(2, 3, 8),
            "encoder_attention_mask": torch.ones(2, 3, dtype=torch.bool)},
    ),
    "StableAudioDiTModel": (
        {"sample_size": 8, "in_channels": 4, "num_layers": 1, "attention_head_dim": 8, "num_attention_heads": 2,
            "num_key_value_attention_heads": 2, "out_channels": 4, "cross_attention_dim": 8, "time_proj_dim": 8,
            "global_states_input_dim": 8, "cross_attention_input_dim": 8},
        lambda: {"hidden_states": R(2, 4, 8), "timestep": torch.rand(2), "encoder_hidden_states": R(2, 3, 8),
            "global_hidden_states": R(2, 1, 8)},
    ),
    "PriorTransformer": (
        {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1, "embedding_dim": 8, "num_embeddings": 3},
        lambda: {"hidden_states": R(2, 8), "timestep": TIME, "proj_embedding": R(2, 8), "encoder_hidden_states": R(2,
            3, 8)},
    ),
    "T5FilmDecoder": (
        {"input_dims": 8, "targets_length": 4, "d_model": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8, "d_ff": 16},
        lambda: {"encodings_and_masks": [(R(2, 3, 16), torch.ones(2, 3))], "decoder_input_tokens": R(2, 4, 8),
            "decoder_noise_time": torch.rand(2)},
    ),
}  # fmt: skip


def _build(name: str) -> nn.Module:
    import diffusers

    model: nn.Module = getattr(diffusers, name)(**MODELS[name][0])
    return model


def cases() -> Iterator[Case]:
    import diffusers

    diffusers.utils.logging.set_verbosity_error()
    for name, (_, inputs) in MODELS.items():
        getattr(diffusers, name)  # import it now, once
        yield Case("diffusers", name, lambda name=name: _build(name), inputs)
