//! Porter's suffix stripping (Porter 1980, "An algorithm for suffix stripping") with NLTK's default changes,
//! because `rouge_score` uses NLTK.
//!
//! In: a lowercase word of ASCII letters and digits. Out: its stem.

/// Stems of irregular words, which the rules would get wrong.
fn irregular(word: &str) -> Option<&str> {
    Some(match word {
        "sky" | "skies" => "sky",
        "dying" => "die",
        "lying" => "lie",
        "tying" => "tie",
        "inning" | "innings" => "inning",
        "outing" | "outings" => "outing",
        "canning" | "cannings" => "canning",
        "news" | "howe" | "proceed" | "exceed" | "succeed" => word,
        _ => return None,
    })
}

/// Step 2: suffixes and their replacements if the measure of the stem before the suffix is positive.
const STEP_2: [(&str, &str); 21] = [
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("fulli", "ful"),
];

/// Step 3, with the same condition.
const STEP_3: [(&str, &str); 7] = [
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ful", ""),
    ("ness", ""),
];

/// Step 4: suffixes that are removed if the measure of the stem before the suffix is above 1.
const STEP_4: [&str; 19] = [
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism",
    "ate", "iti", "ous", "ive", "ize",
];

pub(crate) fn stem(word: &str) -> String {
    if let Some(stem) = irregular(word).or((word.len() <= 2).then_some(word)) {
        return stem.to_owned();
    }
    let word = step_1c(step_1b(step_1a(word)));
    let word = step_2(word);
    let word = by_table(&word, &STEP_3).unwrap_or(word);
    step_5b(step_5a(step_4(word)))
}

fn step_1a(word: &str) -> String {
    match word {
        _ if word.ends_with("ies") && word.len() == 4 => word[..3].to_owned(),
        _ if word.ends_with("sses") || word.ends_with("ies") => word[..word.len() - 2].to_owned(),
        _ if word.ends_with('s') && !word.ends_with("ss") => word[..word.len() - 1].to_owned(),
        _ => word.to_owned(),
    }
}

fn step_1b(word: String) -> String {
    if let Some(stem) = word.strip_suffix("ied") {
        return if word.len() == 4 { format!("{stem}ie") } else { format!("{stem}i") };
    }
    if let Some(stem) = word.strip_suffix("eed") {
        return if measure(stem) > 0 { format!("{stem}ee") } else { word };
    }
    let stem = ["ed", "ing"].into_iter().find_map(|suffix| {
        let stem = word.strip_suffix(suffix)?;
        flags(stem).contains(&false).then_some(stem)
    });
    match stem {
        Some(stem) => restored(stem),
        None => word,
    }
}

/// Repairs the stem after `-ed` or `-ing` was removed.
fn restored(stem: &str) -> String {
    if ["at", "bl", "iz"].iter().any(|suffix| stem.ends_with(suffix)) {
        return format!("{stem}e");
    }
    let bytes = stem.as_bytes();
    if let [.., a, b] = bytes
        && a == b
        && flags(stem).last() == Some(&true)
    {
        let kept = if matches!(b, b'l' | b's' | b'z') { bytes.len() } else { bytes.len() - 1 };
        return stem[..kept].to_owned();
    }
    if measure(stem) == 1 && ends_cvc(stem) { format!("{stem}e") } else { stem.to_owned() }
}

fn step_1c(word: String) -> String {
    match word.strip_suffix('y') {
        Some(stem) if stem.len() > 1 && flags(stem).last() == Some(&true) => format!("{stem}i"),
        _ => word,
    }
}

fn step_2(word: String) -> String {
    if let Some(stem) = word.strip_suffix("alli").filter(|stem| measure(stem) > 0) {
        return step_2(format!("{stem}al"));
    }
    if let Some(changed) = by_table(&word, &STEP_2) {
        return changed;
    }
    match word.strip_suffix("logi") {
        // The l counts as part of the stem.
        Some(stem) if measure(&word[..word.len() - 3]) > 0 => format!("{stem}log"),
        _ => word,
    }
}

/// Applies the first rule whose suffix matches, if its stem has a positive measure. Returns `None` if no
/// suffix matches.
fn by_table(word: &str, rules: &[(&str, &str)]) -> Option<String> {
    let (stem, by) = rules.iter().find_map(|(suffix, by)| Some((word.strip_suffix(suffix)?, by)))?;
    Some(if measure(stem) > 0 { format!("{stem}{by}") } else { word.to_owned() })
}

fn step_4(word: String) -> String {
    let rule = STEP_4.iter().find_map(|suffix| Some((suffix, word.strip_suffix(suffix)?)));
    match rule {
        Some((suffix, stem)) if measure(stem) > 1 && (*suffix != "ion" || stem.ends_with(['s', 't'])) => {
            stem.to_owned()
        }
        _ => word,
    }
}

fn step_5a(word: String) -> String {
    match word.strip_suffix('e') {
        Some(stem) if measure(stem) > 1 || (measure(stem) == 1 && !ends_cvc(stem)) => stem.to_owned(),
        _ => word,
    }
}

fn step_5b(word: String) -> String {
    match word.strip_suffix('l') {
        Some(stem) if stem.ends_with('l') && measure(stem) > 1 => stem.to_owned(),
        _ => word,
    }
}

/// Returns which letters are consonants. A `y` is a consonant unless it follows one.
fn flags(word: &str) -> Vec<bool> {
    let mut flags: Vec<bool> = Vec::with_capacity(word.len());
    for byte in word.bytes() {
        flags.push(match byte {
            b'a' | b'e' | b'i' | b'o' | b'u' => false,
            b'y' => flags.last().is_none_or(|before| !before),
            _ => true,
        });
    }
    flags
}

/// Returns how often a vowel is followed by a consonant.
fn measure(stem: &str) -> usize {
    flags(stem).windows(2).filter(|pair| matches!(pair, [false, true])).count()
}

/// Returns `true` if the word ends in consonant, vowel and a consonant other than w, x or y, or if the whole
/// word is a vowel and a consonant.
fn ends_cvc(word: &str) -> bool {
    match flags(word).as_slice() {
        [false, true] => true,
        [.., true, false, true] => !word.ends_with(['w', 'x', 'y']),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stems_match_nltk() {
        for (word, want) in [
            ("caresses", "caress"),
            ("ponies", "poni"),
            ("dies", "die"),
            ("cats", "cat"),
            ("agreed", "agre"),
            ("plastered", "plaster"),
            ("spied", "spi"),
            ("conflated", "conflat"),
            ("hopping", "hop"),
            ("falling", "fall"),
            ("filing", "file"),
            ("happy", "happi"),
            ("enjoy", "enjoy"),
            ("relational", "relat"),
            ("radically", "radic"),
            ("geology", "geolog"),
            ("triplicate", "triplic"),
            ("adoption", "adopt"),
            ("replacement", "replac"),
            ("controlled", "control"),
            ("rate", "rate"),
            ("cease", "ceas"),
            ("innings", "inning"),
            ("sleeping", "sleep"),
            ("yyyy", "yyyi"),
        ] {
            assert_eq!(stem(word), want, "{word}");
        }
    }
}
