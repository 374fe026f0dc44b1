//! Compressed request bodies: gzip, deflate and zstd.
//!
//! Invariant: a body is decompressed only up to the limit of one body, and its buffer is charged to the
//! budget of all bodies, so that a small body that would become a huge one is rejected early. A client has at
//! most as many bodies decompressed at the same time as there are processors.

use std::io::{self, Read};

use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use ruzstd::decoding::StreamingDecoder;

use crate::blocking::run_blocking;
use crate::body_budget::BodyCharge;
use crate::error::AppError;

/// Bytes that are decompressed at a time.
const CHUNK_BYTES: usize = 16 << 10;

/// Maximum window of zstd, which a decoder holds in addition to the body: the size that RFC 8878 recommends
/// to support.
const ZSTD_WINDOW_BYTES_MAX: u64 = 8 << 20;

/// How a body is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentCoding {
    Identity,
    Gzip,
    Deflate,
    Zstd,
}

impl ContentCoding {
    /// Reads the value of the header `Content-Encoding`.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Some(Self::Identity),
            "gzip" | "x-gzip" => Some(Self::Gzip),
            "deflate" => Some(Self::Deflate),
            "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Zstd => "zstd",
        }
    }

    fn reader(self, body: &[u8]) -> io::Result<Box<dyn Read + '_>> {
        Ok(match self {
            Self::Identity => Box::new(body),
            Self::Gzip => Box::new(MultiGzDecoder::new(body)),
            // The standard means the zlib format, and some clients send the bare data.
            Self::Deflate if has_zlib_header(body) => Box::new(ZlibDecoder::new(body)),
            Self::Deflate => Box::new(DeflateDecoder::new(body)),
            Self::Zstd => {
                let decoder = StreamingDecoder::new_with_max_window_size(body, ZSTD_WINDOW_BYTES_MAX);
                Box::new(decoder.map_err(io::Error::other)?)
            }
        })
    }
}

fn has_zlib_header(body: &[u8]) -> bool {
    match *body {
        [method, flags, ..] => method & 0x0f == 8 && u16::from_be_bytes([method, flags]).is_multiple_of(31),
        _ => false,
    }
}

/// Returns the body without its compression, with the charge of its buffer.
pub(super) async fn decompress(
    client: u64,
    body: Vec<u8>,
    coding: ContentCoding,
    bytes_max: usize,
    charge: BodyCharge,
) -> Result<(Vec<u8>, BodyCharge), AppError> {
    if coding == ContentCoding::Identity {
        return Ok((body, charge));
    }
    // Otherwise its bytes could be released while it waits for a thread and still holds them.
    charge.arrived();
    // A few bytes may become many.
    run_blocking(client, usize::MAX, move || {
        let held = body.capacity();
        let whole = read_all(&body, coding, bytes_max, |bytes| charge.grow_to(held + bytes))?;
        Ok((whole, charge))
    })
    .await
}

/// Decompresses a body. `reserve` is called with the size of the buffer before it grows.
fn read_all(
    body: &[u8],
    coding: ContentCoding,
    bytes_max: usize,
    mut reserve: impl FnMut(usize) -> Result<(), AppError>,
) -> Result<Vec<u8>, AppError> {
    let mut reader = coding.reader(body).map_err(|error| invalid(coding, &error))?;
    let mut whole = Vec::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = reader.read(&mut chunk).map_err(|error| invalid(coding, &error))?;
        if read == 0 {
            return Ok(whole);
        }
        let needed = whole.len() + read;
        if needed > bytes_max {
            return Err(AppError::BodyTooLarge { bytes_max });
        }
        if needed > whole.capacity() {
            let capacity = needed.max(2 * whole.capacity()).min(bytes_max);
            reserve(capacity)?;
            whole.reserve_exact(capacity - whole.len());
        }
        whole.extend_from_slice(&chunk[..read]);
    }
}

fn invalid(coding: ContentCoding, error: &io::Error) -> AppError {
    AppError::Invalid { message: format!("the body is not valid {}: {error}", coding.name()), param: None }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn compressed(text: &[u8]) -> Vec<(ContentCoding, Vec<u8>)> {
        let level = Compression::best();
        let mut gzip = GzEncoder::new(Vec::new(), level);
        let mut zlib = ZlibEncoder::new(Vec::new(), level);
        let mut deflate = DeflateEncoder::new(Vec::new(), level);
        gzip.write_all(text).unwrap();
        zlib.write_all(text).unwrap();
        deflate.write_all(text).unwrap();
        vec![
            (ContentCoding::Gzip, gzip.finish().unwrap()),
            (ContentCoding::Deflate, zlib.finish().unwrap()),
            (ContentCoding::Deflate, deflate.finish().unwrap()),
            (ContentCoding::Zstd, compress_to_vec(text, CompressionLevel::Fastest)),
        ]
    }

    #[test]
    fn every_coding_returns_the_text() {
        let text = b"{\"prompt\": \"three times three times three\"}".repeat(50);
        for (coding, body) in compressed(&text) {
            assert!(body.len() < text.len(), "{coding:?}");
            let whole = read_all(&body, coding, text.len(), |_| Ok(())).unwrap();
            assert_eq!(whole, text, "{coding:?}");
            let error = read_all(&body, coding, text.len() - 1, |_| Ok(())).unwrap_err();
            assert!(matches!(error, AppError::BodyTooLarge { .. }), "{coding:?}: {error}");
            let error = read_all(&body[..body.len() / 2], coding, text.len(), |_| Ok(())).unwrap_err();
            assert!(error.to_string().contains("is not valid"), "{coding:?}: {error}");
        }
    }

    #[test]
    fn a_bomb_is_rejected_before_its_buffer_grows_beyond_the_limit() {
        const BYTES_MAX: usize = 1 << 20;
        for (coding, body) in compressed(&vec![b' '; 64 << 20]) {
            assert!(body.len() < 200_000, "{coding:?} {}", body.len());
            let mut largest = 0;
            let read = read_all(&body, coding, BYTES_MAX, |bytes| {
                largest = largest.max(bytes);
                Ok(())
            });
            assert!(matches!(read, Err(AppError::BodyTooLarge { .. })), "{coding:?}");
            assert!(largest <= BYTES_MAX, "{coding:?} {largest}");
        }
    }
}
