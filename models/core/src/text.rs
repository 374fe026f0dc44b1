//! Tokens to text, one at a time: what may be shown already, and where a stop string ends it.
//!
//! In: token ids in order. Out: text that later tokens can no longer change. Invariant: the pieces handed out,
//! joined, are the decoded text of all tokens, cut before the first stop string.

use std::sync::Arc;

/// Decodes token ids. Implemented by every tokenizer.
pub trait TextDecoder: Send + Sync {
    /// The text of `ids`, special tokens left out.
    fn decode(&self, ids: &[u32]) -> String;

    /// The text of `ids` with the number that stands beside each of them, for checkpoints that write numbers so
    /// (xVal). Others look at the ids only.
    fn decode_numbered(&self, ids: &[u32], _numbers: &[f32]) -> String {
        self.decode(ids)
    }

    /// One token as it reads in a list of log-probabilities; special tokens by their names.
    fn token_text(&self, id: u32) -> String;

    /// How many bytes of a decoded text stay as they are whatever tokens follow.
    fn settled_len(&self, text: &str) -> usize;
}

/// The text of one path while it grows.
pub struct TextStream {
    decoder: Arc<dyn TextDecoder>,
    stop: Arc<[String]>,
    ids: Vec<u32>,
    numbers: Vec<f32>,
    shown: usize,
    stopped: bool,
}

impl TextStream {
    /// An empty text that ends before the first of `stop`.
    pub fn new(decoder: Arc<dyn TextDecoder>, stop: Arc<[String]>) -> Self {
        Self { decoder, stop, ids: Vec::new(), numbers: Vec::new(), shown: 0, stopped: false }
    }

    /// Takes one more token and returns what can be shown now.
    pub fn push(&mut self, id: u32) -> String {
        self.push_numbered(id, None)
    }

    /// The same for a token with the number that a number head says for it.
    pub fn push_numbered(&mut self, id: u32, number: Option<f32>) -> String {
        self.ids.push(id);
        self.numbers.push(number.unwrap_or(1.0));
        let text = self.decoder.decode_numbered(&self.ids, &self.numbers);
        if let Some(at) = self.stop_position(&text) {
            self.stopped = true;
            return self.show(&text, at);
        }
        let settled = self.decoder.settled_len(&text);
        let held = self.stop.iter().map(|stop| partial_match(&text[..settled], stop)).max().unwrap_or(0);
        self.show(&text, settled - held)
    }

    /// Returns what was still held back. Call once, when no token follows.
    pub fn finish(&mut self) -> String {
        if self.stopped {
            return String::new();
        }
        let text = self.decoder.decode_numbered(&self.ids, &self.numbers);
        self.show(&text, text.len())
    }

    /// Whether a stop string was met.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    fn stop_position(&self, text: &str) -> Option<usize> {
        self.stop.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| text.find(stop.as_str())).min()
    }

    fn show(&mut self, text: &str, end: usize) -> String {
        let new = text.get(self.shown..end).unwrap_or_default().to_owned();
        self.shown = self.shown.max(end);
        new
    }
}

/// Length of the longest end of `text` that is a proper beginning of `stop`.
fn partial_match(text: &str, stop: &str) -> usize {
    let longest = stop.len().saturating_sub(1).min(text.len());
    (1..=longest).rev().find(|&len| text.as_bytes().ends_with(&stop.as_bytes()[..len])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens are bytes; a text that ends inside a character decodes to U+FFFD there, as real decoders do.
    struct Bytes;

    impl TextDecoder for Bytes {
        fn decode(&self, ids: &[u32]) -> String {
            let bytes: Vec<u8> = ids.iter().map(|&id| id as u8).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
        fn token_text(&self, id: u32) -> String {
            self.decode(&[id])
        }
        fn settled_len(&self, text: &str) -> usize {
            text.trim_end_matches('\u{FFFD}').len()
        }
    }

    fn stream(text: &str, stop: &[&str]) -> (Vec<String>, bool) {
        let stop: Vec<String> = stop.iter().map(|&stop| stop.to_owned()).collect();
        let mut stream = TextStream::new(Arc::new(Bytes), stop.into());
        let mut pieces = Vec::new();
        for byte in text.bytes() {
            pieces.push(stream.push(u32::from(byte)));
            if stream.stopped() {
                break;
            }
        }
        pieces.push(stream.finish());
        (pieces, stream.stopped())
    }

    #[test]
    fn text_ends_before_the_first_stop_string_and_none_of_it_leaks() {
        for (text, stop, want, stopped) in [
            ("one two", &[][..], "one two", false),
            ("one two", &["two"], "one ", true),
            ("abcabd", &["abd"], "abc", true),
            ("aab", &["ab"], "a", true),
            ("ab", &["abc"], "ab", false),
            ("x\n\ny", &["\n\n", "y"], "x", true),
            ("anything", &[""], "anything", false),
        ] {
            let (pieces, was_stopped) = stream(text, stop);
            assert_eq!((pieces.concat().as_str(), was_stopped), (want, stopped), "{text:?} stop {stop:?}");
        }
    }

    #[test]
    fn a_piece_that_may_begin_a_stop_string_is_held_back_until_it_is_clear() {
        assert_eq!(stream("a<b", &["</s>"]).0, ["a", "", "<b", ""]);
    }

    #[test]
    fn a_character_is_never_split() {
        assert_eq!(stream("1€", &[]).0, ["1", "", "", "€", ""]);
    }
}
