"""Prompts: plugins that supply them, the order they are taken in, and their token ids."""

from sparrow_trainers.data.config import DataConfig
from sparrow_trainers.data.encode import EncodedPrompt, encode_example, prompt_text
from sparrow_trainers.data.order import PromptOrder
from sparrow_trainers.data.prompt_set import PromptSet, load_prompts

__all__ = ["DataConfig", "EncodedPrompt", "PromptOrder", "PromptSet", "encode_example", "load_prompts", "prompt_text"]
