"""A GGUF file of `llama` or `qwen2` as a model of float32, and its tokenizer."""
import gguf
import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from reference import Model, Shape

CONTROL, USER_DEFINED = 3, 4
# Qwen2's own words of a text, before they are divided into tokens.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def load(path):
    """The model of a file, and a function that turns text into its tokens."""
    reader = gguf.GGUFReader(path)
    field = lambda name: reader.fields[name].contents()
    arch = field("general.architecture")
    if arch not in ("llama", "qwen2"):
        raise SystemExit(f"{path} is a model of {arch}: only llama and qwen2 are computed here")
    own = lambda name: field(f"{arch}.{name}")
    heads = own("attention.head_count")
    shape = Shape(
        layers=own("block_count"),
        heads=heads,
        kv_heads=own("attention.head_count_kv"),
        dim=own("embedding_length") // heads,
        epsilon=own("attention.layer_norm_rms_epsilon"),
        theta=own("rope.freq_base"),
        interleaved=arch == "llama",
    )
    model = Model(shape, {tensor.name: dequantised(tensor) for tensor in reader.tensors})
    words = tokenizer(field)
    return model, lambda text: np.array(words.encode(text, add_special_tokens=False).ids, dtype=np.int64)


def dequantised(tensor):
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype("f4")
    return np.ascontiguousarray(values.reshape(*reversed(tensor.shape.tolist())))


def tokenizer(field):
    words, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    merges = [tuple(pair.split(" ")) for pair in field("tokenizer.ggml.merges")]
    made = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    made.normalizer = normalizers.NFC()
    digits = pre_tokenizers.Digits(individual_digits=True)
    parts = [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if field("tokenizer.ggml.pre") == "qwen2":
        split = pre_tokenizers.Split(Regex(QWEN2), "isolated")
        parts = [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    made.pre_tokenizer = pre_tokenizers.Sequence(parts)
    special = [word for word, kind in zip(words, kinds) if kind in (CONTROL, USER_DEFINED)]
    made.add_special_tokens([AddedToken(word, normalized=False) for word in special])
    return made
