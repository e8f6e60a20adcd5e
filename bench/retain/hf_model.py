"""A GGUF file of a Qwen3 model as a Hugging Face directory that reads the same numbers, and loading either."""
import json
import pathlib

import torch

# Names of a block's tensors in GGUF, and what Hugging Face calls them.
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def directory(source, scratch):
    """`source` if it is a Hugging Face directory; a GGUF file is converted into `scratch`, its weights in f32.

    The tokenizer of a GGUF file is the `tokenizer.json` beside it.
    """
    source = pathlib.Path(source)
    if source.is_dir():
        return source
    import gguf
    from safetensors.torch import save_file

    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    if arch != "qwen3":
        raise SystemExit(f"{source} is a model of {arch}: give a Hugging Face directory, only qwen3 is converted")
    scratch = pathlib.Path(scratch)
    scratch.mkdir(parents=True, exist_ok=True)
    tensors = {hf_name(t.name): dequantised(t) for t in reader.tensors}
    save_file(tensors, scratch / "model.safetensors", metadata={"format": "pt"})
    token = {k: reader.fields[f"tokenizer.ggml.{k}_token_id"].contents() for k in ("bos", "eos")}
    (scratch / "config.json").write_text(json.dumps(config(reader, tensors, token), indent=1))
    (scratch / "tokenizer.json").write_bytes((source.parent / "tokenizer.json").read_bytes())
    template = reader.fields["tokenizer.chat_template"].contents()
    words = dict(tokenizer_class="PreTrainedTokenizerFast", clean_up_tokenization_spaces=False, chat_template=template)
    (scratch / "tokenizer_config.json").write_text(json.dumps(words))
    return scratch


def hf_name(name):
    parts = name.removesuffix(".weight").split(".")
    inner = f"model.layers.{parts[1]}.{BLOCK[parts[2]]}" if parts[0] == "blk" else OUTER[parts[0]]
    return inner + ".weight"


def dequantised(tensor):
    import gguf

    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return torch.from_numpy(values.astype("float32")).reshape(*reversed(tensor.shape.tolist())).contiguous()


def config(reader, tensors, token):
    key = lambda name: reader.fields["qwen3." + name].contents()
    theta = float(key("rope.freq_base"))
    return dict(
        architectures=["Qwen3ForCausalLM"],
        model_type="qwen3",
        vocab_size=tensors["model.embed_tokens.weight"].shape[0],
        hidden_size=key("embedding_length"),
        intermediate_size=key("feed_forward_length"),
        num_hidden_layers=key("block_count"),
        num_attention_heads=key("attention.head_count"),
        num_key_value_heads=key("attention.head_count_kv"),
        head_dim=key("attention.key_length"),
        max_position_embeddings=key("context_length"),
        rms_norm_eps=float(key("attention.layer_norm_rms_epsilon")),
        rope_parameters=dict(rope_type="default", rope_theta=theta),
        rope_theta=theta,
        hidden_act="silu",
        attention_bias=False,
        tie_word_embeddings="lm_head.weight" not in tensors,
        bos_token_id=token["bos"],
        eos_token_id=token["eos"],
        dtype="float32",
    )


def load(folder):
    """The model and its tokenizer, in f32 on the CPU."""
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    for layer in model.model.layers:
        layer.self_attn.rotary_emb = model.model.rotary_emb
    return model, Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
