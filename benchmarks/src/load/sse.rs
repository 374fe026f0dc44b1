//! Splits the data of server-sent events out of a byte stream as it arrives.

#[derive(Debug, Default)]
pub(super) struct Events {
    /// Bytes of the last line, which is still incomplete.
    buffer: Vec<u8>,
}

impl Events {
    /// Appends bytes and returns the data of the lines that they complete.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.buffer.extend_from_slice(bytes);
        let mut complete = Vec::new();
        while let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if let Some(data) = line.trim_end().strip_prefix("data:") {
                complete.push(data.trim_start().to_owned());
            }
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_no_matter_where_the_bytes_are_split() {
        let stream = b"data: {\"a\":1}\n\n: ping\n\ndata: [DONE]\n\n";
        for cut in 0..stream.len() {
            let mut events = Events::default();
            let mut found = events.push(&stream[..cut]);
            found.extend(events.push(&stream[cut..]));
            assert_eq!(found, ["{\"a\":1}", "[DONE]"], "cut at {cut}");
        }
    }
}
