//! Reads the zip archives that PyTorch writes: uncompressed entries, listed in a directory at the end.
//!
//! In: an open file. Out: the offset and size of each entry, which always lies inside the file. Compressed
//! and encrypted entries are rejected, so that no entry is larger than its bytes in the file. Layout: APPNOTE
//! 6.3.10 of PKWARE, sections 4.3 and 4.5. General zip readers are not used, because they allocate the sizes
//! that the zip directory claims.

use std::collections::BTreeMap;

use ntl_text::checkpoint::FileReader;

/// Maximum size of the zip directory, in bytes. It is enough for some hundred thousand entries.
const LIST_BYTES_MAX: u64 = 64 << 20;

/// Size of the record at the end, without the comment that follows it, in bytes.
const END_BYTES: usize = 22;
/// Size of the locator before that record in archives of more than 4 GB, in bytes.
const LOCATOR_BYTES: usize = 20;
const COMMENT_BYTES_MAX: usize = 65_535;

const END: [u8; 4] = *b"PK\x05\x06";
const LOCATOR: [u8; 4] = *b"PK\x06\x07";
const LARGE_END: [u8; 4] = *b"PK\x06\x06";
const LISTED: [u8; 4] = *b"PK\x01\x02";
const LOCAL: [u8; 4] = *b"PK\x03\x04";

pub(super) struct Archive<'r, 'a> {
    reader: &'r FileReader<'a>,
    entries: BTreeMap<String, Listed>,
}

/// An entry of the zip directory.
struct Listed {
    /// Offset of its local header.
    header: u64,
    size: u64,
    /// The reason why the entry cannot be read.
    refused: Option<&'static str>,
}

/// Location of an entry's bytes, all of which lie inside the file.
pub(super) struct EntryBytes {
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// Location of the zip directory.
struct List {
    offset: u64,
    size: u64,
    entries: u64,
}

impl<'r, 'a> Archive<'r, 'a> {
    pub(super) fn open(reader: &'r FileReader<'a>) -> Result<Self, String> {
        let list = find_list(reader)?;
        if list.size > LIST_BYTES_MAX {
            return Err(format!("its list of entries claims {} bytes", list.size));
        }
        let bytes = reader
            .part(list.offset, list.size)
            .map_err(|_| "its list of entries is not in the file".to_owned())?;
        let mut entries = BTreeMap::new();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (name, entry, after) = listed(rest).ok_or("its list of entries is damaged")?;
            if entries.insert(name.clone(), entry).is_some() {
                return Err(format!("entry `{name}` is there twice"));
            }
            rest = after;
        }
        if entries.len() as u64 != list.entries {
            return Err(format!("it claims {} entries and lists {}", list.entries, entries.len()));
        }
        Ok(Self { reader, entries })
    }

    /// Returns the only entry whose name ends in `end`.
    pub(super) fn named_once(&self, end: &str) -> Result<&str, String> {
        let mut named = self.entries.keys().filter(|name| name.ends_with(end));
        match (named.next(), named.next()) {
            (Some(name), None) => Ok(name),
            (None, _) => Err(format!("it has no entry `*{end}`: PyTorch did not write it")),
            (Some(one), Some(two)) => Err(format!("it has two pickles, `{one}` and `{two}`")),
        }
    }

    /// Reads an entry of at most `max` bytes.
    pub(super) fn bytes(&self, name: &str, max: u64) -> Result<Vec<u8>, String> {
        let EntryBytes { offset, size } = self.place(name)?;
        if size > max {
            return Err(format!("entry `{name}` has {size} bytes; the limit is {max}"));
        }
        self.reader.part(offset, size).map_err(|error| format!("entry `{name}`: {error}"))
    }

    pub(super) fn place(&self, name: &str) -> Result<EntryBytes, String> {
        let entry = self.entries.get(name).ok_or_else(|| format!("it has no entry `{name}`"))?;
        if let Some(refused) = entry.refused {
            return Err(format!("entry `{name}` is {refused}, which PyTorch never does"));
        }
        let misplaced = || format!("entry `{name}` is not where the list says");
        let header = self.reader.part(entry.header, 30).map_err(|_| misplaced())?;
        if header.get(..4) != Some(&LOCAL) {
            return Err(misplaced());
        }
        let lengths = u16_at(&header, 26).zip(u16_at(&header, 28));
        let (name_bytes, extra_bytes) = lengths.ok_or_else(misplaced)?;
        let offset = entry.header + 30 + u64::from(name_bytes) + u64::from(extra_bytes);
        match offset.checked_add(entry.size) {
            Some(end) if end <= self.reader.size() => Ok(EntryBytes { offset, size: entry.size }),
            _ => Err(format!("entry `{name}` claims {} bytes, more than the file has", entry.size)),
        }
    }
}

/// Finds the zip directory by the record at the end of the file.
fn find_list(reader: &FileReader<'_>) -> Result<List, String> {
    let most = (LOCATOR_BYTES + END_BYTES + COMMENT_BYTES_MAX) as u64;
    let from = reader.size().saturating_sub(most);
    let tail = reader.part(from, reader.size() - from).map_err(|error| error.to_string())?;
    let at = (0..tail.len())
        .rev()
        .find(|&at| is_end(&tail[at..]))
        .ok_or("it is cut off or no archive: its end is not that of one")?;
    let list = List {
        entries: u16_at(&tail, at + 10).unwrap_or(0).into(),
        size: u32_at(&tail, at + 12).unwrap_or(0).into(),
        offset: u32_at(&tail, at + 16).unwrap_or(0).into(),
    };
    let locator = at.checked_sub(LOCATOR_BYTES).filter(|&locator| tail[locator..].starts_with(&LOCATOR));
    match locator.and_then(|locator| u64_at(&tail, locator + 8)) {
        Some(large) => large_list(reader, large).ok_or_else(|| "its end is damaged".to_owned()),
        None => Ok(list),
    }
}

/// Returns whether bytes are the record at the end of an archive, with its comment.
fn is_end(bytes: &[u8]) -> bool {
    match u16_at(bytes, 20) {
        Some(comment) => bytes.starts_with(&END) && END_BYTES + usize::from(comment) == bytes.len(),
        None => false,
    }
}

/// Reads the record at the end of archives of more than 4 GB.
fn large_list(reader: &FileReader<'_>, offset: u64) -> Option<List> {
    let record = reader.part(offset, 56).ok().filter(|record| record.starts_with(&LARGE_END))?;
    Some(List { entries: u64_at(&record, 32)?, size: u64_at(&record, 40)?, offset: u64_at(&record, 48)? })
}

/// Returns the first entry of a zip directory, with its name, and the rest of the directory.
fn listed(list: &[u8]) -> Option<(String, Listed, &[u8])> {
    const FIXED: usize = 46;
    const ENCRYPTED: u16 = 1;
    if !list.starts_with(&LISTED) {
        return None;
    }
    let name = usize::from(u16_at(list, 28)?);
    let extra = usize::from(u16_at(list, 30)?);
    let comment = usize::from(u16_at(list, 32)?);
    let text = String::from_utf8_lossy(list.get(FIXED..FIXED + name)?).into_owned();
    let extra_bytes = list.get(FIXED + name..FIXED + name + extra)?;
    let stored = [u32_at(list, 24)?, u32_at(list, 20)?, u32_at(list, 42)?];
    let [size, packed, header] = large_sizes(stored, extra_bytes)?;
    let refused = match (u16_at(list, 8)? & ENCRYPTED, u16_at(list, 10)?) {
        (0, 0) if size == packed => None,
        (0, _) => Some("compressed"),
        _ => Some("encrypted"),
    };
    let after = list.get(FIXED + name + extra + comment..)?;
    Some((text, Listed { header, size, refused }, after))
}

/// Replaces sizes that do not fit into 32 bits by the sizes in the extra field, which has the same order.
fn large_sizes(stored: [u32; 3], mut extra: &[u8]) -> Option<[u64; 3]> {
    const LARGE: u16 = 1;
    let mut sizes = stored.map(u64::from);
    if !stored.contains(&u32::MAX) {
        return Some(sizes);
    }
    while !extra.is_empty() {
        let id = u16_at(extra, 0)?;
        let len = u16_at(extra, 2)?;
        let (field, rest) = extra.get(4..)?.split_at_checked(len.into())?;
        if id == LARGE {
            let mut large = field.chunks_exact(8).filter_map(|bytes| u64_at(bytes, 0));
            for (size, stored) in sizes.iter_mut().zip(stored) {
                if stored == u32::MAX {
                    *size = large.next()?;
                }
            }
            return Some(sizes);
        }
        extra = rest;
    }
    None
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
