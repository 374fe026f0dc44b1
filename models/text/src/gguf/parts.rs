//! The names of models in several files, such as `NAME-00001-of-00003.gguf`.

use std::path::{Path, PathBuf};

/// The place of a file among the parts of a model.
struct PartName<'a> {
    stem: &'a str,
    /// Counted from 1.
    number: usize,
    count: usize,
}

impl<'a> PartName<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = [number, count].map(five_digits);
        let [Some(number), Some(count)] = digits else { return None };
        Some(Self { stem, number, count })
    }
}

fn five_digits(text: &str) -> Option<usize> {
    if text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Returns the names of all parts of a model, given the name of its first or only file.
pub(super) fn part_names(first: &str) -> Vec<String> {
    match PartName::parse(first) {
        Some(PartName { stem, number: 1, count }) if count > 1 => {
            (1..=count).map(|number| format!("{stem}-{number:05}-of-{count:05}.gguf")).collect()
        }
        _ => vec![first.to_owned()],
    }
}

/// Returns the paths of all parts of a model, given the path of its first or only file.
pub fn part_paths(first: &Path) -> Vec<PathBuf> {
    match first.file_name().and_then(|name| name.to_str()) {
        Some(name) => part_names(name).into_iter().map(|name| first.with_file_name(name)).collect(),
        None => vec![first.to_owned()],
    }
}

/// Returns whether a file is a part of a model other than the first.
pub fn is_later_part(name: &str) -> bool {
    PartName::parse(name).is_some_and(|part| part.number > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_part_names_the_others() {
        assert_eq!(part_names("m-00001-of-00002.gguf"), ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]);
        for alone in
            ["m.gguf", "m-00001-of-00001.gguf", "m-00002-of-00002.gguf", "m-1-of-2.gguf", "m-00001-of-00002"]
        {
            assert_eq!(part_names(alone), [alone]);
        }
        assert!(is_later_part("m-00002-of-00002.gguf"));
        assert!(!is_later_part("m-00001-of-00002.gguf") && !is_later_part("m-00002-of-+0002.gguf"));
        let paths = part_paths(Path::new("/a/m-00001-of-00002.gguf"));
        assert_eq!(paths[1], Path::new("/a/m-00002-of-00002.gguf"));
    }
}
