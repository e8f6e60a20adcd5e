"""Greedy continuations and logits from llama.cpp, through the low-level calls of llama-cpp-python."""
import ctypes
import sys

import llama_cpp
import numpy as np

F32, F16 = 0, 1
# Tokens of a step.
STEP = 512

ERROR = 4


@llama_cpp.llama_log_callback
def errors_only(level, text, _data):
    if level == ERROR:
        sys.stderr.write(text.decode("utf-8", "replace"))


llama_cpp.llama_log_set(errors_only, ctypes.c_void_p(0))
llama_cpp.llama_backend_init()


class Peer:
    """One model, one context, one sequence."""

    def __init__(self, path, kv_type, context=1024, flash=False):
        params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, f"llama.cpp does not load {path}"
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_len = llama_cpp.llama_vocab_n_tokens(self.vocab)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = params.n_ubatch = STEP
        params.n_threads = params.n_threads_batch = 2
        params.type_k = params.type_v = kv_type
        params.flash_attn_type = 1 if flash else 0
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        assert self.context, f"llama.cpp makes no context for {path}"

    def close(self):
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def restart(self):
        """Forgets the sequence."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def feed(self, tokens):
        """Appends tokens and returns the logits after the last, [vocab]."""
        for start in range(0, len(tokens), STEP):
            piece = tokens[start : start + STEP]
            ids = (llama_cpp.llama_token * len(piece))(*piece)
            status = llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(ids, len(piece)))
            assert status == 0, f"llama_decode gave {status}"
        row = llama_cpp.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(row, (self.vocab_len,)).copy()

    def rows(self, tokens, wanted=None):
        """Starts anew and yields each position, or those that are wanted, with the logits behind it, [vocab]."""
        self.restart()
        batch = llama_cpp.llama_batch_init(STEP, 0, 1)
        for start in range(0, len(tokens), STEP):
            piece = tokens[start : start + STEP]
            batch.n_tokens = len(piece)
            for i, token in enumerate(piece):
                batch.token[i], batch.pos[i] = token, start + i
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
                batch.logits[i] = wanted is None or start + i in wanted
            status = llama_cpp.llama_decode(self.context, batch)
            assert status == 0, f"llama_decode gave {status}"
            for i in range(len(piece)):
                if batch.logits[i]:
                    row = llama_cpp.llama_get_logits_ith(self.context, i)
                    yield start + i, np.ctypeslib.as_array(row, (self.vocab_len,)).copy()
        llama_cpp.llama_batch_free(batch)

    def greedy(self, prompt, steps, stop_at_end=False):
        """Yields (token, logits it was chosen from), the likeliest each time."""
        self.restart()
        logits = self.feed(prompt)
        for _ in range(steps):
            token = int(logits.argmax())
            if stop_at_end and llama_cpp.llama_vocab_is_eog(self.vocab, token):
                return
            yield token, logits
            logits = self.feed([token])

    def tokenize(self, text, special=True):
        raw = text.encode()
        ids = (llama_cpp.llama_token * (len(raw) + 8))()
        n = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), ids, len(ids), False, special)
        assert n >= 0, "the buffer holds a token per byte"
        return list(ids[:n])

    def text(self, tokens):
        """The text of tokens, special ones left out."""
        out = b""
        for token in tokens:
            piece = ctypes.create_string_buffer(256)
            n = llama_cpp.llama_token_to_piece(self.vocab, token, piece, 256, 0, False)
            out += piece.raw[: max(n, 0)]
        return out.decode("utf-8", "replace")


def quantize(source, target, file_type):
    """Every matrix of the file in one type, as `llama-quantize --pure` does."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.pure, params.nthread = file_type, True, 2
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params))
    assert status == 0, f"llama_model_quantize gave {status} for {target}"
