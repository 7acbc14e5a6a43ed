//! Phrases that are correct English, but not the language of technical documentation, and what to write instead: one
//! list for the pages, the source and the packages.

use std::path::Path;

/// Not to be found anywhere in the repository.
const ANYWHERE: [(&str, &str); 14] = [
    ("whoever", "the worker, the caller, the operator"),
    ("so many", "the name of the number"),
    ("so far apart", "the name of the interval"),
    ("dear", "expensive"),
    ("dearer", "more expensive"),
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("said of", "described"),
    ("kin", "related jobs, dependencies"),
    ("none yet", "what does not exist"),
    ("again and again", "repeatedly"),
    ("scout", "background scan"),
    ("plant", "insert"),
];

/// Not to be found in what is published. A test may use them: it names its values as it likes.
const PUBLISHED: [(&str, &str); 15] = [
    ("put out", "output, outputs"),
    ("puts out", "returns"),
    ("is told", "is notified, receives"),
    ("none any more", "former, no longer"),
    ("for ever", "indefinitely"),
    ("somebody", "a person, another worker, another session"),
    ("doomed", "which is going to fail"),
    ("bury", "fail for good"),
    ("buried", "failed for good"),
    ("hops", "steps"),
    ("trail", "history"),
    ("forgotten", "deleted, expired, left out"),
    ("that is none", "is invalid, is not a …, does not exist"),
    ("goes on", "continues"),
    ("which more", "additional"),
];

/// How words in British spelling begin: the spelling is American.
const BRITISH: [&str; 29] = [
    "analyse",
    "analysing",
    "authoris",
    "behaviour",
    "canonicalis",
    "catalogue",
    "categoris",
    "centralis",
    "colour",
    "customis",
    "favour",
    "finalis",
    "generalis",
    "honour",
    "initialis",
    "labour",
    "localis",
    "materialis",
    "maximis",
    "minimis",
    "neighbour",
    "normalis",
    "optimise",
    "optimising",
    "organis",
    "prioritis",
    "recognis",
    "serialis",
    "synchronis",
];

/// The phrases on the list, with their lines.
pub fn found(file: &str, text: &str) -> Vec<String> {
    let is_test = Path::new(file).components().any(|part| part.as_os_str() == "tests");
    let mut found = search(file, text, &ANYWHERE, |c| c.is_alphanumeric());
    if !is_test {
        // the name of a test, or of a variable, is one word here
        found.extend(search(file, text, &PUBLISHED, |c| c.is_alphanumeric() || c == '_'));
        found.extend(british(file, text));
    }
    found
}

fn british(file: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.to_lowercase();
        let words = line.split(|c: char| !c.is_alphanumeric());
        for word in words.filter(|word| BRITISH.iter().any(|stem| word.starts_with(stem))) {
            found.push(format!("{file}:{}: {word:?} is British spelling", number + 1));
        }
    }
    found
}

fn search(file: &str, text: &str, list: &[(&str, &str)], is_of_a_word: fn(char) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.to_lowercase();
        let words: Vec<&str> = line.split(|c| !is_of_a_word(c)).collect();
        for (phrase, instead) in list {
            let phrase: Vec<&str> = phrase.split(' ').collect();
            if words.windows(phrase.len()).any(|words| words == phrase) {
                let (number, phrase) = (number + 1, phrase.join(" "));
                found.push(format!("{file}:{number}: {phrase:?}; write {instead}"));
            }
        }
    }
    found
}
