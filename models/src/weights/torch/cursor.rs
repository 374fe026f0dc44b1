//! Reads the arguments in a pickle's bytes one after the other, and never reads beyond the end.

pub(super) const CUT_OFF: &str = "its pickle is cut off";

pub(super) const DAMAGED: &str = "its pickle is damaged";

pub(super) struct Cursor<'p> {
    bytes: &'p [u8],
    at: usize,
}

impl<'p> Cursor<'p> {
    pub(super) fn new(bytes: &'p [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Number of bytes read so far.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'p [u8], String> {
        let taken = self.bytes.get(self.at..).and_then(|rest| rest.get(..count)).ok_or(CUT_OFF)?;
        self.at += count;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let bytes = self.take(N)?;
        Ok(*bytes.first_chunk().ok_or(CUT_OFF)?)
    }

    pub(super) fn byte(&mut self) -> Result<u8, String> {
        self.array().map(|[byte]| byte)
    }

    /// Reads a text up to the end of its line.
    pub(super) fn line(&mut self) -> Result<&'p str, String> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let len = rest.iter().position(|&byte| byte == b'\n').ok_or(CUT_OFF)?;
        let line = std::str::from_utf8(self.take(len)?).map_err(|_| DAMAGED)?;
        self.take(1)?;
        Ok(line)
    }

    /// Reads a text that follows its length, which has `length_bytes` bytes (at most 8).
    pub(super) fn text(&mut self, length_bytes: usize) -> Result<&'p str, String> {
        let mut length = [0; 8];
        length[..length_bytes].copy_from_slice(self.take(length_bytes)?);
        let bytes = self.take(usize::try_from(u64::from_le_bytes(length)).map_err(|_| CUT_OFF)?)?;
        std::str::from_utf8(bytes).map_err(|_| "its pickle has a text that is not UTF-8".to_owned())
    }

    /// Reads an integer that follows its number of bytes.
    pub(super) fn long(&mut self) -> Result<i64, String> {
        let len = usize::from(self.byte()?);
        let bytes = self.take(len)?;
        if len > 8 {
            return Err("its pickle has an integer of more than 64 bits".to_owned());
        }
        let filler = if bytes.last().is_some_and(|&last| last >= 0x80) { 0xff } else { 0 };
        let mut whole = [filler; 8];
        whole[..len].copy_from_slice(bytes);
        Ok(i64::from_le_bytes(whole))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_in_order_and_never_beyond_the_end() {
        let mut cursor = Cursor::new(b"os\nsystem\n\x02ab\x01\xff\x02\x00\x01\x00");
        assert_eq!((cursor.line().unwrap(), cursor.line().unwrap()), ("os", "system"));
        assert_eq!(cursor.text(1).unwrap(), "ab");
        assert_eq!([cursor.long().unwrap(), cursor.long().unwrap(), cursor.long().unwrap()], [-1, 256, 0]);
        assert_eq!(cursor.at(), 19);
        assert_eq!(cursor.line().unwrap_err(), CUT_OFF);
        assert_eq!(cursor.text(8).unwrap_err(), CUT_OFF);
        assert_eq!(cursor.long().unwrap_err(), CUT_OFF);
    }
}
