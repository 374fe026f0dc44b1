//! Finds the known name that a misspelt one probably means.

/// Minimum Jaro similarity of a misspelling and the name that it stands for, as in clap.
const SIMILARITY_MIN: f64 = 0.7;

/// Returns the known name that is most similar to `name`, or `None` if no name is similar enough to be meant.
pub fn most_similar<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mut best = None;
    let mut best_similarity = SIMILARITY_MIN;
    for candidate in known {
        let similarity = strsim::jaro(name, candidate);
        if similarity >= best_similarity {
            best = Some(candidate);
            best_similarity = similarity;
        }
    }
    best
}
