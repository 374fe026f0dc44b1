"""CTranslate2 on a converted checkpoint. Its tokens are named by their ids (see `convert.py`)."""

import ctranslate2

import ids
from serve import arguments, serve

parser = arguments()
parser.add_argument("--compute-type", required=True)
args = parser.parse_args()

prompts = [[str(token) for token in prompt] for prompt in ids.read(args.ids)]
settings = {"device": "cpu", "compute_type": args.compute_type, "inter_threads": 1, "intra_threads": args.threads}


def translator():
    model = ctranslate2.Translator(str(args.model), **settings)

    def decode(batch):
        answers = model.translate_batch(
            ids.batch(prompts, batch),
            beam_size=1,
            min_decoding_length=args.new_tokens,
            max_decoding_length=args.new_tokens,
        )
        return [[int(token) for token in answer.hypotheses[0]] for answer in answers]

    return model, decode


def generator():
    model = ctranslate2.Generator(str(args.model), **settings)

    # Does not set min_length, because 4.8.5 hung with it. A text that ends early shows up as different ids.
    def decode(batch):
        answers = model.generate_batch(
            ids.batch(prompts, batch),
            beam_size=1,
            max_length=args.new_tokens,
            include_prompt_in_result=False,
        )
        return [answer.sequences_ids[0] for answer in answers]

    return model, decode


model, decode = translator() if (args.model / "encoder-decoder").exists() else generator()
about = {"name": "CTranslate2", "version": ctranslate2.__version__, "dtype": model.compute_type}
serve(about, decode)
