"""Converts a checkpoint for CTranslate2. Every token is named by its id, so that prompts need no tokenizer."""

import argparse
from pathlib import Path

import torch
import transformers
from ctranslate2.converters import TransformersConverter


class Ids:
    """The part of a tokenizer that a converter needs: 0 is padding and begins a text, 1 ends it, 2 is unknown."""

    pad_token, bos_token, eos_token, unk_token = "0", "0", "1", "2"

    def __init__(self, vocabulary: int):
        self.vocabulary = vocabulary

    def get_vocab(self):
        return {str(id): id for id in range(self.vocabulary)}

    def convert_ids_to_tokens(self, id):
        return str(id)


class Converter(TransformersConverter):
    def load_model(self, model_class, path, **kwargs):
        return model_class.from_pretrained(path, torch_dtype=torch.float32)

    def load_tokenizer(self, tokenizer_class, path, **kwargs):
        return Ids(transformers.AutoConfig.from_pretrained(path).vocab_size)


parser = argparse.ArgumentParser()
parser.add_argument("model", type=Path)
parser.add_argument("converted", type=Path)
args = parser.parse_args()
Converter(str(args.model)).convert(str(args.converted), force=True)
if transformers.AutoConfig.from_pretrained(args.model).is_encoder_decoder:
    (args.converted / "encoder-decoder").touch()
