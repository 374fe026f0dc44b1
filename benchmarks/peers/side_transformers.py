"""Hugging Face transformers on an unconverted checkpoint."""

import torch
import transformers

import ids
from generate import decoder
from serve import arguments, serve

parser = arguments()
parser.add_argument("--dtype", required=True)
args = parser.parse_args()

torch.set_num_threads(args.threads)
config = transformers.AutoConfig.from_pretrained(args.model)
kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
model = kind.from_pretrained(args.model, torch_dtype=getattr(torch, args.dtype)).eval()
about = {"name": "transformers", "version": transformers.__version__, "torch": torch.__version__, "dtype": args.dtype}
serve(about, decoder(model, ids.read(args.ids), args.new_tokens))
