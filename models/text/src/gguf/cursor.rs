//! Reads the numbers and texts of a GGUF header one after the other, never beyond its end. Numbers are
//! little-endian.

/// Maximum length of a key or of a tensor's name, in bytes.
const NAME_BYTES_MAX: u64 = 1024;

pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The reason when the bytes end too early.
    end: &'static str,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], end: &'static str) -> Self {
        Self { bytes, at: 0, end }
    }

    /// The number of bytes read so far.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Returns the number of bytes that are left.
    pub(super) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    pub(super) fn take(&mut self, count: u64) -> Result<&'a [u8], String> {
        let count = usize::try_from(count).map_err(|_| self.end)?;
        let end = self.at.checked_add(count).ok_or(self.end)?;
        let taken = self.bytes.get(self.at..end).ok_or(self.end)?;
        self.at = end;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a text, which its length in bytes precedes.
    pub(super) fn text(&mut self) -> Result<&'a str, String> {
        let length = self.u64()?;
        if length > self.left() {
            return Err(format!("a text of {length} bytes, but {}", self.end));
        }
        str::from_utf8(self.take(length)?).map_err(|error| format!("a text is not UTF-8: {error}"))
    }

    /// Reads a key or the name of a tensor.
    pub(super) fn name(&mut self) -> Result<&'a str, String> {
        let length = self.u64()?;
        if !(1..=NAME_BYTES_MAX).contains(&length) {
            return Err(format!("{length} bytes; 1 to {NAME_BYTES_MAX} are possible"));
        }
        let name = str::from_utf8(self.take(length)?).map_err(|error| format!("not UTF-8: {error}"))?;
        if name.chars().any(ntl_core::is_unprintable) {
            return Err("it has unprintable characters".to_owned());
        }
        Ok(name)
    }
}
