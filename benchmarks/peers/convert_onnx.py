"""Exports an encoder-decoder for ONNX Runtime and quantizes it: int8 weights per channel, dynamic activations."""

import argparse
import functools
from pathlib import Path

import torch

# The exporter that optimum was written for; since 2.9, torch defaults to a different one.
torch.onnx.export = functools.partial(torch.onnx.export, dynamo=False)

from optimum.onnxruntime import ORTModelForSeq2SeqLM, ORTQuantizer  # noqa: E402
from optimum.onnxruntime.configuration import AutoQuantizationConfig  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("model", type=Path)
parser.add_argument("converted", type=Path)
args = parser.parse_args()
ORTModelForSeq2SeqLM.from_pretrained(args.model, export=True, use_merged=False).save_pretrained(args.converted)
for part in ["encoder_model", "decoder_model", "decoder_with_past_model"]:
    quantizer = ORTQuantizer.from_pretrained(args.converted, file_name=f"{part}.onnx")
    scheme = AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=True)
    quantizer.quantize(save_dir=args.converted, quantization_config=scheme)
    (args.converted / f"{part}.onnx").unlink()
