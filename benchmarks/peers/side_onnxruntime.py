"""ONNX Runtime, through Hugging Face's optimum, on a checkpoint that `convert_onnx.py` exported."""

import onnxruntime
import optimum.version
import torch
from optimum.onnxruntime import ORTModelForSeq2SeqLM

import ids
from generate import decoder
from serve import arguments, serve

args = arguments().parse_args()

torch.set_num_threads(args.threads)
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = args.threads
model = ORTModelForSeq2SeqLM.from_pretrained(
    args.model,
    encoder_file_name="encoder_model_quantized.onnx",
    decoder_file_name="decoder_model_quantized.onnx",
    decoder_with_past_file_name="decoder_with_past_model_quantized.onnx",
    use_merged=False,
    session_options=options,
)
about = {"name": "ONNX Runtime", "version": onnxruntime.__version__, "optimum": optimum.version.__version__, "dtype": "int8"}
serve(about, decoder(model, ids.read(args.ids), args.new_tokens))
