//! Finds data files: at `--data`, or in the cache folder.

use std::env;
use std::path::{Path, PathBuf};

use super::DataError;

/// Names the folder of downloaded data.
const DATA_CACHE: &str = "NTL_EVAL_DATA_CACHE";

/// The cache folder of a task: `$NTL_EVAL_DATA_CACHE`, `$XDG_CACHE_HOME/ntl-eval` or `~/.cache/ntl-eval`, and
/// the task's name.
pub fn folder(task: &str) -> PathBuf {
    let root = if let Some(cache) = named_by(DATA_CACHE) {
        cache
    } else if let Some(caches) = named_by("XDG_CACHE_HOME") {
        caches.join("ntl-eval")
    } else if let Some(home) = named_by("HOME") {
        home.join(".cache/ntl-eval")
    } else {
        PathBuf::from(".ntl-eval")
    };
    root.join(task)
}

/// Returns the path in an environment variable that is set and not empty.
fn named_by(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns the given file, or the first of `names` that is in the given folder. If nothing is given, it
/// searches the cache.
pub fn find(task: &'static str, names: &[&str], given: Option<&Path>) -> Result<PathBuf, DataError> {
    if let Some(file) = given.filter(|path| !path.is_dir()) {
        return Ok(file.to_owned());
    }
    let folder = given.map_or_else(|| self::folder(task), Path::to_owned);
    let found = names.iter().map(|name| folder.join(name)).find(|file| file.exists());
    found.ok_or_else(|| DataError::Missing { task, advice: advice(task, names, given.is_some()), folder })
}

fn advice(task: &str, names: &[&str], given: bool) -> String {
    let names = names.join(" or ");
    if given {
        return format!("put {names} there, or name a file");
    }
    format!("run `ntl-eval data {task}`, put {names} there, or say where it is with --data PATH")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_folder_is_searched_and_a_file_is_taken_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let error =
            find("rjokes", &["test.tsv", "test.tsv.gz"], Some(folder.path())).unwrap_err().to_string();
        assert!(error.ends_with("put test.tsv or test.tsv.gz there, or name a file"), "{error}");
        let file = folder.path().join("test.tsv.gz");
        fs::write(&file, "").unwrap();
        assert_eq!(find("rjokes", &["test.tsv", "test.tsv.gz"], Some(folder.path())).unwrap(), file);
        assert_eq!(find("rjokes", &["test.tsv"], Some(&file)).unwrap(), file);
    }

    #[test]
    fn without_data_the_advice_names_the_command_and_the_file() {
        let advice = advice("gsm8k", &["test.jsonl"], false);
        assert_eq!(
            advice,
            "run `ntl-eval data gsm8k`, put test.jsonl there, or say where it is with --data PATH"
        );
    }
}
