"""vLLM's offline engine on an unconverted decoder-only checkpoint, with its CPU backend."""

import os
import sys

import ids
from serve import arguments, serve


def main():
    parser = arguments()
    parser.add_argument("--dtype", required=True)
    args = parser.parse_args()

    os.environ |= {"OMP_NUM_THREADS": str(args.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "2"}
    # Its engine prints on the standard output, which the protocol has to itself.
    protocol = os.dup(1)
    os.dup2(2, 1)
    import vllm

    prompts = [vllm.TokensPrompt(prompt_token_ids=prompt) for prompt in ids.read(args.ids)]
    model = vllm.LLM(str(args.model), dtype=args.dtype, enable_prefix_caching=False, skip_tokenizer_init=True)

    def decode(batch, tokens=args.new_tokens):
        parameters = vllm.SamplingParams(temperature=0, min_tokens=tokens, max_tokens=tokens, ignore_eos=True, detokenize=False)
        answers = model.generate(ids.batch(prompts, batch), parameters, use_tqdm=False)
        return [list(answer.outputs[0].token_ids) for answer in answers]

    sys.stdout = os.fdopen(protocol, "w")
    serve({"name": "vLLM", "version": vllm.__version__, "dtype": args.dtype}, decode, lambda batch: decode(batch, 1))


# Its engine is a process that imports this file again.
if __name__ == "__main__":
    main()
