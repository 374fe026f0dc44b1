//! Incremental detokenization with stop strings.
//!
//! In: tokens in order. Out: text that later tokens can no longer change. Invariants: the pieces, joined, are
//! the decoded text of all tokens, cut at the first stop string; the cost of a token does not grow with the
//! text, because only a window of the last tokens is decoded again.

use std::sync::Arc;

use crate::Token;

/// The text of bytes that are not a complete character.
const REPLACEMENT: char = '\u{FFFD}';

/// Tokens that a window keeps when its beginning is cut off.
const WINDOW_KEPT: usize = 16;

/// Ids of the prompt that are decoded together with the text.
const PROMPT_MAX: usize = 8;

pub trait TextDecoder: Send + Sync {
    /// The text of `ids`, special tokens left out.
    fn decode(&self, ids: &[u32]) -> String;

    /// The text of `tokens`, with the values of number tokens (xVal). Other checkpoints read only the ids.
    fn decode_with_values(&self, tokens: &[Token]) -> String {
        self.decode(&tokens.iter().map(|token| token.id).collect::<Vec<u32>>())
    }

    /// One token as shown with log-probabilities; special tokens by name.
    fn token_text(&self, id: u32) -> String;

    /// The bytes of one token, possibly a part of a character.
    fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.token_text(id).into_bytes()
    }

    /// Number of bytes of a decoded text that no later token can change.
    fn settled_len(&self, text: &str) -> usize;

    /// Returns whether a text may be cut between `before` and `after`, so that later tokens give the same
    /// text if they are decoded with the tokens of `after` alone. Called only if these tokens alone decode to
    /// `after`, and `before` can no longer change.
    fn can_cut(&self, before: &str, after: &str) -> bool {
        // Several tokens may write one number together.
        let cuts_number = before.ends_with(|character: char| character.is_ascii_digit())
            && after.starts_with(|character: char| character.is_ascii_digit());
        !(after.starts_with(REPLACEMENT) || cuts_number)
    }
}

/// Returns a decoder that also shows these special tokens, by name.
pub fn with_special(decoder: &Arc<dyn TextDecoder>, ids: &Arc<[u32]>) -> Arc<dyn TextDecoder> {
    if ids.is_empty() {
        return Arc::clone(decoder);
    }
    Arc::new(WithSpecial { decoder: Arc::clone(decoder), ids: Arc::clone(ids) })
}

struct WithSpecial {
    decoder: Arc<dyn TextDecoder>,
    ids: Arc<[u32]>,
}

impl WithSpecial {
    fn shows(&self, id: u32) -> bool {
        self.ids.contains(&id)
    }
}

impl TextDecoder for WithSpecial {
    fn decode(&self, ids: &[u32]) -> String {
        self.decode_with_values(&ids.iter().copied().map(Token::from).collect::<Vec<_>>())
    }

    fn decode_with_values(&self, tokens: &[Token]) -> String {
        let mut text = String::new();
        for part in tokens.chunk_by(|before, after| !self.shows(before.id) && !self.shows(after.id)) {
            match part {
                [only] if self.shows(only.id) => text += &self.decoder.token_text(only.id),
                part => text += &self.decoder.decode_with_values(part),
            }
        }
        text
    }

    fn token_text(&self, id: u32) -> String {
        self.decoder.token_text(id)
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.decoder.token_bytes(id)
    }

    fn settled_len(&self, text: &str) -> usize {
        self.decoder.settled_len(text)
    }

    fn can_cut(&self, before: &str, after: &str) -> bool {
        self.decoder.can_cut(before, after)
    }
}

pub struct TextStream {
    decoder: Arc<dyn TextDecoder>,
    stop: Arc<[String]>,
    keeps_stop: bool,
    /// Number of first tokens in which stop strings are ignored.
    unstoppable: usize,
    /// The text before the stream, until the first token.
    before: Option<String>,
    /// The last tokens: those whose text may change, and some before them.
    window: Vec<Token>,
    /// Bytes of the window's text that have been returned, or that are before the stream.
    shown: usize,
    /// First byte of the window's text where a stop string may begin.
    searched_from: usize,
    /// Tokens of the window at which its beginning is cut off.
    window_max: usize,
    /// Index of the stop string that was found.
    stopped: Option<usize>,
    /// The window's text.
    text: String,
    /// Characters that are returned already.
    shown_chars: usize,
    /// Bytes of a character that later tokens may complete.
    unfinished: Vec<u8>,
    token_offset: usize,
}

impl TextStream {
    /// An empty text that ends before the first of `stop`.
    pub fn new(decoder: Arc<dyn TextDecoder>, stop: Arc<[String]>) -> Self {
        Self {
            decoder,
            stop,
            keeps_stop: false,
            unstoppable: 0,
            before: None,
            window: Vec::new(),
            shown: 0,
            searched_from: 0,
            window_max: 2 * WINDOW_KEPT,
            stopped: None,
            text: String::new(),
            shown_chars: 0,
            unfinished: Vec::new(),
            token_offset: 0,
        }
    }

    /// Sets whether the text includes the stop string, and the number of first tokens in which stop strings
    /// are ignored.
    pub fn stopping(mut self, keeps_stop: bool, unstoppable: usize) -> Self {
        (self.keeps_stop, self.unstoppable) = (keeps_stop, unstoppable);
        self
    }

    /// Sets the text before the stream, so that a space between the two is not lost. Call before the first
    /// token.
    pub fn after_prompt(mut self, ids: &[u32]) -> Self {
        self.window = ids[ids.len().saturating_sub(PROMPT_MAX)..].iter().copied().map(Token::from).collect();
        // A character that the prompt leaves unfinished belongs to the stream.
        let before = self.decode_from(0);
        self.before = Some(before.trim_end_matches(REPLACEMENT).to_owned());
        self
    }

    /// Adds a token and returns the text that is final now.
    pub fn push(&mut self, token: impl Into<Token>) -> String {
        let token = token.into();
        let text = self.decode_with(token);
        self.locate(token.id, &text);
        self.text.clone_from(&text);
        let settled = self.decoder.settled_len(&text);
        if self.unstoppable > 0 {
            self.unstoppable -= 1;
            let new = self.show(&text, settled);
            self.searched_from = self.shown;
            self.cut(&text);
            return new;
        }
        if let Some((at, stop)) = self.stop_position(&text) {
            self.stopped = Some(stop);
            return self.show(&text, if self.keeps_stop { at + self.stop[stop].len() } else { at });
        }
        let open = text.get(self.searched_from..settled).unwrap_or_default();
        let held = self.stop.iter().map(|stop| partial_match(open, stop)).max().unwrap_or(0);
        let new = self.show(&text, settled - held);
        self.searched_from = self.searched_from.max(self.shown);
        self.cut(&text);
        new
    }

    /// Returns the text that was held back. Call once, after the last token.
    pub fn finish(&mut self) -> String {
        if self.stopped.is_some() || self.before.is_some() {
            return String::new();
        }
        let text = self.decode_from(0);
        self.show(&text, text.len())
    }

    /// Returns the stop string that was found.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.map(|stop| self.stop[stop].as_str())
    }

    /// Where the last token begins in the text without a stop, in characters. Tokens that write one character
    /// together begin where it does.
    pub fn token_offset(&self) -> usize {
        self.token_offset
    }

    /// Where a token without text would begin: the length of the text, what is held back included, in
    /// characters.
    pub fn end_offset(&self) -> usize {
        self.shown_chars + chars(self.text.get(self.shown..))
    }

    /// Finds where a token begins, by the text of the window before it (`self.text`) and after it.
    fn locate(&mut self, id: u32, text: &str) {
        let same = text.chars().zip(self.text.chars()).take_while(|(now, before)| now == before);
        let same: usize = same.map(|(now, _)| now.len_utf8()).sum();
        let bytes = self.decoder.token_bytes(id);
        let joined = [self.unfinished.as_slice(), &bytes].concat();
        let completes = !self.unfinished.is_empty() && begins_with_character(&joined);
        if !completes {
            self.token_offset = self.shown_chars + chars(text.get(self.shown..same));
        }
        let open = if completes { joined } else { bytes };
        self.unfinished = unfinished_character(&open).to_vec();
    }

    /// The text of the window and one more token.
    fn decode_with(&mut self, token: Token) -> String {
        self.window.push(token);
        let text = self.decode_from(0);
        let Some(before) = self.before.take() else { return text };
        if text.starts_with(&before) {
            (self.shown, self.searched_from) = (before.len(), before.len());
            self.text = before;
            return text;
        }
        // The token changes the text of the prompt, which cannot change any more: decode the token alone.
        self.window = vec![token];
        self.decode_from(0)
    }

    /// The text of the window from its n-th token on.
    fn decode_from(&self, first: usize) -> String {
        self.decoder.decode_with_values(&self.window[first..])
    }

    /// Position of the first stop string, and the index of the longest one there.
    fn stop_position(&self, text: &str) -> Option<(usize, usize)> {
        let from = self.searched_from;
        let open = text.get(from..)?;
        let stops = self.stop.iter().enumerate().filter(|(_, stop)| !stop.is_empty());
        let found = stops.filter_map(|(index, stop)| Some((from + open.find(stop.as_str())?, index)));
        found.min_by_key(|&(at, index)| (at, std::cmp::Reverse(self.stop[index].len())))
    }

    fn show(&mut self, text: &str, end: usize) -> String {
        // An incomplete character may shorten the text before it until it is complete.
        if end <= self.shown {
            return String::new();
        }
        // Bytes that turn out not to be a character decode to more text; what was returned stays.
        let from = (self.shown..end).find(|&at| text.is_char_boundary(at)).unwrap_or(end);
        self.shown = end;
        let new = text.get(from..end).unwrap_or_default();
        self.shown_chars += chars(Some(new));
        new.to_owned()
    }

    /// Cuts off the beginning of a long window at a position that changes no text.
    fn cut(&mut self, text: &str) {
        if self.window.len() < self.window_max {
            return;
        }
        let kept = WINDOW_KEPT.min(self.window.len());
        let place = (1..=kept).rev().map(|kept| self.window.len() - kept).find_map(|first| {
            let tail = self.decode_from(first);
            let before = text.strip_suffix(tail.as_str())?;
            let fits = !tail.is_empty() && before.len() <= self.shown.min(self.searched_from);
            (fits && self.decoder.can_cut(before, &tail)).then_some((first, before.len()))
        });
        match place {
            Some((first, bytes)) => {
                self.window.drain(..first);
                self.shown -= bytes;
                self.text.drain(..bytes);
                self.searched_from -= bytes;
                self.window_max = 2 * WINDOW_KEPT;
            }
            // There is no such position, as in a text without word ends. Try again when the window has
            // doubled.
            None => self.window_max = 2 * self.window.len(),
        }
    }
}

/// Returns the number of characters of a part of a text, or 0 if the range is invalid, for example if it ends
/// before it begins.
fn chars(part: Option<&str>) -> usize {
    part.unwrap_or_default().chars().count()
}

/// Returns whether the first bytes are a character, or a part of one that later bytes may complete.
fn begins_with_character(bytes: &[u8]) -> bool {
    match std::str::from_utf8(bytes) {
        Ok(_) => true,
        Err(error) => error.valid_up_to() > 0 || error.error_len().is_none(),
    }
}

/// The last bytes, if later ones may make a character of them.
fn unfinished_character(mut bytes: &[u8]) -> &[u8] {
    while let Err(error) = std::str::from_utf8(bytes) {
        let rest = &bytes[error.valid_up_to()..];
        match error.error_len() {
            None => return rest,
            Some(invalid) => bytes = &rest[invalid..],
        }
    }
    &[]
}

/// Length of the longest end of `text` that is a proper beginning of `stop`, in bytes.
pub fn partial_match(text: &str, stop: &str) -> usize {
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
        fn token_bytes(&self, id: u32) -> Vec<u8> {
            vec![id as u8]
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
            if stream.stopped().is_some() {
                break;
            }
        }
        pieces.push(stream.finish());
        (pieces, stream.stopped().is_some())
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

    #[test]
    fn a_token_has_its_own_place_while_text_is_held_back() {
        let places = |bytes: &[u8], stop: &[&str], prompt: &[u32]| {
            let stop: Vec<String> = stop.iter().map(|&stop| stop.to_owned()).collect();
            let stream = TextStream::new(Arc::new(Bytes), stop.into());
            let mut stream = if prompt.is_empty() { stream } else { stream.after_prompt(prompt) };
            let place = |&byte: &u8| {
                stream.push(u32::from(byte));
                stream.token_offset()
            };
            let places: Vec<usize> = bytes.iter().map(place).collect();
            (places, stream.end_offset())
        };
        assert_eq!(places(b"abcd", &["abcdefgh"], &[]), (vec![0, 1, 2, 3], 4));
        assert_eq!(places(b"abcd", &["abcdefgh"], &[0x31, 0x32]), (vec![0, 1, 2, 3], 4));
        assert_eq!(places("1€2".as_bytes(), &[], &[]), (vec![0, 1, 1, 1, 2], 3));
        assert_eq!(places(&[0xE2, 0xE2, 0x82, b'a', b'b'], &[], &[]), (vec![0, 1, 1, 2, 3], 4));
        assert_eq!(places(&[0xFF; 4], &[], &[]), (vec![0, 1, 2, 3], 4));
        assert_eq!(places(&[b'a'; 100], &["aab"], &[]).0, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn stop_strings_are_included_or_ignored_as_requested() {
        let text = |keeps: bool, unstoppable: usize| {
            let mut stream = TextStream::new(Arc::new(Bytes), Arc::from(["b".to_owned(), "bc".to_owned()]))
                .stopping(keeps, unstoppable);
            let mut shown = String::new();
            for byte in *b"abcab" {
                shown += &stream.push(u32::from(byte));
                if stream.stopped().is_some() {
                    break;
                }
            }
            shown + &stream.finish()
        };
        assert_eq!(text(false, 0), "a");
        assert_eq!(text(true, 0), "ab");
        assert_eq!(text(false, 2), "abca");
        assert_eq!(text(true, 3), "abcab");
    }

    /// Words with a space before them, of which decoding drops the first, as SentencePiece does.
    struct Words;

    impl TextDecoder for Words {
        fn decode(&self, ids: &[u32]) -> String {
            let text: String = ids.iter().map(|id| format!(" {id}")).collect();
            text.trim_start().to_owned()
        }
        fn token_text(&self, id: u32) -> String {
            format!(" {id}")
        }
        fn settled_len(&self, text: &str) -> usize {
            text.len()
        }
    }

    #[test]
    fn the_space_after_a_prompt_is_not_lost() {
        let push = |stream: TextStream| {
            let mut stream = stream;
            (stream.push(5), stream.push(6))
        };
        let new = || TextStream::new(Arc::new(Words), Arc::from([]));
        assert_eq!(push(new()), ("5".into(), " 6".into()));
        assert_eq!(push(new().after_prompt(&[1, 2])), (" 5".into(), " 6".into()));
        assert_eq!(new().after_prompt(&[1, 2]).finish(), "");
        // A character that the prompt began is shown when it is whole.
        let mut stream = TextStream::new(Arc::new(Bytes), Arc::from([])).after_prompt(&[0x31, 0xE2, 0x82]);
        assert_eq!(stream.push(0xAC), "€");
    }

    #[test]
    fn a_long_text_is_decoded_in_a_window_and_reads_as_a_whole() {
        let mut stream = TextStream::new(Arc::new(Words), Arc::from(["999 1000".to_owned()]));
        let ids: Vec<u32> = (0..2000).collect();
        let mut text = String::new();
        for &id in &ids {
            text += &stream.push(id);
            assert!(stream.window.len() <= 2 * WINDOW_KEPT, "{} ids", stream.window.len());
            if stream.stopped().is_some() {
                break;
            }
        }
        assert_eq!(text, format!("{} ", Words.decode(&ids[..999])));
    }
}
