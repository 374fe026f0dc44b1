"""The kinds of models: how each is created, loaded, trained and queried.

Questions and answers are padded on the right and masked, texts of decoder-only models on the left; padding of labels is -100.
Objectives get logits that are aligned with the labels: the decoder of a T5 reads the labels shifted right, and the labels of a
decoder-only model are shifted left.
"""

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
    T5ForSequenceClassification,
)

from architectures import POSITIONS, T5RegressionModelRT, T5RegressionModelXval, log_scaled, xval_number_loss
from data import InputError
from frozen import LowerLayers
from objectives import IGNORE
from paper_tokenizers import NUM, PLACES, PaperTokenizer, place_name
from tokenizer import train_tokenizer


# `encode` drops the last tokens of a text that is too long, as transformers does by default.
TRUNCATION_SIDE = "right"


def padded(rows, value, side="right"):
    return pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True, padding_value=value, padding_side=side)


def sample_texts(rows, count=20_000):
    """Yields the texts of up to `count` rows. Rows of files, which may be sorted, are sampled evenly; otherwise the first rows are used."""
    step = max(len(rows) // count, 1) if isinstance(rows, list) else 1
    for index in range(0, min(len(rows), step * count), step):
        yield from (rows[index]["question"], rows[index]["answer"])


def encode(tokenizer, text, max_length):
    """Returns the ids of a text and the number of each id (xVal). A longer text keeps its first tokens and its end of sequence.

    Both lists have at most `max_length` elements. `TRUNCATION_SIDE` records the side in ntl.json.
    """
    if isinstance(tokenizer, PaperTokenizer):
        ids, values = tokenizer.encode(text)
    else:
        ids = tokenizer(text).input_ids
        values = [1.0] * len(ids)
    if len(ids) > max_length:
        ids, values = ids[: max_length - 1] + ids[-1:], values[: max_length - 1] + values[-1:]
    return ids, values


def heads(args):
    if args.d_model % args.heads:
        raise InputError(f"--d-model {args.d_model} is not a multiple of --heads {args.heads}")
    return args.d_model // args.heads


def t5_config(args, tokenizer, **more):
    return T5Config(
        vocab_size=len(tokenizer), d_model=args.d_model, d_kv=heads(args), num_heads=args.heads, d_ff=args.d_ff,
        num_layers=args.layers, num_decoder_layers=args.decoder_layers, dropout_rate=0.0,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id, **more,
    )  # fmt: skip


def grown(model, tokenizer):
    """Returns the model with an embedding for every token."""
    if model.config.vocab_size < len(tokenizer):
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return model


def shifted_right(model, labels):
    """Returns the decoder's input: labels [B, D] shifted right by one, after the padding token that decoding starts with."""
    start = torch.full_like(labels[:, :1], model.config.decoder_start_token_id)
    read = torch.cat([start, labels[:, :-1]], dim=1)
    return read.masked_fill(read == IGNORE, model.config.pad_token_id)


class T5:
    """T5. From random weights with the tokenizer of tokenizer.py or, as in the paper, with digits split from SentencePiece."""

    takes_number_loss = True
    model_class = T5ForConditionalGeneration
    encoding = "digits"

    def create(self, args, rows):
        if self.encoding != "digits" or args.tokenizer == "spiece":
            tokenizer = PaperTokenizer.train(sample_texts(rows), args.vocabulary, self.encoding, args.max_length)
        else:
            tokenizer = train_tokenizer(sample_texts(rows), args.vocabulary, args.max_length)
        config = t5_config(args, tokenizer)
        # On a CPU, fused attention is slower for short sequences.
        model = self.model_class._from_config(config, attn_implementation="eager")
        return self.prepared(model, tokenizer, args), tokenizer

    def open(self, folder, args):
        paper = self.encoding != "digits" or args.tokenizer == "spiece"
        tokenizer = PaperTokenizer.open(folder, self.encoding) if paper else AutoTokenizer.from_pretrained(folder)
        model = grown(self.model_class.from_pretrained(folder), tokenizer)
        return self.prepared(model, tokenizer, args), tokenizer

    def prepared(self, model, tokenizer, args):
        return model

    def length_max(self, model):
        """Returns the maximum number of tokens of a question, and of an answer, that the architecture can read."""
        return math.inf

    def check(self, tokenizer, rows, max_length):
        """Rejects answers that do not fit."""
        for number, row in enumerate(rows, 1):
            try:
                length = len(encode(tokenizer, row["answer"], math.inf)[0])
            except InputError as error:
                raise InputError(f"answer {number}: {error}") from error
            if length > max_length:
                raise InputError(
                    f"answer {number} has {length} tokens, more than --max-length {max_length}: {row['answer'][:40]!r}"
                )

    def collate(self, tokenizer, max_length, rows):
        questions = [encode(tokenizer, row["question"], max_length) for row in rows]
        answers = [encode(tokenizer, row["answer"], max_length) for row in rows]
        return {
            "input_ids": padded([ids for ids, _ in questions], tokenizer.pad_token_id),
            "attention_mask": padded([[1] * len(ids) for ids, _ in questions], 0),
            "labels": padded([ids for ids, _ in answers], IGNORE),
        } | self.numbers(tokenizer, questions, answers)

    def numbers(self, tokenizer, questions, answers):
        return {}

    def logits(self, model, inputs, labels):
        return model(**inputs, decoder_input_ids=shifted_right(model, labels), use_cache=False).logits

    def loss(self, model, inputs, objective):
        labels = inputs.pop("labels")
        return objective(self.logits(model, inputs, labels), labels)

    @torch.no_grad()
    def answers(self, model, tokenizer, questions, max_new_tokens=24):
        """Returns the texts of greedy answers. Decodes without a cache, which is fast enough for checks and tests."""
        batch = self.collate(tokenizer, 512, [{"question": question, "answer": ""} for question in questions])
        batch.pop("labels")
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        ids = torch.full((len(questions), 1), IGNORE, device=model.device)
        ended = torch.zeros(len(questions), dtype=torch.bool, device=model.device)
        for _ in range(max_new_tokens):
            # The last label is only a placeholder: the decoder reads the labels before it.
            best = self.logits(model, batch, ids)[:, -1].argmax(-1)
            best = torch.where(ended, model.config.pad_token_id, best)
            ids = torch.cat([ids[:, :-1], best[:, None], ids[:, -1:]], dim=1)
            ended |= best == model.config.eos_token_id
            if ended.all():
                break
        texts = []
        for row in ids[:, :-1].tolist():
            row = row[: row.index(model.config.eos_token_id)] if model.config.eos_token_id in row else row
            paper = isinstance(tokenizer, PaperTokenizer)
            texts.append(tokenizer.decode(row) if paper else tokenizer.decode(row, skip_special_tokens=True))
        return texts

    def facts(self, args):
        """Returns the content of ntl.json."""
        return {"truncation_side": TRUNCATION_SIDE}


class T5Rt(T5):
    """Regression Transformer."""

    takes_number_loss = False
    model_class = T5RegressionModelRT
    encoding = "rt"

    def prepared(self, model, tokenizer, args):
        places = {tokenizer.numbers[place_name(d, p)]: (d, p) for p in PLACES for d in range(10)}
        model.fill_number_embeddings(places, args.log_scale)
        return model

    def facts(self, args):
        return super().facts(args) | {"log_scale_embeddings": args.log_scale}


class T5Xval(T5):
    """xVal. Its loss is the mean of cross entropy and the squared error of standardised numbers."""

    takes_number_loss = False
    model_class = T5RegressionModelXval
    encoding = "xval"

    def length_max(self, model):
        return POSITIONS

    def prepared(self, model, tokenizer, args):
        self.log_scale, self.number_id = args.log_scale, tokenizer.numbers[NUM]
        return model

    def factors(self, ids, values):
        """Returns the factors of the embeddings."""
        scaled = log_scaled(values) if self.log_scale else values + 1
        return torch.where(ids == self.number_id, scaled, torch.ones_like(values))

    def numbers(self, tokenizer, questions, answers):
        ids, values = (padded([row[part] for row in questions], 0.0 if part else 0) for part in (0, 1))
        return {"factors": self.factors(ids, values), "numbers": padded([row for _, row in answers], 1.0)}

    def both(self, model, inputs, labels):
        """Returns logits [B, D, V] and predicted numbers [B, D]."""
        inputs = dict(inputs)
        numbers = inputs.pop("numbers")
        read = shifted_right(model, labels)
        before = torch.cat([torch.ones_like(numbers[:, :1]), numbers[:, :-1]], dim=1)
        return model(**inputs, decoder_input_ids=read, decoder_factors=self.factors(read, before))

    def loss(self, model, inputs, objective):
        labels = inputs.pop("labels")
        logits, predicted = self.both(model, inputs, labels)
        token_loss, parts = objective(logits, labels)
        places = labels == self.number_id
        number_loss = token_loss.new_zeros(())
        if places.any():
            number_loss = xval_number_loss(predicted[places].float(), inputs["numbers"][places])
        return (token_loss + number_loss) / 2, parts | {"number_loss": number_loss}

    @torch.no_grad()
    def answers(self, model, tokenizer, questions, max_new_tokens=24):
        rows = [{"question": question, "answer": ""} for question in questions]
        texts = []
        for row in rows:
            batch = self.collate(tokenizer, POSITIONS, [row])
            batch.pop("labels")
            ids, values = [], []
            for _ in range(max_new_tokens):
                batch["numbers"] = torch.tensor([[*values, 1.0]])
                logits, predicted = self.both(model, batch, torch.tensor([[*ids, IGNORE]]))
                best = logits[0, -1].argmax().item()
                if best == model.config.eos_token_id:
                    break
                ids.append(best)
                values.append(predicted[0, -1].item() if best == self.number_id else 1.0)
            texts.append(tokenizer.decode(ids, values))
        return texts

    def facts(self, args):
        return super().facts(args) | {"log_scale_embeddings": args.log_scale}


class RegressionHead:
    """Predicts one number; the loss is the squared error, of signed logarithms with --log-scale."""

    takes_number_loss = False

    def check(self, tokenizer, rows, max_length):
        for number, row in enumerate(rows, 1):
            self.target(row["answer"], number)

    def target(self, answer, number):
        try:
            value = float(answer)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"answer {number} is not a number, which a regression head needs: {answer[:40]!r}")
        return math.copysign(math.log1p(abs(value)), value) if self.log_scale else value

    def targets(self, rows):
        return torch.tensor([self.target(row["answer"], 1) for row in rows])

    def values(self, model, inputs):
        """Returns the predicted numbers [B], as logarithms with --log-scale."""
        return model(**inputs, use_cache=False).logits.squeeze(-1)

    def loss(self, model, inputs, objective):
        labels = inputs.pop("labels")
        loss = F.mse_loss(self.values(model, inputs).float(), labels)
        return loss, {"number_loss": loss}

    @torch.no_grad()
    def answers(self, model, tokenizer, questions, max_new_tokens=None):
        batch = self.collate(tokenizer, 512, [{"question": question, "answer": "0"} for question in questions])
        batch.pop("labels")
        values = self.values(model, {name: tensor.to(model.device) for name, tensor in batch.items()})
        if self.log_scale:
            values = values.sign() * values.abs().expm1()
        return [f"{value:.12f}" for value in values.tolist()]

    def facts(self, args):
        return super().facts(args) | {"log_scale_embeddings": args.log_scale}


class T5RegressionHead(RegressionHead, T5):
    def create(self, args, rows):
        self.log_scale = args.log_scale
        tokenizer = train_tokenizer(sample_texts(rows), args.vocabulary, args.max_length)
        config = t5_config(args, tokenizer, num_labels=1, problem_type="regression", classifier_dropout=0.0)
        return T5ForSequenceClassification(config), tokenizer

    def open(self, folder, args):
        self.log_scale = args.log_scale
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = T5ForSequenceClassification.from_pretrained(folder, num_labels=1, problem_type="regression")
        return grown(model, tokenizer), tokenizer

    def collate(self, tokenizer, max_length, rows):
        questions = [encode(tokenizer, row["question"], max_length)[0] for row in rows]
        return {
            "input_ids": padded(questions, tokenizer.pad_token_id),
            "attention_mask": padded([[1] * len(ids) for ids in questions], 0),
            "labels": self.targets(rows),
        }


class Llama(T5):
    """A decoder-only model of Llama's architecture, or of another architecture if it is opened from a directory.

    A text is the question, a space, the answer and the end of sequence. Only the answer and the end count in the loss. Texts are
    padded on the left, so that the answers are the last columns and only these need logits.
    """

    def create(self, args, rows):
        tokenizer = train_tokenizer(sample_texts(rows), args.vocabulary, 2 * args.max_length, causal=True)
        return self.prepared(self.new_model(self.config(args, tokenizer)), tokenizer, args), tokenizer

    def config(self, args, tokenizer):
        return LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=args.d_model, intermediate_size=args.d_ff, head_dim=heads(args),
            num_hidden_layers=args.layers, num_attention_heads=args.heads, num_key_value_heads=args.heads,
            max_position_embeddings=2 * args.max_length, tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip

    def new_model(self, config):
        return LlamaForCausalLM(config)

    def open(self, folder, args):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        return self.prepared(self.saved_model(folder), tokenizer, args), tokenizer

    def saved_model(self, folder):
        return AutoModelForCausalLM.from_pretrained(folder)

    def prepared(self, model, tokenizer, args):
        self.lower = LowerLayers(model, args.freeze, args.states) if args.freeze else None
        return model

    def inputs(self, tokenizer, texts):
        mask = padded([[1] * len(ids) for ids in texts], 0, "left")
        inputs = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
        if self.lower:
            return inputs | {"inputs_embeds": padded(self.lower.states(texts), 0.0, "left")}
        return inputs | {"input_ids": padded(texts, tokenizer.pad_token_id, "left")}

    def trained_layers(self):
        """Returns the context in which the model reads `inputs`."""
        return self.lower.skipped() if self.lower else nullcontext()

    def length_max(self, model):
        return model.config.max_position_embeddings // 2

    def answer_ids(self, tokenizer, answer):
        return [*tokenizer(f" {answer}", add_special_tokens=False).input_ids, tokenizer.eos_token_id]

    def check(self, tokenizer, rows, max_length):
        for number, row in enumerate(rows, 1):
            if len(ids := self.answer_ids(tokenizer, row["answer"])) > max_length:
                raise InputError(
                    f"answer {number} has {len(ids)} tokens, more than --max-length {max_length}: {row['answer'][:40]!r}"
                )

    def collate(self, tokenizer, max_length, rows):
        texts, labels = [], []
        for row in rows:
            question = tokenizer(row["question"]).input_ids[:max_length]
            answer = self.answer_ids(tokenizer, row["answer"])
            texts.append(question + answer)
            labels.append([IGNORE] * len(question) + answer)
        return self.inputs(tokenizer, texts) | {"labels": padded(labels, IGNORE, "left")}

    def loss(self, model, inputs, objective):
        labels = inputs.pop("labels")
        answered = int((labels != IGNORE).any(dim=0).sum())
        with self.trained_layers():
            logits = model(**inputs, logits_to_keep=answered + 1, use_cache=False).logits
        # The logits at a position predict the next token.
        return objective(logits[:, :-1], labels[:, -answered:].contiguous())

    @torch.no_grad()
    def answers(self, model, tokenizer, questions, max_new_tokens=24):
        texts = []
        for question in questions:
            ids = tokenizer(question, return_tensors="pt").input_ids.to(model.device)
            whole = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False,
                pad_token_id=tokenizer.pad_token_id,
            )  # fmt: skip
            texts.append(tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True).strip())
        return texts


class LlamaRegressionHead(RegressionHead, Llama):
    def create(self, args, rows):
        self.log_scale = args.log_scale
        return super().create(args, rows)

    def open(self, folder, args):
        self.log_scale = args.log_scale
        return super().open(folder, args)

    def new_model(self, config):
        config.update({"num_labels": 1, "problem_type": "regression"})
        return LlamaForSequenceClassification(config)

    def saved_model(self, folder):
        return LlamaForSequenceClassification.from_pretrained(folder, num_labels=1, problem_type="regression")

    def collate(self, tokenizer, max_length, rows):
        questions = [tokenizer(row["question"]).input_ids[:max_length] for row in rows]
        return self.inputs(tokenizer, questions) | {"labels": self.targets(rows)}

    def values(self, model, inputs):
        with self.trained_layers():
            return super().values(model, inputs)


KINDS = {
    "t5": T5(), "t5-rt": T5Rt(), "t5-xval": T5Xval(), "t5-regression-head": T5RegressionHead(), "llama": Llama(),
    "llama-regression-head": LlamaRegressionHead(),
}  # fmt: skip
