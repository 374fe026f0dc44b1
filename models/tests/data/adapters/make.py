"""Makes the adapters of this folder with PEFT, and the logits that PEFT computes with them on the checkpoints of ../tiny and ../heads.

    python make.py         writes every folder
    python make.py NAME    writes one folder

Written with peft 0.21.2, transformers 5.24.0, torch 2.15.0 on the CPU. `golden.json` of each adapter has the ids of a prompt, of a path of
decoded tokens after it, and the logits after the last of them. Classifiers with a task type also store their head (`modules_to_save`).
"""

import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, T5Gemma2ForConditionalGeneration,
)

HERE = Path(__file__).parent
PROMPT = [5, 9, 12, 7, 3, 1]
PATH = [4, 6, 11]
CASES = {
    "llama-ntl": (AutoModelForCausalLM, dict(r=4, lora_alpha=6, target_modules="all-linear")),
    "gpt2": (AutoModelForCausalLM, dict(r=2, lora_alpha=3, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True, use_rslora=True)),
    "t5-ce": (AutoModelForSeq2SeqLM, dict(r=3, lora_alpha=3, target_modules=["q", "v", "wi", "wo"], rank_pattern={"wo": 2}, alpha_pattern={"decoder.*wo": 8})),
    "bert-classes": (AutoModelForSequenceClassification, dict(r=2, lora_alpha=5, target_modules=["query", "value", "dense"])),
    "llama-reward": (AutoModelForSequenceClassification, dict(r=3, lora_alpha=4, target_modules=r".*\.(\w+_proj)")),
    "mistral-classes": (AutoModelForSequenceClassification, dict(r=2, lora_alpha=4, task_type="SEQ_CLS")),
    "roberta-regression": (AutoModelForSequenceClassification, dict(r=2, lora_alpha=3, task_type="SEQ_CLS")),
    "t5-classes": (AutoModelForSequenceClassification, dict(r=2, lora_alpha=6, task_type="SEQ_CLS", modules_to_save=["classification_head"])),
    "t5gemma2": (T5Gemma2ForConditionalGeneration, dict(r=2, lora_alpha=4, target_modules=r".*(encoder|decoder).*\.(q_proj|k_proj|o_proj|down_proj)")),
}


def main():
    for name, (kind, options) in CASES.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        torch.manual_seed(0)
        is_head = kind is AutoModelForSequenceClassification
        base = kind.from_pretrained(HERE.parent / ("heads" if is_head else "tiny") / name, dtype=torch.float32)
        model = get_peft_model(base, LoraConfig(lora_dropout=0.1, **options)).eval()
        with torch.no_grad():
            for key, weight in model.named_parameters():
                if "lora_" in key or "modules_to_save" in key:
                    weight.normal_(std=0.3)
            if is_head:
                logits = model(input_ids=torch.tensor([PROMPT])).logits
            elif base.config.is_encoder_decoder:
                start = base.generation_config.decoder_start_token_id
                start = base.config.bos_token_id if start is None else start
                logits = model(input_ids=torch.tensor([PROMPT]), decoder_input_ids=torch.tensor([[start, *PATH]])).logits
            else:
                logits = model(input_ids=torch.tensor([PROMPT + PATH])).logits
        folder = HERE / name
        model.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        config = folder / "adapter_config.json"
        fields = json.loads(config.read_text())
        fields["base_model_name_or_path"] = name
        config.write_text(json.dumps(fields))
        golden = {"prompt": PROMPT, "path": [] if is_head else PATH, "logits": [round(float(x), 6) for x in logits.reshape(-1, logits.shape[-1])[-1]]}
        (folder / "golden.json").write_text(json.dumps(golden))
        print(name, sorted(p.name for p in folder.iterdir()))


if __name__ == "__main__":
    main()
