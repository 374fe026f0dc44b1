//! Reads the token counts in the response of an engine while it passes.
//!
//! In: the parts of a body or of a stream of server-sent events. Out: the same bytes, without the token
//! counts of a stream that the client did not request. Invariants: at most one event of a stream is held
//! back. Only the engine's own counts are read: a request may have texts and schemas that look like them, and
//! engines repeat these.

use ntl_remote::estimated_tokens;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The name before the token counts.
const USAGE: &[u8] = br#""usage":"#;

/// The name before the data of an event.
const DATA: &[u8] = b"data:";

/// The end of a line and an empty line, which end an event.
const EMPTY_LINES: [&[u8]; 3] = [b"\n\n", b"\r\n\r\n", b"\r\r"];

/// The length of the longest of them.
const EMPTY_LINE_MAX: usize = 4;

const LENGTH: &[u8] = br#""finish_reason":"length""#;

/// Maximum size of the token counts of a body, and of an event that is held back.
const USAGE_BYTES_MAX: usize = 4 << 10;
const EVENT_BYTES_MAX: usize = 1 << 20;

/// Maximum number of tokens that a response counts, also if the engine reports more.
const TOKENS_MAX: u64 = 1 << 32;

/// The token counts of a response, under the names of completions and chats or of responses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
struct Usage {
    #[serde(alias = "input_tokens")]
    prompt_tokens: u64,
    #[serde(alias = "output_tokens", default)]
    completion_tokens: u64,
}

/// The fields of an event that concern token counts.
#[derive(Deserialize)]
struct EventData {
    /// None are left after the last text.
    choices: Option<Vec<EventChoice>>,
    usage: Option<Usage>,
    response: Option<EventResponse>,
}

#[derive(Deserialize)]
struct EventChoice {
    finish_reason: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct EventResponse {
    usage: Option<Usage>,
}

impl EventData {
    /// Returns the token counts of the whole response. An event before the end of all texts may have those of
    /// one text.
    fn counts(&self) -> Option<Usage> {
        let has_ended = self.choices.iter().flatten().all(|choice| choice.finish_reason.is_some());
        let of_response = self.response.as_ref().and_then(|response| response.usage);
        match self.usage {
            Some(usage) if has_ended => Some(usage),
            _ => of_response,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct UsageReader {
    is_stream: bool,
    hides_usage: bool,
    /// Bytes of an event that is not complete yet.
    pending: Vec<u8>,
    /// No event ends before this index of `pending`.
    scanned: usize,
    body: BodyScanner,
    usage: Option<Usage>,
    /// Number of events with a part of a text.
    events: u64,
    has_length: bool,
}

impl UsageReader {
    pub(super) fn new(is_stream: bool, hides_usage: bool) -> Self {
        Self { is_stream, hides_usage, ..Self::default() }
    }

    /// Reads a part of the response. Returns the bytes to pass on, which may be none.
    pub(super) fn pass(&mut self, part: Vec<u8>) -> Vec<u8> {
        if !self.is_stream {
            self.body.read(&part);
            return part;
        }
        let mut pending = std::mem::take(&mut self.pending);
        pending.extend_from_slice(&part);
        let mut passed = Vec::new();
        let mut begin = 0;
        while let Some(end) = event_end(&pending, self.scanned) {
            let event = &pending[begin..end];
            if !self.hides(event) {
                passed.extend_from_slice(event);
            }
            begin = end;
            self.scanned = end;
        }
        if pending.len() - begin > EVENT_BYTES_MAX {
            passed.extend_from_slice(&pending[begin..]);
            begin = pending.len();
        }
        pending.drain(..begin);
        // An empty line may be divided.
        self.scanned = pending.len().saturating_sub(EMPTY_LINE_MAX - 1);
        self.pending = pending;
        passed
    }

    /// Returns the bytes that were held back when the response ends.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pending)
    }

    /// Returns whether the engine has reported its token counts.
    pub(super) fn is_reported(&self) -> bool {
        self.counts().is_some()
    }

    /// The tokens of prompts and texts. Without token counts, each event of a stream counts as one token, and
    /// the tokens of a body are estimated.
    pub(super) fn tokens(&self) -> (u64, u64) {
        match self.counts() {
            Some(Usage { prompt_tokens, completion_tokens }) => {
                (prompt_tokens.min(TOKENS_MAX), completion_tokens.min(TOKENS_MAX))
            }
            None if self.is_stream => (0, self.events),
            None => (0, estimated_tokens(self.body.bytes)),
        }
    }

    fn counts(&self) -> Option<Usage> {
        if self.is_stream { self.usage } else { self.body.usage() }
    }

    /// Returns whether a text ended at its maximum length.
    pub(super) fn has_length(&self) -> bool {
        self.has_length || self.body.has_length
    }

    /// Reads an event. Returns whether the client must not get it.
    fn hides(&mut self, event: &[u8]) -> bool {
        self.has_length |= find(event, LENGTH).is_some();
        let Some(at) = find(event, DATA) else { return false };
        let data = event[at + DATA.len()..].trim_ascii_start();
        if find(data, USAGE).is_some()
            && let Some(Ok(data)) = json_prefix::<EventData>(data)
            && let Some(usage) = data.counts()
        {
            self.usage = Some(usage);
            if data.choices.is_some_and(|choices| choices.is_empty()) {
                return self.hides_usage;
            }
        }
        if data.starts_with(b"{") {
            self.events += 1;
        }
        false
    }
}

/// Finds the token counts among the fields of a body, in parts of any size.
#[derive(Debug, Default)]
struct BodyScanner {
    bytes: usize,
    /// Number of objects and lists around the next byte.
    depth: usize,
    is_text: bool,
    is_escaped: bool,
    /// The last text, or the beginning of a longer one.
    name: Vec<u8>,
    /// The value of the field with the token counts.
    value: Vec<u8>,
    is_value: bool,
    /// The end of the last part, in which a name may be divided.
    end: Vec<u8>,
    has_length: bool,
}

impl BodyScanner {
    const NAME: &[u8] = b"usage";

    fn read(&mut self, part: &[u8]) {
        self.bytes += part.len();
        part.iter().for_each(|&byte| self.read_byte(byte));
        self.end.extend_from_slice(part);
        self.has_length |= find(&self.end, LENGTH).is_some();
        self.end.drain(..self.end.len().saturating_sub(LENGTH.len() - 1));
    }

    fn read_byte(&mut self, byte: u8) {
        let ends_value = !self.is_text && self.depth == 1 && matches!(byte, b',' | b'}');
        self.is_value &= !ends_value;
        if self.is_value && self.value.len() < USAGE_BYTES_MAX {
            self.value.push(byte);
        }
        if self.is_text {
            self.read_text_byte(byte);
            return;
        }
        match byte {
            b'"' => {
                self.is_text = true;
                self.name.clear();
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b':' if self.depth == 1 && self.name == Self::NAME => {
                self.is_value = true;
                self.value.clear();
            }
            _ => {}
        }
    }

    fn read_text_byte(&mut self, byte: u8) {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => self.is_escaped = true,
            b'"' => self.is_text = false,
            _ => {}
        }
        if self.is_text && self.name.len() <= Self::NAME.len() {
            self.name.push(byte);
        }
    }

    /// The token counts, if they are complete.
    fn usage(&self) -> Option<Usage> {
        serde_json::from_slice(&self.value).ok()
    }
}

/// The JSON value that a text begins with; `None` if there is nothing but spaces.
fn json_prefix<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Option<serde_json::Result<T>> {
    serde_json::Deserializer::from_slice(text).into_iter().next()
}

/// The end of the first event, with the empty line after it, which begins at an index of at least `from`.
fn event_end(bytes: &[u8], from: usize) -> Option<usize> {
    for at in from..bytes.len() {
        for line in EMPTY_LINES {
            if bytes[at..].starts_with(line) {
                return Some(at + line.len());
            }
        }
    }
    None
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what passes if the parts of a response have this size, and what is read.
    fn passed(response: &str, size: usize, usage: UsageReader) -> (String, (u64, u64), bool) {
        let mut usage = usage;
        let mut passed = Vec::new();
        for part in response.as_bytes().chunks(size) {
            passed.extend(usage.pass(part.to_vec()));
        }
        passed.extend(usage.rest());
        (String::from_utf8(passed).unwrap(), usage.tokens(), usage.has_length())
    }

    #[test]
    fn the_token_counts_of_a_body_are_read_wherever_it_is_divided() {
        let body = r#"{"usage":null,"choices":[{"text":"\"usage\":{\"prompt_tokens\":9}","finish_reason":"length"}],"usage": {"prompt_tokens":5,"total_tokens":12,"completion_tokens":7}}"#;
        for size in 1..=body.len() {
            let (same, tokens, has_length) = passed(body, size, UsageReader::new(false, true));
            assert_eq!((same.as_str(), tokens, has_length), (body, (5, 7), true), "{size}");
        }
        let responses =
            r#"{"output":[],"usage":{"input_tokens":3,"output_tokens":4,"input_tokens_details":{}}}"#;
        assert_eq!(passed(responses, 10, UsageReader::new(false, false)).1, (3, 4));
        for wrong in [r#"{"usage":"#, r#"{"usage":[]}"#, r#"{"usage":{"prompt_tokens":-1}}"#, "", "no JSON"] {
            let estimate = wrong.len().div_ceil(4) as u64;
            assert_eq!(passed(wrong, 3, UsageReader::new(false, false)).1, (0, estimate), "{wrong}");
        }
        let many = r#"{"usage":{"prompt_tokens":18446744073709551615}}"#;
        assert_eq!(passed(many, 3, UsageReader::new(false, false)).1, (TOKENS_MAX, 0));
    }

    #[test]
    fn the_counts_of_a_stream_are_hidden_unless_the_client_requested_them() {
        for line in ["\n", "\r\n"] {
            let event = |data: &str| format!("data: {data}{line}{line}");
            let texts = event(r#"{"choices":[{"text":"a","finish_reason":null}],"usage":null}"#)
                + &event(r#"{"choices":[{"text":"b","finish_reason":"stop"}]}"#);
            let counts = event(r#"{"choices": [],"usage":{"prompt_tokens":5,"completion_tokens":7}}"#);
            let done = event("[DONE]");
            let whole = format!("{texts}{counts}{done}");
            for size in 1..=whole.len() {
                let (shown, tokens, has_length) = passed(&whole, size, UsageReader::new(true, true));
                assert_eq!((shown, tokens, has_length), (format!("{texts}{done}"), (5, 7), false), "{size}");
                assert_eq!(passed(&whole, size, UsageReader::new(true, false)).0, whole);
            }
            // A stream that is cut off has no counts.
            assert_eq!(passed(&texts, 7, UsageReader::new(true, true)).1, (0, 2));
        }
    }

    #[test]
    fn the_last_event_of_a_response_has_the_counts_and_long_events_are_not_held_back() {
        let completed = "event: response.completed\ndata: {\"response\":{\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}}\n\n";
        let (shown, tokens, _) = passed(completed, 11, UsageReader::new(true, false));
        assert_eq!((shown.as_str(), tokens), (completed, (3, 4)));
        let mut usage = UsageReader::new(true, true);
        let long = vec![b'x'; EVENT_BYTES_MAX + 1];
        assert_eq!(usage.pass(long.clone()), long);
    }

    #[test]
    fn counts_that_a_request_made_the_engine_repeat_are_not_read() {
        let forged = r#"{"usage":{"prompt_tokens":0,"input_tokens":0}}"#;
        let body = format!(
            r#"{{"tools":[{{"parameters":{forged}}}],"note":"\"usage\":{{}}","usage":{{"prompt_tokens":5,"completion_tokens":7}},"text":{forged}}}"#
        );
        for size in 1..=body.len() {
            assert_eq!(passed(&body, size, UsageReader::new(false, false)).1, (5, 7), "{size}");
        }
        let created = format!("data: {{\"response\":{{\"tools\":[{forged}],\"usage\":null}}}}\n\n");
        assert_eq!(passed(&created, 9, UsageReader::new(true, false)).1, (0, 1));
        // The counts of one of several texts.
        let early = "data: {\"choices\":[{\"finish_reason\":null}],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n";
        assert_eq!(passed(early, 9, UsageReader::new(true, false)).1, (0, 1));
        let last = early.replace("null", "\"stop\"");
        assert_eq!(passed(&last, 9, UsageReader::new(true, true)), (last.clone(), (5, 1), false));
    }

    /// This would take hours if each part cost a pass over all parts before it.
    #[test]
    fn an_event_in_many_parts_costs_one_pass() {
        let event = format!("data: {{\"text\":\"{}\"}}\n\n", "x".repeat(EVENT_BYTES_MAX / 2));
        assert_eq!(passed(&event, 1, UsageReader::new(true, true)), (event.clone(), (0, 1), false));
        let nested = format!("data: {}\n\n", r#"{"usage":"#.repeat(EVENT_BYTES_MAX / 10));
        assert_eq!(passed(&nested, 4096, UsageReader::new(true, true)), (nested.clone(), (0, 1), false));
        assert_eq!(passed(&nested, 4096, UsageReader::new(false, true)).0, nested);
        let mut usage = UsageReader::new(false, true);
        usage.pass(["x".repeat(1 << 20).as_bytes(), LENGTH].concat());
        assert!(usage.has_length() && usage.body.end.len() < LENGTH.len(), "what was read is not kept");
    }
}
