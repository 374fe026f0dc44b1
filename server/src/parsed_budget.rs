//! One budget of bytes for what request bodies become once they are parsed, until their prompts are tokenized.
//!
//! In: JSON. Out: its share of the budget. A request whose share is taken waits for it, in the order of arrival. The share is a
//! bound that is read off the text before anything is built of it: a body of 2 MiB may become 190 times as large.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::blocking::{acquire, run_blocking};
use crate::error::AppError;

/// Most bytes that a list or an object takes while it has at most four values: they get room for four at once, in what
/// distinguishes the kinds of a field and in the value that is made of it.
const LIST_BYTES: usize = 768;

/// Most bytes of each further value, whose list or object grows by doubling.
const ELEMENT_BYTES: usize = 288;

/// Most bytes of each name of an object besides.
const NAME_BYTES: usize = 192;

#[derive(Debug)]
pub(crate) struct ParsedBudget {
    bytes_max: usize,
    free: Arc<Semaphore>,
}

/// The share of one request. Dropping it returns the share.
#[derive(Debug)]
pub(crate) struct ParsedShare {
    _bytes: OwnedSemaphorePermit,
}

impl ParsedBudget {
    pub(crate) fn new(bytes_max: usize) -> Self {
        // Shares are counted in 32 bits.
        let bytes_max = bytes_max.min(u32::MAX as usize);
        Self { bytes_max, free: Arc::new(Semaphore::new(bytes_max)) }
    }

    /// The share of what a body may become, and the body.
    ///
    /// # Errors
    /// When it is more than there is at all, or has not become free in time.
    pub(crate) async fn share_of(&self, body: Vec<u8>) -> Result<(ParsedShare, Vec<u8>), AppError> {
        let (bytes, body) = run_blocking(body.len(), move || Ok((parsed_bytes_max(&body), body))).await?;
        let too_large = || AppError::BodyHasTooManyValues { bytes, bytes_max: self.bytes_max };
        let wanted = u32::try_from(bytes).ok().filter(|_| bytes <= self.bytes_max).ok_or_else(too_large)?;
        Ok((ParsedShare { _bytes: acquire(&self.free, wanted).await? }, body))
    }
}

/// Most bytes of memory that JSON takes while it is parsed and afterwards, by its punctuation outside of strings.
fn parsed_bytes_max(json: &[u8]) -> usize {
    let (mut bytes, mut is_string, mut is_escaped) = (json.len(), false, false);
    for &byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            _ if is_string => {}
            b'[' | b'{' => bytes += LIST_BYTES,
            b',' => bytes += ELEMENT_BYTES,
            b':' => bytes += NAME_BYTES,
            _ => {}
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn texts_count_as_they_are_and_values_by_what_they_may_become() {
        for (json, want) in [
            (&br#""x""#[..], 3),
            (br#""[{,:\"[,:\\""#, 13),
            (br#""\\",1"#, 6 + ELEMENT_BYTES),
            (b"[1,2]", 5 + LIST_BYTES + ELEMENT_BYTES),
            (br#"{"a":[]}"#, 8 + 2 * LIST_BYTES + NAME_BYTES),
        ] {
            assert_eq!(parsed_bytes_max(json), want, "{}", String::from_utf8_lossy(json));
        }
    }

    #[tokio::test]
    async fn a_request_waits_for_its_share_and_more_than_all_is_refused() {
        let budget = ParsedBudget::new(3 * LIST_BYTES);
        let share = |json: &[u8]| budget.share_of(json.to_vec());
        let error = share(b"[[[]]]").await.unwrap_err();
        assert!(matches!(error, AppError::BodyHasTooManyValues { .. }), "{error}");
        let first = share(b"[[]]").await.unwrap();
        let mut second = Box::pin(share(b"[[]]"));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        second.await.unwrap();
    }
}
