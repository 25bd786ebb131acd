"""What can be loaded of a model without torch: configuration and text. Weights are in ``weights``."""

from __future__ import annotations

from txdecode.kernels.models.folder_model import folder_config
from txdecode.kernels.models.folder_text import folder_text
from txdecode.kernels.models.gguf_model import gguf_config
from txdecode.kernels.models.gguf_text import gguf_text
from txdecode.kernels.models.hybrid_config import ModelConfig
from txdecode.kernels.models.source import ModelSource
from txdecode.kernels.models.text_assets import TextAssets


def load_config(source: ModelSource) -> ModelConfig:
    """The configuration. Raises subclasses of ``ModelError``."""
    if source.kind == "gguf":
        return gguf_config(source.gguf)
    return folder_config(source.path)


def load_text(source: ModelSource) -> TextAssets:
    """Tokenizer, chat template, end tokens, sampling defaults. Raises subclasses of ``ModelError``."""
    if source.kind == "gguf":
        return gguf_text(source.gguf)
    return folder_text(source.path)
