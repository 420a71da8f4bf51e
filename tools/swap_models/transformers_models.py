"""Models of transformers: the base model of each type, and some with a head, all with a tiny configuration."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from checks import Case
from torch import nn

# Sizes by the names that configurations have for them; each configuration takes those that it has.
SIZES: dict[str, int] = dict.fromkeys(
    ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "word_embed_proj_dim", "emb_dim",
     "d_embed", "hidden_dim", "decoder_hidden_size", "conv_dim"), 32,
) | dict.fromkeys(
    ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "dim_feedforward",
     "ffn_hidden_size", "mlp_dim", "decoder_intermediate_size"), 40,
) | dict.fromkeys(
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
     "num_encoder_layers", "num_decoder_layers", "decoder_num_hidden_layers", "encoder_num_hidden_layers"), 2,
) | dict.fromkeys(
    ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads",
     "decoder_num_attention_heads"), 4,
) | dict.fromkeys(("vocab_size", "d_vocab"), 99) | dict.fromkeys(
    ("max_position_embeddings", "n_positions", "n_ctx"), 64,
) | dict.fromkeys(("head_dim", "d_head", "d_kv", "rotary_dim"), 8) | dict.fromkeys(
    ("num_experts", "num_local_experts", "n_routed_experts"), 4,
) | {
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_key_value_heads": 2, "d_inner": 64,
    "type_vocab_size": 2, "image_size": 32, "patch_size": 8, "num_labels": 3, "num_experts_per_tok": 2, "top_k": 2,
    "num_queries": 5, "projection_dim": 16, "attention_window": 8,
}  # fmt: skip

BASES = """
afmoe aimv2 albert altclip apertus bart beit bert bert-generation big_bird bigbird_pegasus biogpt bitnet blenderbot
blip bloom canine clip clipseg cohere2 convbert cpmant ctrl data2vec-vision deberta deberta-v2 deepseek_v4 deit dinov2
dinov3_vit distilbert doge dpr dpt electra ernie4_5_moe falcon falcon_mamba flaubert flava fnet focalnet fsmt funnel
gemma gemma2 gemma3_text git glm4 glm4_moe glpn gpt2 gpt_bigcode gpt_neo gpt_neox granite_speech groupvit hubert ibert
imagegpt internvl_vision jetmoe kosmos-2.5 layoutlm led lfm2 llama llama4_text longformer longt5 m2m_100 mamba marian
markuplm megatron-bert mimo_v2_flash mistral mlcd mobilebert mobilenet_v1 mobilenet_v2 mobilevit modernbert
modernbert-decoder molmo2_text moonshine mpnet mpt mra mvp nanochat nemotron_asr_streaming_encoder nemotron_h nllb-moe
nystromformer olmo_hybrid openai-gpt openai_privacy_filter opt owlvit parakeet_ctc pegasus pegasus_x persimmon phi
phi3 pixtral prophetnet pvt_v2 qwen2 qwen2_moe qwen3 qwen3_5_text qwen3_moe qwen3_next rembert roberta roformer rwkv
sam3_vision_model sam_vision_model segformer sew sew-d siglip_vision_model speech_to_text splinter stablelm starcoder2
swiftformer switch_transformers t5 tapas unispeech-sat vilt visual_bert vit vit_mae vitdet wav2vec2 wav2vec2-conformer
wavlm xglm xlm xlm-roberta-xl xlnet yolos yoso zaya
"""

SIXTEEN = {"intermediate_size": 64, "moe_intermediate_size": 16}  # experts' weights are multiplied 16 bytes at a time
CNN = {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}

# More types, with what their configurations need beside the sizes.
TUNED: dict[str, dict[str, Any]] = {
    "aria_text": SIXTEEN,
    "bit": {"embedding_size": 8, "hidden_sizes": [32, 32, 32, 32], "depths": [1, 1, 1, 1], "num_groups": 4},
    "codegen": {"rotary_dim": 4},
    "convnext": {"num_stages": 4, "patch_size": 4, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
    "convnextv2": {"num_stages": 4, "patch_size": 4, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
    "dinov3_convnext": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320},
    "flex_olmo": SIXTEEN,
    "gpt_oss": SIXTEEN,
    "gptj": {"rotary_dim": 4},
    "granitemoe": SIXTEEN,
    "granitemoeshared": SIXTEEN,
    "hiera": {"embed_dim": 8, "depths": [1, 1, 1, 1], "image_size": [64, 64]},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 2, "state_size": 8},
    "minimax": SIXTEEN,
    "minimax_m2": SIXTEEN,
    "mixtral": SIXTEEN,
    "mobilevitv2": {"patch_size": 2, "image_size": 64},
    "olmoe": SIXTEEN,
    "phimoe": SIXTEEN,
    "poolformer": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
    "pvt": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]},
    "regnet": CNN,
    "resnet": CNN,
    "squeezebert": {"q_groups": 1, "k_groups": 1, "v_groups": 1, "post_attention_groups": 1, "intermediate_groups": 1,
                    "output_groups": 1},
    "swin": {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "patch_size": 4, "window_size": 4},
    "swinv2": {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "patch_size": 4, "window_size": 4},
    "donut-swin": {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "patch_size": 4, "window_size": 4},
    "swin2sr": {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "patch_size": 1, "window_size": 4},
    "timesformer": {"num_frames": 2},
    "videomae": {"num_frames": 2, "tubelet_size": 2},
    "vivit": {"num_frames": 2, "tubelet_size": [2, 8, 8]},
    "whisper": {"max_source_positions": 40, "num_mel_bins": 16},
    "wav2vec2-bert": {"feature_projection_input_dim": 80, "output_hidden_size": 32},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
}  # fmt: skip

# Models with a head: the class, and the type of its configuration.
HEADS = {
    "AlbertForPreTraining": "albert",
    "BartForConditionalGeneration": "bart",
    "BertForPreTraining": "bert",
    "BertForSequenceClassification": "bert",
    "CanineForTokenClassification": "canine",
    "DebertaV2ForMaskedLM": "deberta-v2",
    "DistilBertForMaskedLM": "distilbert",
    "DistilBertForSequenceClassification": "distilbert",
    "ElectraForPreTraining": "electra",
    "ElectraForSequenceClassification": "electra",
    "FlaubertForSequenceClassification": "flaubert",
    "FunnelForSequenceClassification": "funnel",
    "GPT2DoubleHeadsModel": "gpt2",
    "Gemma2ForCausalLM": "gemma2",
    "GLPNForDepthEstimation": "glpn",
    "LEDForConditionalGeneration": "led",
    "LlamaForCausalLM": "llama",
    "LongformerForSequenceClassification": "longformer",
    "MambaForCausalLM": "mamba",
    "MobileBertForPreTraining": "mobilebert",
    "MobileViTForSemanticSegmentation": "mobilevit",
    "ModernBertForMaskedLM": "modernbert",
    "MPNetForSequenceClassification": "mpnet",
    "NystromformerForSequenceClassification": "nystromformer",
    "OPTForCausalLM": "opt",
    "RemBertForMaskedLM": "rembert",
    "RobertaForSequenceClassification": "roberta",
    "RoFormerForSequenceClassification": "roformer",
    "SegformerForSemanticSegmentation": "segformer",
    "SwitchTransformersForConditionalGeneration": "switch_transformers",
    "T5ForConditionalGeneration": "t5",
    "ViTForMaskedImageModeling": "vit",
    "ViTMAEForPreTraining": "vit_mae",
    "ViltForQuestionAnswering": "vilt",
    "Wav2Vec2ForSequenceClassification": "wav2vec2",
    "WavLMForXVector": "wavlm",
    "XLMForSequenceClassification": "xlm",
    "XLNetForSequenceClassification": "xlnet",
    "YolosForObjectDetection": "yolos",
    "YosoForSequenceClassification": "yoso",
}


def shrink(config: Any, options: dict[str, Any]) -> Any:
    """Make a configuration tiny, with those inside it."""
    from transformers import PretrainedConfig

    for name, size in SIZES.items():
        value = getattr(config, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            with suppress(AttributeError, NotImplementedError):  # it follows from other sizes
                setattr(config, name, size)
    for name, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            shrink(value, {})
        if name.endswith("token_id") and isinstance(value, int):
            setattr(config, name, min(value, 3))
    for name, value in options.items():
        setattr(config, name, value)
    config.use_cache = config.apply_spec_augment = False
    return config


def build(kind: str, head: str = "") -> nn.Module:
    """Build the base model of a type, or the model with a head."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    config = shrink(transformers.CONFIG_MAPPING[kind](), TUNED.get(kind, {}))
    made = getattr(transformers, head) if head else MODEL_MAPPING[type(config)]
    model: nn.Module = (made[0] if isinstance(made, tuple) else made)(config)
    return model


def inputs(kind: str, head: str = "") -> dict[str, Any]:
    """Make the inputs that a model's forward names."""
    model = build(kind, head)
    names, config = inspect.signature(model.forward).parameters, model.config
    frames = getattr(config, "num_frames", 0) if kind in ("timesformer", "videomae", "vivit") else 0
    size = getattr(config, "image_size", 32)
    size = (size if isinstance(size, int) else size[0]) if kind in TUNED else 32
    ids = torch.randint(4, 90, (2, 16))
    made: dict[str, Any] = {
        "input_ids": ids,
        "pixel_values": torch.randn(2, *([frames] if frames else []), 3, size, size),
        "decoder_input_ids": ids,
    }
    if model.main_input_name == "input_values":
        made["input_values"] = torch.randn(2, 8000 if head == "WavLMForXVector" else 2000)
    if model.main_input_name == "input_features":
        made["input_features"] = torch.randn(2, 16, 80)
    return {name: value for name, value in made.items() if name in names}


def cases() -> Iterator[Case]:
    import transformers

    transformers.logging.set_verbosity_error()
    for kind in [*BASES.split(), *TUNED]:
        yield Case("transformers", kind, lambda kind=kind: build(kind), lambda kind=kind: inputs(kind))
    for head, kind in HEADS.items():
        make, given = (lambda f=f, head=head, kind=kind: f(kind, head) for f in (build, inputs))
        yield Case("transformers", head, make, given)
