"""Shapes of published models."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    architecture: str
    layers: int
    d_model: int
    d_ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rope_theta: float
    context: int
    tied: bool

    @property
    def layer_weights(self):
        """Weights that multiply a token's row in all layers."""
        attention = self.d_model * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.d_model * self.d_ff)

    @property
    def weights(self):
        """Those and the output matrix's: what decoding a token reads."""
        return self.layer_weights + self.vocab * self.d_model


SHAPES = {
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, 1e6, 40960, True),
    "qwen3-1.7b": Shape("qwen3", 28, 2048, 6144, 16, 8, 128, 151936, 1e6, 40960, True),
    "qwen3-4b": Shape("qwen3", 36, 2560, 9728, 32, 8, 128, 151936, 1e6, 40960, True),
    "llama-3.2-1b": Shape("llama", 16, 2048, 8192, 32, 8, 64, 128256, 5e5, 131072, True),
    "qwen3-tiny": Shape("qwen3", 4, 256, 768, 4, 2, 64, 151936, 1e6, 4096, True),
}
