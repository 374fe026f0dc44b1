//! The part of a format that the parser needs, and the search for markers that all formats share.

use ntl_core::text::partial_match;

/// The next part of the unread text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The format needs more text to decide.
    Wait,
    /// This many bytes are ordinary text, and so is the opening markup before them.
    Text(usize),
    /// This many bytes are markup before a call. They become text if no call follows.
    Opening(usize),
    /// This many bytes are markup after a call.
    Closing(usize),
    /// After this many bytes of markup, a JSON object with the name and the arguments of a call begins.
    Call(usize),
    /// The JSON object with the arguments begins after the function's name and more markup.
    Arguments { name_bytes: usize, bytes: usize },
}

/// How a family writes calls.
///
/// The parser takes one step after the other. It reads the objects of [`Step::Call`] and [`Step::Arguments`]
/// itself, and continues after them if they are calls.
pub(super) trait CallFormat: Send {
    /// Decides about the beginning of the unread text.
    fn step(&mut self, rest: &str) -> Step;

    /// Returns whether the rest of a text, which ends after a call, is nothing but markup.
    fn ends_in_markup(&self, rest: &str) -> bool {
        rest.trim().is_empty()
    }

    /// The object was not a call; ordinary text follows.
    fn reject(&mut self);
}

/// Searches for markers in ordinary text. Whitespace before a marker belongs to the markup.
pub(super) fn seek(rest: &str, markers: &[&str]) -> Step {
    let positions = markers.iter().filter_map(|marker| Some((rest.find(marker)?, marker.len())));
    if let Some((at, bytes)) = positions.min() {
        return match rest[..at].trim_end().len() {
            0 => Step::Opening(at + bytes),
            text => Step::Text(text),
        };
    }
    let begun = markers.iter().map(|marker| partial_match(rest, marker)).max().unwrap_or(0);
    match rest[..rest.len() - begun].trim_end().len() {
        0 => Step::Wait,
        text => Step::Text(text),
    }
}

/// Whether a text follows whitespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It does; the whitespace and the text have this many bytes.
    Found(usize),
    /// The unread text is too short to know.
    Unknown,
    Other,
}

/// Looks for `wanted` after whitespace.
pub(super) fn next_is(rest: &str, wanted: &str) -> Next {
    let trimmed = rest.trim_start();
    if trimmed.starts_with(wanted) {
        Next::Found(rest.len() - trimmed.len() + wanted.len())
    } else if wanted.starts_with(trimmed) {
        Next::Unknown
    } else {
        Next::Other
    }
}

/// The step to the object of a call, which has to follow whitespace.
pub(super) fn object(rest: &str) -> Step {
    match next_is(rest, "{") {
        Next::Found(bytes) => Step::Call(bytes - 1),
        Next::Unknown => Step::Wait,
        Next::Other => Step::Text(0),
    }
}
