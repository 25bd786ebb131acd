"""Another engine in a process of its own: Hugging Face transformers or llama.cpp, a prompt a line.

Run as a file by the interpreter that has the engine, which need not have txdecode: only the standard library is
imported before the engine is. The first line out is ``{"ready"}``, ``{"missing"}`` with a package, or ``{"error"}``.
Then every line in is ``{"id", "max_tokens"}`` with ``"ids"`` (token ids of the prompt) or ``"messages"``, or both,
and gets one line back: what was generated, greedily at batch 1, and the time of the run less that of a run of one
token.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

PEERS = ("hf-bf16", "hf-fp32", "llama", "llama-bf16")
CONTEXT = 8192


def load_hf(model: Path, dtype: str) -> tuple[Any, Any]:
    """torch and the model of transformers from a folder or a GGUF file, in ``dtype``. Nothing is downloaded. Raises
    ``ImportError`` where a package is missing."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = getattr(torch, dtype)
    if model.suffix != ".gguf":
        with contextlib.redirect_stderr(io.StringIO()):
            # Its progress bar asks for nobody's leave.
            return torch, AutoModelForCausalLM.from_pretrained(str(model), dtype=kind).eval()
    # transformers says so much later, and less clearly, that this is missing.
    import gguf  # noqa: F401
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    # Its own loader wants the package accelerate for a GGUF file; reading and dequantising are its own all the same.
    made = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(str(model.parent), gguf_file=model.name)
    )
    with contextlib.redirect_stderr(io.StringIO()):
        tensors = load_gguf_checkpoint(str(model), return_tensors=True, model_to_load=made)["tensors"]
    left = made.load_state_dict(tensors, strict=False)
    if left.unexpected_keys or left.missing_keys not in ([], ["lm_head.weight"]):
        raise ValueError(
            f"'{model.name}' does not fill the model: {[*left.missing_keys, *left.unexpected_keys][:3]}"
        )
    made.tie_weights()
    return torch, made.to(kind).eval()


class HuggingFace:
    """``generate`` of transformers, plain or with its prompt lookup."""

    def __init__(self, model: Path, dtype: str, lookup: int, threads: int) -> None:
        self._path = model
        self._tokenizer: Any = None
        self._torch, self._model = load_hf(model, dtype)
        self._torch.set_num_threads(threads)
        self._lookup = {"prompt_lookup_num_tokens": lookup} if lookup else {}

    def encode(self, messages: Sequence[Any]) -> list[int]:
        """Ids by its own reading of the chat template."""
        if self._tokenizer is None:
            # Reading one from a GGUF file takes it a while, and who gives ids needs none.
            from transformers import AutoTokenizer

            gguf = self._path.suffix == ".gguf"
            where = {"gguf_file": self._path.name} if gguf else {}
            self._tokenizer = AutoTokenizer.from_pretrained(
                str(self._path.parent if gguf else self._path), **where
            )
        made = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        return [int(token) for token in made["input_ids"]]

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        """At most ``count`` ids after ``ids``."""
        known = self._torch.tensor([ids])
        with self._torch.inference_mode():
            out = self._model.generate(
                input_ids=known,
                attention_mask=self._torch.ones_like(known),
                do_sample=False,
                max_new_tokens=count,
                **self._lookup,
            )
        return [int(token) for token in out[0, len(ids) :]]


class LlamaCpp:
    """llama.cpp through llama-cpp-python, plain or with its prompt lookup."""

    def __init__(self, model: Path, lookup: int, threads: int) -> None:
        from llama_cpp import Llama
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        draft = LlamaPromptLookupDecoding(num_pred_tokens=lookup) if lookup else None
        self._model = Llama(
            model_path=str(model),
            n_ctx=CONTEXT,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
            draft_model=draft,
            logits_all=draft is not None,
        )

    def encode(self, messages: Sequence[Any]) -> list[int]:
        """Ids by its own reading of the chat template: what it says it was given."""
        self._model.reset()
        made = self._model.create_chat_completion(list(messages), max_tokens=1, temperature=0.0)
        return [0] * int(made["usage"]["prompt_tokens"])

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        """At most ``count`` ids after ``ids``; an end-of-generation token is not one of them."""
        self._model.reset()
        end = self._model.token_eos()
        found: list[int] = []
        for token in self._model.generate(list(ids), temp=0.0, top_k=1, repeat_penalty=1.0):
            if token == end:
                break
            found.append(int(token))
            if len(found) == count:
                break
        return found


def to_bf16(model: Path, folder: Path) -> Path:
    """The same weights in bf16, converted by llama.cpp itself and kept in ``folder``."""
    import llama_cpp

    target = folder / f"{model.stem}-bf16.gguf"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".part")
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_BF16
    options.allow_requantize = True
    failed = llama_cpp.llama_model_quantize(str(model).encode(), str(unfinished).encode(), options)
    if failed:
        raise RuntimeError(f"llama.cpp could not convert '{model.name}' to bf16 (code {failed})")
    unfinished.replace(target)
    return target


def open_engine(peer: str, model: Path, lookup: int, threads: int, folder: Path) -> Any:
    """The engine of a name in ``PEERS``. Raises ``ImportError`` where its package is missing."""
    if peer.startswith("hf-"):
        return HuggingFace(model, {"hf-bf16": "bfloat16", "hf-fp32": "float32"}[peer], lookup, threads)
    return LlamaCpp(to_bf16(model, folder) if peer == "llama-bf16" else model, lookup, threads)


def answer(engine: Any, asked: dict[str, Any], clock: Callable[[], float]) -> dict[str, Any]:
    """What one line gets back. ``own_prompt_tokens`` is how long the peer's own reading of the messages is."""
    own = engine.encode(asked["messages"]) if asked.get("messages") else None
    ids = asked.get("ids") or own
    if not ids:
        raise ValueError("a prompt needs ids or messages")

    def timed(count: int) -> tuple[float, list[int]]:
        start = clock()
        made = engine.generate(ids, count)
        return clock() - start, made

    timed(1)
    first, _ = timed(1)
    spent, made = timed(int(asked["max_tokens"]))
    decode_s = spent - first
    # The first token comes with the prompt.
    return {
        "id": asked["id"],
        "prompt_tokens": len(ids),
        "own_prompt_tokens": None if own is None else len(own),
        "new_tokens": len(made),
        "decode_s": decode_s,
        "tok_s": (len(made) - 1) / decode_s if len(made) > 1 and decode_s > 0 else None,
        "ids": made,
        "output": digest(made),
    }


def digest(ids: Sequence[int]) -> str:
    """A short name of a text."""
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()[:16]


def serve(open_it: Callable[[], Any], lines: IO[str], out: IO[str], clock: Callable[[], float]) -> None:
    """Open the engine, then answer line by line until the input ends."""

    def say(data: dict[str, Any]) -> None:
        out.write(json.dumps(data) + "\n")
        out.flush()

    try:
        engine = open_it()
    except ImportError as error:
        say({"missing": error.name or str(error)})
        return
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"ready": True})
    for line in lines:
        if not line.strip():
            continue
        asked: dict[str, Any] = {}
        try:
            asked = json.loads(line)
            say(answer(engine, asked, clock))
        except Exception as error:
            say({"id": asked.get("id"), "error": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Serve one peer on standard input and output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", required=True, choices=PEERS)
    parser.add_argument("--model", required=True, type=Path, help="a .gguf file, or a folder (hf only)")
    parser.add_argument("--lookup", type=int, default=0)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--folder", type=Path, default=Path("build/peers"), help="where converted weights are kept"
    )
    args = parser.parse_args()
    # Libraries print on standard output as they like; the answers get a descriptor of their own.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(
        lambda: open_engine(args.peer, args.model, args.lookup, args.threads, args.folder),
        sys.stdin,
        out,
        time.perf_counter,
    )


if __name__ == "__main__":
    main()
