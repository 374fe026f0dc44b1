"""Makes the tiny random checkpoints with heads of this folder, and what transformers computes on them.

    python make.py         writes every folder
    python make.py NAME    writes one folder

Written with transformers 5.24.0, torch 2.15.0, tokenizers 0.23.3 on the CPU. Networks and rules are those of
`*ForSequenceClassification`; tokenizers come from `../tiny/make.py`.

`golden.json`, for each text: ids, the logits of the text alone, and the probabilities by the activation of pipelines, in float64 except for the
softmaxes of attention. If a decoder-only checkpoint names a padding token, there is also a prompt that ends with it. The script checks that padded batches have the
same logits, except with windows: they leave padding nothing to attend to, and then transformers computes NaN.

`pairs.json` of a checkpoint that can rank documents, for each document after the query: ids, `segments` (the type of each token) and logits.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig, BertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification, LlamaConfig, LlamaForSequenceClassification,
    MistralConfig, MistralForSequenceClassification, ModernBertConfig, ModernBertForSequenceClassification, Qwen2Config,
    Qwen2ForSequenceClassification, Qwen3Config, Qwen3ForSequenceClassification, RobertaConfig, RobertaForSequenceClassification,
    T5Config, T5ForSequenceClassification,
)

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tiny"))
import make as tiny  # noqa: E402

# One of them is longer than every window, and one has a single word.
TEXTS = [
    "What is 7 + 52?", "Is it so?", "Work out 12 - 34 + 56. " * 3, "7", "12 apples and 340 pears are 352.", "no",
    "What is -3.5 times 12?", "Work out -8 - 3.5.",
]
QUERY = "What is 7 + 52?"
DOCUMENTS = ["It is 59.", "12 apples and 340 pears are 352.", "no", "Work out -8 - 3.5."]
CHAT = ("{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}")
NAMES = {0: "bad", 1: "so so", 2: "good"}
RERANKERS = ["llama-reward", "bert-relevance", "roberta-regression", "modernbert-mean"]
RELEVANCE = {0: "irrelevant", 1: "relevant"}
SMALL = dict(hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=128)


def randomise(module):
    """Weights with which every part of the network matters, and values that spread by about 1."""
    torch.manual_seed(11)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
            elif "embed" in name or "wte" in name or "wpe" in name or "shared" in name or "relative_attention_bias" in name:
                parameter.normal_(std=0.7)
            else:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)


def activated(logits, config):
    if config.problem_type == "regression":
        return logits
    if config.problem_type == "multi_label_classification" or logits.shape[-1] == 1:
        return logits.sigmoid()
    return logits.softmax(-1)


def goldens(model, rows, is_batched):
    with torch.no_grad():
        alone = torch.cat([model(input_ids=torch.tensor([row])).logits for row in rows])
        if is_batched:
            width, pad = max(map(len, rows)), model.config.pad_token_id
            ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
            mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
            off = float((model(input_ids=ids, attention_mask=mask).logits - alone).abs().max())
            assert off < 1e-6, off
    return alone


def write_pairs(model, tokenizer, folder):
    pairs = []
    for document in DOCUMENTS:
        encoding = tokenizer.encode(QUERY, document)
        segments = {"token_type_ids": torch.tensor([encoding.type_ids])} if model.config.model_type == "bert" else {}
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([encoding.ids]), **segments).logits[0]
        pairs.append({"texts": [QUERY, document], "ids": encoding.ids, "segments": encoding.type_ids, "logits": tiny.short(logits)})
    tiny.write(folder / "pairs.json", pairs)


def save(name, model_class, config, tokenizer, is_batched=True):
    model = model_class._from_config(config, attn_implementation="eager").eval()
    randomise(model)
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    tensors = {key: tensor.contiguous() for key, tensor in model.state_dict().items() if "embed_tokens" not in key or "model." in key}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    stored = config.to_dict() | {"architectures": [model_class.__name__]}
    for field in ["transformers_version", "dtype", "_name_or_path", "chunk_size_feed_forward", "output_attentions",
                  "output_hidden_states", "return_dict", "is_encoder_decoder"]:
        stored.pop(field, None)
    tiny.write(folder / "config.json", {key: value for key, value in stored.items() if value is not None})
    tokenizer.save(folder)
    tokenizer.tokenizer.no_truncation()
    tokenizer.tokenizer.no_padding()
    rows = [tokenizer.encode(text)[0] for text in TEXTS]
    texts = list(TEXTS)
    if config.pad_token_id is not None and model_class.__name__.startswith(("Llama", "Mistral", "Qwen", "GPT2")):
        texts.append(None)
        rows.append(rows[0] + [config.pad_token_id] * 2)
    logits = goldens(model.double(), rows, is_batched)
    tiny.write(folder / "golden.json", [
        {"text": text, "ids": row, "logits": tiny.short(values), "probs": tiny.short(probs)}
        for text, row, values, probs in zip(texts, rows, logits, activated(logits, config))
    ])
    if name in RERANKERS:
        write_pairs(model, tokenizer.tokenizer, folder)
    print(name, sum(tensor.numel() for tensor in tensors.values()), [round(float(value), 3) for value in logits[:, 0]])


def word_pieces():
    """BERT's layout: lower case, words and their continuations, special tokens by the post-processor."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(tiny.corpus(), trainer)
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    # Fine-tuned checkpoints keep the settings of their training.
    tokenizer.enable_truncation(12)
    tokenizer.enable_padding(length=12, pad_token="[PAD]")
    config = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]", "model_max_length": 512,
              "tokenizer_class": "BertTokenizer"}
    return tiny.FastTokenizer(tokenizer, "words", set(range(len(special))), config)


def byte_level(begin, pad, end):
    """RoBERTa's and ModernBERT's layout: bytes, special tokens by the post-processor."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    merges = tiny.merges_of(split, alphabet, 20)
    names = [begin, pad, end, *alphabet, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({name: id for id, name in enumerate(names)}, [tuple(pair) for pair in merges]))
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}", pair=f"{begin} $A {end} $B {end}", special_tokens=[(begin, 0), (end, 2)])
    tokenizer.add_special_tokens([begin, pad, end])
    config = {"cls_token": begin, "sep_token": end, "pad_token": pad, "tokenizer_class": "PreTrainedTokenizerFast"}
    return tiny.FastTokenizer(tokenizer, "bytes", {0, 1, 2}, config)


def make():
    spiece = tiny.byte_fallback_bpe()
    spiece.config |= {"chat_template": CHAT}
    gpt2 = tiny.byte_level_bpe(single_digits=False)
    qwen = tiny.byte_level_bpe(single_digits=True)
    heads = dict(SMALL, num_key_value_heads=1)
    t5 = tiny.fast_t5(tiny.train_sentencepiece())
    roberta = byte_level("<s>", "<pad>", "</s>")
    modern = byte_level("[CLS]", "[PAD]", "[SEP]")
    modern_bert = dict(SMALL, num_hidden_layers=4, vocab_size=len(modern), pad_token_id=1, local_attention=6, bos_token_id=0,
                       eos_token_id=2, cls_token_id=0, sep_token_id=2)
    return {
        # No padding token: transformers reads the last token, and accepts only one text at a time.
        "llama-reward": lambda name: save(
            name, LlamaForSequenceClassification,
            LlamaConfig(**heads, vocab_size=len(spiece), num_labels=1, bos_token_id=1, eos_token_id=2), spiece, is_batched=False),
        "mistral-classes": lambda name: save(
            name, MistralForSequenceClassification,
            MistralConfig(**heads, vocab_size=len(spiece), num_labels=3, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                          sliding_window=12, head_dim=8), spiece, is_batched=False),
        "qwen2-properties": lambda name: save(
            name, Qwen2ForSequenceClassification,
            Qwen2Config(**heads, vocab_size=len(qwen), num_labels=3, pad_token_id=0, problem_type="multi_label_classification"),
            qwen),
        "qwen3-regression": lambda name: save(
            name, Qwen3ForSequenceClassification,
            Qwen3Config(**heads, vocab_size=len(qwen), num_labels=1, pad_token_id=0, problem_type="regression", head_dim=10),
            qwen),
        "gpt2-classes": lambda name: save(
            name, GPT2ForSequenceClassification,
            GPT2Config(vocab_size=len(gpt2), n_positions=128, n_embd=16, n_layer=2, n_head=2, id2label=NAMES, pad_token_id=0,
                       problem_type="single_label_classification", bos_token_id=0, eos_token_id=0), gpt2),
        "t5-classes": lambda name: save(
            name, T5ForSequenceClassification,
            T5Config(**tiny.T5_SMALL, vocab_size=len(t5), num_labels=3, problem_type="single_label_classification"), t5),
        "bert-classes": lambda name: save(
            name, BertForSequenceClassification, BertConfig(**SMALL, vocab_size=90, id2label=NAMES), word_pieces()),
        "bert-relevance": lambda name: save(
            name, BertForSequenceClassification, BertConfig(**SMALL, vocab_size=90, id2label=RELEVANCE), word_pieces()),
        "roberta-regression": lambda name: save(
            name, RobertaForSequenceClassification,
            RobertaConfig(**SMALL, vocab_size=len(roberta), num_labels=1, problem_type="regression", type_vocab_size=1,
                          layer_norm_eps=1e-5), roberta),
        "modernbert-classes": lambda name: save(
            name, ModernBertForSequenceClassification,
            ModernBertConfig(**modern_bert, num_labels=3, problem_type="multi_label_classification"), modern, is_batched=False),
        "modernbert-mean": lambda name: save(
            name, ModernBertForSequenceClassification,
            ModernBertConfig(**modern_bert, num_labels=1, classifier_pooling="mean", classifier_bias=True, norm_bias=True,
                             attention_bias=True, mlp_bias=True), modern, is_batched=False),
    }


if __name__ == "__main__":
    for name, write in make().items():
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            write(name)
