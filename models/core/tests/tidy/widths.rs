//! Checks that comments and pages wrap at [`COLUMNS`]. rustfmt wraps neither.

use std::path::Path;

const COLUMNS: usize = 110;

/// Returns the lines of a file that are too wide, as `path:line`.
pub(crate) fn wide_lines(root: &Path, file: &Path) -> Vec<String> {
    let is_page = file.extension().is_some_and(|extension| extension == "md");
    let text = std::fs::read_to_string(file).unwrap();
    let mut is_code = false;
    let mut wide = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let content = line.trim_start();
        let comment = content.trim_start_matches('/').trim_start_matches('!').trim_start();
        let is_prose = if is_page { content } else { comment };
        if is_prose.starts_with("```") {
            is_code = !is_code;
        }
        let wraps = is_page || content.starts_with("//");
        let is_table = is_prose.starts_with('|');
        // A link or a path cannot be split.
        let has_spaces = is_prose.trim_start_matches(['*', '-', ' ']).contains(' ');
        if wraps && !is_code && !is_table && has_spaces && line.chars().count() > COLUMNS {
            wide.push(format!("{}:{}", file.strip_prefix(root).unwrap().display(), index + 1));
        }
    }
    wide
}
