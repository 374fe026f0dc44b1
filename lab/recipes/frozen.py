"""Lower layers of a decoder-only model that training leaves unchanged.

Their states of a sequence are the same at every step. So they are computed once and kept in a file, and training only runs the
layers above them.
"""

import hashlib
import sqlite3
from contextlib import contextmanager

import torch
from torch.nn.utils.rnn import pad_sequence

from data import InputError


class LowerLayers:
    """The embeddings and the lowest `count` layers of a model. `store` is the file that keeps their states, or `None`."""

    def __init__(self, model, count, store):
        self.decoder = model.model
        if not 0 < count < len(self.decoder.layers):
            raise InputError(f"--freeze {count}: the model has {len(self.decoder.layers)} layers, and at least one must be trained")
        # Kept here, because the decoder's own list changes while only some of them run.
        self.lower, self.upper = self.decoder.layers[:count], self.decoder.layers[count:]
        self.norm = self.decoder.norm
        for part in (self.decoder.embed_tokens, *self.lower):
            part.requires_grad_(False)
        self.store = None
        if store:
            self.store = sqlite3.connect(store, timeout=300)
            self.store.execute("CREATE TABLE IF NOT EXISTS states (key BLOB PRIMARY KEY, state BLOB)")
            self.fingerprint = self.fingerprint_of_weights()

    def fingerprint_of_weights(self):
        found = hashlib.sha256()
        for part in (self.decoder.embed_tokens, *self.lower):
            for weights in part.parameters():
                found.update(weights.detach().cpu().numpy())
        return found.digest()

    @contextmanager
    def running(self, layers, norm):
        """Lets the decoder run only these layers and this norm."""
        before = self.decoder.layers, self.decoder.norm
        self.decoder.layers, self.decoder.norm = layers, norm
        try:
            yield
        finally:
            self.decoder.layers, self.decoder.norm = before

    def skipped(self):
        """Lets the decoder run only the layers above, which read states as `inputs_embeds`."""
        return self.running(self.upper, self.norm)

    @torch.no_grad()
    def computed(self, sequences):
        # Padding follows the tokens, which do not see it.
        ids = pad_sequence([torch.tensor(ids) for ids in sequences], batch_first=True).to(self.decoder.device)
        with self.running(self.lower, torch.nn.Identity()):
            states = self.decoder(input_ids=ids, use_cache=False).last_hidden_state.float().cpu()
        return [row[: len(ids)] for row, ids in zip(states, sequences)]

    def states(self, sequences):
        """Returns the states [tokens, width] of each sequence of token ids."""
        if self.store is None:
            return self.computed(sequences)
        keys = [hashlib.sha256(self.fingerprint + torch.tensor(ids).numpy().tobytes()).digest() for ids in sequences]
        found = {}
        for key in keys:
            if row := self.store.execute("SELECT state FROM states WHERE key = ?", (key,)).fetchone():
                found[key] = torch.frombuffer(bytearray(row[0]), dtype=torch.float32)
        missing = {key: ids for key, ids in zip(keys, sequences) if key not in found}
        if missing:
            found |= zip(missing, self.computed(list(missing.values())))
            rows = [(key, found[key].contiguous().numpy().tobytes()) for key in missing]
            with self.store:
                self.store.executemany("INSERT OR IGNORE INTO states VALUES (?, ?)", rows)
        return [found[key].view(len(ids), -1) for key, ids in zip(keys, sequences)]
