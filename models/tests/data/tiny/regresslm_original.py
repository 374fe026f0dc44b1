"""Makes a tiny random RegressLM with the encoder of a T5Gemma 2, as the original code computes it in float64.

    PYTHONPATH=DIRECTORY_OF_REGRESS_LM python regresslm_original.py

Needs the original code (google-deepmind/regress-lm f85730d) and transformers 5.23. Like the published checkpoint, the model is
made by `RegressLM.from_t5gemma_encoder` from a T5Gemma 2, whose vocabulary is resized to that of its tokenizer. The golden
files are those of regresslm_torch.py, with logits of the same weights with `all_global_attn` in addition.
"""

import json
import shutil
import tempfile
from pathlib import Path

import torch
import transformers
from regress_lm import rlm, tokenizers, vocabs

import regresslm_torch
from regresslm_torch import NORMALIZED

HERE = Path(__file__).parent
NAME = "regresslm-pt-gemma2"
INPUT_MAX = 20
# The original's form of NORMALIZED.
VOCAB = vocabs.DecoderVocab(tokenizers.NormalizedTokenizer(base=3, length=3))
PROMPTS = [("short", "a"), ("other", "3 pears are 4"), ("cut", "Work out 12 - 3 + 45; Work out 9"), ("image", "a<end_of_image> 7")]


def base(folder):
    """Writes a T5Gemma 2 with a larger vocabulary than its tokenizer's. The original recognises the version by the name."""
    model_folder = Path(folder) / "t5gemma-2-tiny"
    stored = json.loads((HERE / "t5gemma2/config.json").read_text())
    for part in [stored, stored["encoder"]["text_config"], stored["decoder"]]:
        part["vocab_size"] = 330
    del stored["architectures"]
    config = transformers.T5Gemma2Config(**{key: value for key, value in stored.items() if key != "model_type"})
    torch.manual_seed(6)
    transformers.T5Gemma2ForConditionalGeneration(config).save_pretrained(model_folder)
    shutil.copy(HERE / "t5gemma2/tokenizer.json", model_folder)
    names = json.loads((HERE / "t5gemma2/tokenizer_config.json").read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    (model_folder / "tokenizer_config.json").write_text(json.dumps(names))
    return model_folder


def original(model_folder, all_global_attn):
    torch.manual_seed(7)
    made = rlm.RegressLM.from_t5gemma_encoder(
        model_name=str(model_folder), decoder_vocab=VOCAB, max_input_len=INPUT_MAX, num_decoder_layers=2,
        all_global_attn=all_global_attn)
    return made.model


class Answers:
    """Logits of the original, by the interface that regresslm_torch.py enumerates."""

    def __init__(self, model):
        self.model = model

    @torch.no_grad()
    def logits(self, prompt, answers):
        source = torch.tensor([prompt + [self.model.cfg.encoder_vocab.pad_id] * (INPUT_MAX - len(prompt))] * len(answers))
        target = torch.tensor([[0, *answer] for answer in answers])
        return self.model.encoder_decoder(source, target).numpy()


def main():
    with tempfile.TemporaryDirectory() as folder:
        model_folder = base(folder)
        model = original(model_folder, False)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, 0.0, 0.25 if parameter.dim() > 1 else 0.1)
        for part in model.modules():
            if isinstance(part, torch.nn.LayerNorm):
                part.weight.data += 1.0
        global_model = original(model_folder, True)
        global_model.load_state_dict(model.state_dict())
        encoder_config = model.encoder_decoder.encoder.encoder.config.to_dict()
        names = [VOCAB.itos[id] for id in range(len(VOCAB))]
        assert names == NORMALIZED["tokens"], names
    target = HERE / NAME
    (target / "golden").mkdir(parents=True, exist_ok=True)
    torch.save({"model_state": model.state_dict(), "global_step": 7}, target / "checkpoint.pt")
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(HERE / "t5gemma2" / name, target)
    vocabulary = model.cfg.encoder_vocab
    width = model.encoder_decoder.encoder.hidden_dim
    config = {key: encoder_config[key] for key in ["model_type", "eoi_token_index", "text_config"]}
    tokens = NORMALIZED["tokens"]
    (target / "ntl.json").write_text(json.dumps({
        "format": "regresslm-pt", "version": 1, "checkpoint": "checkpoint.pt",
        "encoder": {"type": "t5gemma2", "vocab_size": len(vocabulary), "max_input_len": INPUT_MAX, "config": config},
        "encoder_tokenizer": {"kind": "huggingface"},
        "decoder": {"vocab_size": len(tokens), "d_model": width, "layers": 2, "heads": 8, "d_ff": 4 * width, "max_len": 4},
        "number_tokenizer": NORMALIZED, "max_num_objs": 1}, separators=(",", ":")))
    answers, global_answers = Answers(model.double().eval()), Answers(global_model.double().eval())
    cases, logits = [], {}
    for id, text in PROMPTS:
        prompt = vocabulary.to_token_ids(text)[:INPUT_MAX]
        best = regresslm_torch.greedy(answers, NORMALIZED, 1, prompt)
        logits[f"case.{id}.logits"] = answers.logits(prompt, [best[:-1]])[0]
        logits[f"global.{id}.logits"] = global_answers.logits(prompt, [best[:-1]])[0]
        cases.append({"id": id, "prompt": text, "encoder_input_ids": prompt, "greedy": best, **{
            kind: regresslm_torch.distributions(answers, NORMALIZED, 1, prompt, kind == "masked") for kind in ["masked", "raw"]}})
    (target / "golden/golden.json").write_text(json.dumps({"cases": cases}, separators=(",", ":")))
    regresslm_torch.regresslm.save_tensors(target / "golden/golden.safetensors", logits)


if __name__ == "__main__":
    main()
