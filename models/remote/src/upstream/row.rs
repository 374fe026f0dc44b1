//! A prompt with the ids after it. All rows of a job share the prompt, and its text in JSON exists only in
//! the bodies that are being sent.

use std::cmp::Ordering;
use std::sync::Arc;

use ntl_core::text::TextDecoder;
use ntl_text::tokenizer::Tokenizer;
use serde_json::Value;

use crate::engine::NextTokenQuery;

#[derive(Debug, Clone)]
pub(super) struct Row {
    prompt: Arc<[u32]>,
    path: Vec<u32>,
}

impl Row {
    pub(super) fn new(prompt: Arc<[u32]>, path: Vec<u32>) -> Self {
        Self { prompt, path }
    }

    pub(super) fn of(query: &NextTokenQuery) -> Self {
        Self::new(Arc::clone(&query.prompt), query.path.clone())
    }

    pub(super) fn len(&self) -> usize {
        self.prompt.len() + self.path.len()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        self.prompt.iter().chain(&self.path).copied()
    }

    /// Returns a text that an engine tokenizes to exactly these ids, special tokens at the ends included.
    pub(super) fn text(&self, tokenizer: &Tokenizer) -> Option<String> {
        let ids: Vec<u32> = self.ids().collect();
        // Engines add the special tokens at the ends, and read the names of the others.
        let names = ids.iter().flat_map(|&id| tokenizer.token_bytes(id)).collect();
        let texts = [Some(tokenizer.decode(&ids)), String::from_utf8(names).ok()];
        texts
            .into_iter()
            .flatten()
            .find(|text| tokenizer.encode(text, true).is_ok_and(|encoded| encoded == ids))
    }

    /// Appends the ids as a list in JSON.
    pub(super) fn write(&self, json: &mut Vec<u8>) {
        json.push(b'[');
        for (index, id) in self.ids().enumerate() {
            if index > 0 {
                json.push(b',');
            }
            json.extend_from_slice(id.to_string().as_bytes());
        }
        json.push(b']');
    }

    /// Number of equal ids at the beginning of both rows.
    pub(super) fn common_prefix(&self, other: &Self) -> usize {
        self.ids().zip(other.ids()).take_while(|(a, b)| a == b).count()
    }

    /// Compares the ids of two rows.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.prompt, &other.prompt) {
            self.path.cmp(&other.path)
        } else {
            self.ids().cmp(other.ids())
        }
    }
}

/// Returns a body with the rows as its prompts, in this order, in a field with this name.
pub(super) fn with_rows(body: &Value, name: &str, rows: &[Row]) -> Vec<u8> {
    with_prompt(body, name, |json| {
        json.push(b'[');
        for (index, row) in rows.iter().enumerate() {
            if index > 0 {
                json.push(b',');
            }
            row.write(json);
        }
        json.push(b']');
    })
}

/// Returns a body, which is not an empty object, with a prompt in a field with this name.
pub(super) fn with_prompt(body: &Value, name: &str, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut json = format!(r#"{{"{name}":"#).into_bytes();
    write(&mut json);
    json.push(b',');
    let fields = body.to_string();
    json.extend_from_slice(fields.strip_prefix('{').unwrap_or(&fields).as_bytes());
    json
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_body_has_the_prompt_and_the_path_of_each_row() {
        let prompt: Arc<[u32]> = [7, 8].into();
        let rows = [vec![], vec![9, 10]].map(|path| Row::new(Arc::clone(&prompt), path));
        let body: Value =
            serde_json::from_slice(&with_rows(&json!({"model": "m"}), "prompt", &rows)).unwrap();
        assert_eq!(body, json!({"model": "m", "prompt": [[7, 8], [7, 8, 9, 10]]}));
        assert_eq!(Arc::strong_count(&prompt), 3, "the prompt is shared");
    }

    #[test]
    fn rows_are_ordered_by_their_ids_however_these_are_divided() {
        let row = |prompt: &[u32], path: &[u32]| Row::new(prompt.into(), path.to_vec());
        assert_eq!(row(&[1, 2], &[3]).compare(&row(&[1], &[2, 3])), Ordering::Equal);
        assert_eq!(row(&[1, 2], &[3]).compare(&row(&[1], &[2, 4])), Ordering::Less);
        assert_eq!(row(&[1, 2], &[3]).common_prefix(&row(&[1], &[2, 4])), 2);
    }
}
