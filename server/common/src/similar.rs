//! Finds the known name that a misspelt one probably means.

/// Minimum Jaro similarity of a misspelling and the name that it stands for, as in clap.
const SIMILARITY_MIN: f64 = 0.7;

/// Returns the known name that is most similar to `name`, or `None` if no name is similar enough to be meant.
pub fn most_similar<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let similarity = |one: &str| strsim::jaro(name, one);
    let best = known.into_iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    best.filter(|best| similarity(best) >= SIMILARITY_MIN)
}
