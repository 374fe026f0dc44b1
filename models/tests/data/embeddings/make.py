"""Writes golden.json: the hidden states of transformers for prompts of tiny checkpoints.

    python make.py

Written with transformers 5.23.0, torch 2.15.0 on the CPU, in float64. For each checkpoint and prompt: ids, the mean of the last hidden
states (after the last normalisation) over all tokens, and those of the last token. Encoder-decoders have those of the encoder.
"""

import json
from pathlib import Path

import torch
from transformers import BertModel, GPT2Model, LlamaModel, ModernBertModel, Qwen3Model, RobertaModel, T5EncoderModel

HERE = Path(__file__).parent
MODELS = {
    "tiny/llama-ntl": LlamaModel, "tiny/gpt2": GPT2Model, "tiny/qwen3": Qwen3Model, "tiny/t5-ce": T5EncoderModel,
    "heads/bert-classes": BertModel, "heads/modernbert-mean": ModernBertModel, "heads/roberta-regression": RobertaModel,
}
LENGTHS = [1, 5, 40]


def main():
    golden = {}
    for name, model_class in MODELS.items():
        model = model_class.from_pretrained(HERE.parent / name, attn_implementation="eager").double().eval()
        cases = []
        for length in LENGTHS:
            ids = [3 + index * 11 % 30 for index in range(length)]
            with torch.no_grad():
                states = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
            short = lambda vector: [round(float(value), 6) for value in vector]
            cases.append({"ids": ids, "mean": short(states.mean(0)), "last": short(states[-1])})
        golden[name] = cases
    (HERE / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
