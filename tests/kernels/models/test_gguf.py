"""GGUF files: equal to the model that they were made from, or refused with a typed error."""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader, GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from txdecode.kernels.models.config import RopeScaling
from txdecode.kernels.models.describe import describe_model
from txdecode.kernels.models.errors import (
    DamagedModel,
    ModelError,
    TensorMismatch,
    UnsupportedArchitecture,
    UnsupportedFeature,
)
from txdecode.kernels.models.gguf_file import read_gguf
from txdecode.kernels.models.loading import load_config
from txdecode.kernels.models.rope import inverse_frequencies
from txdecode.kernels.models.source import ModelSource, resolve
from txdecode.kernels.models.weights import load_weights

ARCHITECTURES = ("llama", "qwen2", "qwen3")
MakeGguf = Callable[..., Path]


def their_tensors(path: Path, tiny_config: Any) -> dict[str, torch.Tensor]:
    """What transformers reads from the file, in fp32, under its own names."""
    from transformers import AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(tiny_config)
    loaded = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=empty)
    return {name: tensor.float() for name, tensor in loaded["tensors"].items()}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_same_model_as_folder_and_as_file(
    folders: dict[str, Any], make_gguf: MakeGguf, tmp_path: Path, architecture: str
) -> None:
    tiny = folders[architecture]
    path = make_gguf(tmp_path / "tiny.gguf", tiny)
    ours = load_weights(resolve(str(path)), torch.float32)
    folder = load_weights(resolve(str(tiny.folder)), torch.float32)
    assert ours.config.rms_eps == pytest.approx(folder.config.rms_eps, rel=1e-6)
    assert {**vars_of(ours.config), "rms_eps": 0} == {**vars_of(folder.config), "rms_eps": 0}
    assert list(ours.tensors) == list(folder.tensors)
    for name, tensor in folder.tensors.items():
        assert torch.equal(ours.tensors[name], tensor), name


def vars_of(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in type(config).__slots__ if name != "__weakref__"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1", "Q4_0", "Q5_1"])
def test_quantised_tensors_equal_those_of_transformers(
    make_folder: Callable[..., Any], make_gguf: MakeGguf, tmp_path: Path, architecture: str, kind: str
) -> None:
    tiny = make_folder(architecture)
    path = make_gguf(tmp_path / "tiny.gguf", tiny, kind)
    theirs = their_tensors(path, tiny.model.config)
    ours = load_weights(resolve(str(path)), torch.float32)
    assert set(theirs) == set(ours.tensors)
    for name, tensor in theirs.items():
        assert torch.equal(ours.tensors[name], tensor), name
    rounded = load_weights(resolve(str(path)), torch.bfloat16)
    assert rounded.digest == ours.digest
    assert all(torch.equal(rounded.tensors[name], ours.tensors[name].bfloat16()) for name in theirs)


def test_the_header_equals_what_the_library_reads(
    folders: dict[str, Any], make_gguf: MakeGguf, tmp_path: Path
) -> None:
    path = make_gguf(tmp_path / "tiny.gguf", folders["llama"], "Q8_0")
    theirs = GGUFReader(str(path))
    ours = read_gguf(path)
    fields = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == fields
    table = {
        t.name: (t.tensor_type.name, tuple(reversed(t.shape.tolist())), int(t.n_bytes), t.data_offset)
        for t in theirs.tensors
    }
    assert {t.name: (t.dtype, t.shape, t.nbytes, t.offset) for t in ours.tensors.values()} == table


def test_a_file_cut_anywhere_is_damaged(folders: dict[str, Any], make_gguf: MakeGguf, tmp_path: Path) -> None:
    path = make_gguf(tmp_path / "tiny.gguf", folders["llama"], "Q8_0")
    whole = path.read_bytes()
    gguf = read_gguf(path)
    data_start = min(tensor.offset for tensor in gguf.tensors.values())
    data_end = max(tensor.offset + tensor.nbytes for tensor in gguf.tensors.values())
    cut = tmp_path / "cut.gguf"
    places = {*range(64), *range(64, data_start, 37), data_start, data_end - 1}
    places.update(range(data_start, data_end, 4999))
    for length in sorted(places):
        cut.write_bytes(whole[:length])
        with pytest.raises(DamagedModel, match=r"cut\.gguf"):
            load_weights(resolve(str(cut)))
    cut.write_bytes(whole[:data_end])
    load_weights(resolve(str(cut)))


@pytest.fixture(scope="module")
def small_file(folders: dict[str, Any], make_gguf: MakeGguf, tmp_path_factory: Any) -> tuple[bytes, int]:
    """A whole file, and the length of its header."""
    path = make_gguf(tmp_path_factory.mktemp("small") / "small.gguf", folders["qwen3"])
    return path.read_bytes(), min(tensor.offset for tensor in read_gguf(path).tensors.values())


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_header_gives_a_typed_error_or_a_description(
    small_file: tuple[bytes, int], tmp_path: Path, data: st.DataObject
) -> None:
    damaged = bytearray(small_file[0])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, small_file[1] - 1))
        damaged[place] = data.draw(st.one_of(st.sampled_from([0, 1, 10, 127, 255]), st.integers(0, 255)))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged)
    with contextlib.suppress(ModelError):
        assert describe_model(ModelSource("damaged", "gguf", path)).kind == "gguf"


def edit_metadata(**values: Any) -> Callable[[GGUFWriter], None]:
    """Metadata of the architecture, with dots spelled as two underscores; overwrites what is there."""

    def edit(writer: GGUFWriter) -> None:
        adders: dict[type, Callable[..., None]] = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            list: writer.add_array,
        }
        for key, value in values.items():
            name = key.replace("__", ".")
            if name.partition(".")[0] not in ("general", "tokenizer", "split"):
                name = f"llama.{name}"
            writer.kv_data[0].pop(name, None)
            if value is not None:
                adders[type(value)](name, value)

    return edit


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"expert_count": 8}, "expert_count"),
        ({"attention__sliding_window": 64}, "sliding_window"),
        ({"logit_scale": 0.5}, "logit_scale"),
        ({"attention__head_count_kv": [2, 4]}, "head_count_kv"),
        ({"attention__value_length": 8}, "value_length"),
        ({"rope__dimension_count": 8}, "dimension_count"),
        ({"rope__scaling__type": "longrope"}, "rope.scaling.type"),
        (
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 2.0,
                "rope__scaling__original_context_length": 64,
                "rope__scaling__attn_factor": 0.5,
            },
            "attn_factor",
        ),
        ({"split__count": 2}, "split.count"),
    ],
)
def test_an_unsupported_variant_is_refused_by_name(
    folders: dict[str, Any], make_gguf: MakeGguf, tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    path = make_gguf(tmp_path / "tiny.gguf", folders["llama"], edit=edit_metadata(**changes))
    with pytest.raises(UnsupportedFeature, match=re.escape(field)):
        load_weights(resolve(str(path)))


@pytest.mark.parametrize(
    "changes",
    [
        {"block_count": None},
        {"block_count": "2"},
        {"block_count": 100_000},
        {"embedding_length": None},
        {"attention__head_count": 3},
        {"attention__key_length": 15, "attention__value_length": 15},
        {"attention__layer_norm_rms_epsilon": 0.0},
        {"rope__freq_base": float("nan")},
        {"general__alignment": 0},
        {"general__architecture": 3},
        {"rope__scaling__type": "linear"},
    ],
)
def test_an_impossible_value_is_damage(
    folders: dict[str, Any], make_gguf: MakeGguf, tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = make_gguf(tmp_path / "tiny.gguf", folders["llama"], edit=edit_metadata(**changes))
    with pytest.raises(DamagedModel):
        load_weights(resolve(str(path)))


def test_another_architecture_is_named_with_the_supported_ones(
    folders: dict[str, Any], make_gguf: MakeGguf, tmp_path: Path
) -> None:
    path = make_gguf(tmp_path / "tiny.gguf", folders["llama"], architecture="gemma3")
    with pytest.raises(UnsupportedArchitecture, match="gemma3") as caught:
        load_weights(resolve(str(path)))
    assert caught.value.supported == ARCHITECTURES


def test_neutral_metadata_and_per_layer_lists_are_accepted(
    folders: dict[str, Any], make_gguf: MakeGguf, tmp_path: Path
) -> None:
    neutral = edit_metadata(
        expert_count=0, attention__head_count_kv=[2, 2], split__count=0, rope__dimension_count=16
    )
    path = make_gguf(tmp_path / "tiny.gguf", folders["llama"], edit=neutral)
    assert load_config(resolve(str(path))).kv_head_count == 2


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope__scaling__type": "none"}, None),
        ({"rope__scale_linear": 4.0}, RopeScaling("linear", factor=4.0)),
        (
            {"rope__scaling__type": "linear", "rope__scaling__factor": 2.0},
            RopeScaling("linear", factor=2.0),
        ),
        (
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 4.0,
                "rope__scaling__original_context_length": 32,
                "rope__scaling__yarn_beta_fast": 16.0,
            },
            RopeScaling("yarn", factor=4.0, original_context=32, beta_fast=16.0),
        ),
    ],
)
def test_rotary_settings(
    folders: dict[str, Any],
    make_gguf: MakeGguf,
    tmp_path: Path,
    changes: dict[str, Any],
    expected: RopeScaling | None,
) -> None:
    path = make_gguf(tmp_path / "tiny.gguf", folders["llama"], edit=edit_metadata(**changes))
    assert load_config(resolve(str(path))).rope_scaling == expected


def with_divisors(values: Any) -> Callable[[GGUFWriter], None]:
    return lambda writer: writer.add_tensor("rope_freqs.weight", np.asarray(values, dtype=np.float32))


def test_stored_divisors_scale_the_frequencies(
    folders: dict[str, Any], make_gguf: MakeGguf, tmp_path: Path
) -> None:
    divisors = [1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    path = make_gguf(tmp_path / "tiny.gguf", folders["llama"], edit=with_divisors(divisors))
    plain = load_config(resolve(str(folders["llama"].folder)))
    scaled = load_weights(resolve(str(path)), torch.float32).config
    expected = [f / d for f, d in zip(inverse_frequencies(plain), divisors, strict=True)]
    assert inverse_frequencies(scaled) == expected


@pytest.mark.parametrize("values", [[1.0] * 7, [1.0] * 7 + [0.0], [1.0] * 7 + [float("nan")]])
def test_impossible_divisors_are_damage(
    folders: dict[str, Any], make_gguf: MakeGguf, tmp_path: Path, values: list[float]
) -> None:
    path = make_gguf(tmp_path / "tiny.gguf", folders["llama"], edit=with_divisors(values))
    with pytest.raises(DamagedModel):
        load_config(resolve(str(path)))


@pytest.mark.parametrize(
    ("name", "replacement", "found"),
    [
        ("model.layers.1.mlp.down_proj.weight", None, None),
        ("model.embed_tokens.weight", None, None),
        ("model.layers.0.self_attn.v_proj.weight", (5, 64), (5, 64)),
        ("model.layers.2.input_layernorm.weight", (64,), (64,)),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    folders: dict[str, Any],
    make_gguf: MakeGguf,
    tmp_path: Path,
    name: str,
    replacement: tuple[int, ...] | None,
    found: tuple[int, ...] | None,
) -> None:
    tensors = dict(folders["qwen2"].state)
    if replacement is None:
        del tensors[name]
    else:
        tensors[name] = torch.ones(*replacement)
    path = make_gguf(tmp_path / "tiny.gguf", folders["qwen2"], tensors=tensors)
    with pytest.raises(TensorMismatch, match=re.escape(name)) as caught:
        load_weights(resolve(str(path)))
    assert (caught.value.tensor, caught.value.found) == (name, found)


def test_a_type_that_cannot_be_expanded_is_refused(
    folders: dict[str, Any], make_gguf: MakeGguf, tmp_path: Path
) -> None:
    def add(writer: GGUFWriter) -> None:
        writer.add_tensor("output_norm.weight", np.ones(64, dtype=np.int8))

    tensors = {name: tensor for name, tensor in folders["llama"].state.items() if name != "model.norm.weight"}
    path = make_gguf(tmp_path / "tiny.gguf", folders["llama"], tensors=tensors, edit=add)
    with pytest.raises(UnsupportedFeature, match="I8"):
        load_weights(resolve(str(path)))


@pytest.mark.parametrize(
    ("place", "value", "error", "words"),
    [
        (0, b"GGML", DamagedModel, "begin with"),
        (4, struct.pack("<I", 1), UnsupportedFeature, "version"),
        (4, struct.pack(">I", 3), UnsupportedFeature, "version"),
        (8, struct.pack("<Q", 1 << 60), DamagedModel, "damaged"),
        (16, struct.pack("<Q", 1 << 60), DamagedModel, "damaged"),
        (24, struct.pack("<Q", 1 << 60), DamagedModel, "truncated"),
    ],
)
def test_bad_headers(
    small_file: tuple[bytes, int], tmp_path: Path, place: int, value: bytes, error: Any, words: str
) -> None:
    damaged = bytearray(small_file[0])
    damaged[place : place + len(value)] = value
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged)
    with pytest.raises(error, match=words):
        read_gguf(path)


def gguf_bytes(
    fields: bytes = b"", field_count: int = 0, tensors: bytes = b"", tensor_count: int = 0
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensor_count, field_count) + fields + tensors


def gguf_string(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_tensor(name: str, shape: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return gguf_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


FLAG = gguf_string("a") + struct.pack("<I?", 7, True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gguf_bytes(FLAG + FLAG, 2), "Duplicate a"),
        (gguf_bytes(gguf_string(b"\xff") + struct.pack("<I?", 7, True), 1), "utf-8"),
        (gguf_bytes(gguf_string("a") + struct.pack("<I", 13), 1), "is not a valid GGUFValueType"),
        (gguf_bytes(gguf_string("a") + struct.pack("<IIQ", 9, 9, 1), 1), "array of arrays"),
        (gguf_bytes(gguf_string("a") + struct.pack("<IIQ", 9, 8, 1 << 62), 1), "4611686018427387904 items"),
        (gguf_bytes(gguf_string("a") + struct.pack("<IIQ", 9, 4, 1 << 62), 1), "4611686018427387904 items"),
        (gguf_bytes(tensors=2 * gguf_tensor("t", [1]) + bytes(96), tensor_count=2), "duplicated tensor"),
        (gguf_bytes(tensors=gguf_tensor("t", []) + bytes(96), tensor_count=1), "0 dimensions"),
        (gguf_bytes(tensors=gguf_tensor("t", [1] * 5) + bytes(96), tensor_count=1), "5 dimensions"),
        (
            gguf_bytes(tensors=gguf_tensor("t", [1], 999) + bytes(96), tensor_count=1),
            "is not a valid GGMLQuant",
        ),
        (gguf_bytes(tensors=gguf_tensor("t", [0]) + bytes(96), tensor_count=1), r"shape \[0\]"),
        (gguf_bytes(tensors=gguf_tensor("t", [31], 8) + bytes(96), tensor_count=1), "Q8_0"),
        (gguf_bytes(tensors=gguf_tensor("t", [64]) + bytes(96), tensor_count=1), "truncated"),
    ],
)
def test_a_header_that_contradicts_itself_is_damage(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(content)
    with pytest.raises(DamagedModel, match=words):
        read_gguf(path)


def test_divisors_are_the_only_scaling_and_in_fp32(
    folders: dict[str, Any], make_gguf: MakeGguf, tmp_path: Path
) -> None:
    def half(writer: GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", np.ones(8, dtype=np.float16))

    def twice(writer: GGUFWriter) -> None:
        with_divisors([1.0] * 8)(writer)
        edit_metadata(rope__scaling__type="linear", rope__scaling__factor=2.0)(writer)

    for edit in (half, twice):
        path = make_gguf(tmp_path / "tiny.gguf", folders["llama"], edit=edit)
        with pytest.raises(UnsupportedFeature, match="rope_freqs"):
            load_config(resolve(str(path)))


def test_names_in_files_cannot_forge_lines_of_output(tmp_path: Path) -> None:
    error = DamagedModel(tmp_path / "x.gguf", "tensor 'a\nrun: rm \x1b[2J' occurs twice")
    assert "\n" not in str(error)
    assert "\x1b" not in str(error)


@pytest.mark.model
def test_smollm2_equals_what_transformers_reads(
    smollm2: ModelSource, as_stored: Callable[..., tuple[str, torch.Tensor]]
) -> None:
    from transformers.integrations.gguf.dequant import dequantize
    from transformers.integrations.gguf.reader import GgufHeader, load_gguf_state_dict

    stored = load_gguf_state_dict(GgufHeader.from_file(str(smollm2.path)))
    weights = load_weights(smollm2, torch.float32)
    assert len(weights.tensors) == len(stored) == 272
    config = weights.config
    # Expanding all layers a second time would take most of the time of this folder's tests.
    between = tuple(f"model.layers.{index}." for index in range(1, 29))
    for name, tensor in weights.tensors.items():
        if name.startswith(between):
            continue
        their_name, ours = as_stored(name, tensor, config.head_count, config.kv_head_count)
        theirs = stored[their_name]
        values = theirs[...] if theirs.ggml_type == 0 else dequantize(theirs[...], theirs.ggml_type)
        assert torch.equal(ours.reshape(-1), values.reshape(-1)), name
    assert (config.hidden_size, config.layer_count, config.head_count) == (576, 30, 9)
    assert (config.kv_head_count, config.head_dim, config.vocab_size) == (3, 64, 49152)
    assert (config.rope_theta, config.context, config.tied_head) == (100_000.0, 8192, True)
