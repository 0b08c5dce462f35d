//! The checkable rules of docs/writing.md: sentence length, forbidden phrases, document length.

use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use super::finding::Finding;
use super::page::{Page, Passage};

/// The maximum number of words in a sentence. The rule says 25; the difference is tolerance for
/// names and numbers.
const MOST_WORDS: usize = 30;

/// The maximum number of lines of a document.
const MOST_LINES: &[(&str, usize)] = &[("README.md", 150), ("ARCHITECTURE.md", 220)];

/// Pages whose prose is not checked: generated pages, and the description of the conformance
/// suites.
const UNCHECKED: &[&str] = &[
    "conformance/README.md",
    "docs/reference/commands.md",
    "docs/soft-roce-bench.md",
];

/// Phrases that this project must not use, each with the wording to use instead.
const FORBIDDEN_PHRASES_WITH_REPLACEMENTS: &[(&str, &str)] = &[
    (
        r"for long rests|rests? longer|has waited long",
        "idle-poll throttling, exponential backoff",
    ),
    (r"\blean(s|ed|ing)? (no more|towards)\b", "biased to"),
    (r"\bfavours?\b", "revocation of a bias"),
    (
        r"\bdrops? a letter\b|\bletters? in (the|its|a) mailbox",
        "posts a connection notice",
    ),
    (r"\banybody'?s say\b", "untrusted input"),
    (r"\bis (its|the) dress\b", "name what the crate adds"),
    (r"\bmay not mount\b", "without CAP_SYS_ADMIN"),
    (r"\bgiven away again\b", "reused"),
    (r"\bhears only\b", "does not receive"),
    (
        r"\bnothing to be off\b",
        "costs nothing when it is disabled",
    ),
    (r"\bpromised no rate\b", "gets no throughput prediction"),
    (
        r"\bhas to be told comes out\b",
        "is an outcome of the simulation, not an input",
    ),
    (
        r"\bdomain is one of its process\b",
        "XRC domains are not shared between processes",
    ),
    (r"\bqueue pairs that it has\b", "without adding queue pairs"),
    (
        r"\bsomebody else's verbs\b|\bother people's\b",
        "name the software",
    ),
    (
        r"\b(wins|loses) nothing by\b|\bthrown away\b",
        "was removed",
    ),
];

static FORBIDDEN_PATTERNS_WITH_REPLACEMENTS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let pattern = |(pattern, instead): &(&str, &'static str)| {
        let regex = Regex::new(&format!("(?i){pattern}"));
        (regex.expect("a pattern of FORBIDDEN"), *instead)
    };
    FORBIDDEN_PHRASES_WITH_REPLACEMENTS
        .iter()
        .map(pattern)
        .collect()
});

/// Returns all violations of the rules in the documents.
pub(super) fn check_documents(pages: &[Page]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_unchecked = |page: &&Page| UNCHECKED.iter().any(|name| Path::new(name) == page.path);
    for page in pages.iter().filter(|page| !is_unchecked(page)) {
        for passage in &page.passages {
            check_passage(&page.path, 0, passage, &mut findings);
        }
        let most = MOST_LINES
            .iter()
            .find(|(name, _)| Path::new(name) == page.path);
        if let Some((_, most)) = most.filter(|(_, most)| page.lines > *most) {
            findings.push(Finding {
                path: page.path.clone(),
                line: page.lines,
                what: format!("{} lines, where {most} are allowed", page.lines),
            });
        }
    }
    findings
}

/// Adds the violations in a passage; `lines_above` is added to the passage's line number.
pub(super) fn check_passage(
    path: &Path,
    lines_above: usize,
    passage: &Passage,
    findings: &mut Vec<Finding>,
) {
    let mut find = |what: String| {
        findings.push(Finding {
            path: path.to_path_buf(),
            line: lines_above + passage.line,
            what,
        });
    };
    for sentence in sentences(&passage.text) {
        let shown = sentence[..sentence.len().min(8)].join(" ");
        let words = sentence.iter().filter(|word| is_word(word)).count();
        if words > MOST_WORDS {
            find(format!("a sentence of {words} words: \"{shown} …\""));
        }
        if !passage.is_heading && has_clause_as_subject(&sentence) {
            find(format!("name the subject: \"{shown} …\""));
        }
    }
    for (pattern, instead) in FORBIDDEN_PATTERNS_WITH_REPLACEMENTS.iter() {
        if let Some(found) = pattern.find(&passage.text) {
            find(format!("\"{}\": write {instead}", found.as_str()));
        }
    }
}

/// Returns true if a clause such as "what fails" is the subject of the sentence, and the sentence
/// is not a question.
fn has_clause_as_subject(sentence: &[&str]) -> bool {
    let is_question = sentence.last().is_some_and(|word| word.ends_with('?'));
    let first = sentence
        .first()
        .map(|word| word.trim_matches(['*', '(', '"']));
    let opens = matches!(first, Some("Who" | "Whoever" | "What" | "Whatever"));
    opens && !is_question && sentence.len() > 4
}

/// Returns true if a word counts; punctuation alone does not.
fn is_word(word: &str) -> bool {
    word.contains(char::is_alphanumeric)
}

/// Splits a text into sentences, each a list of words.
fn sentences(text: &str) -> Vec<Vec<&str>> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut sentences = vec![Vec::new()];
    for (at, word) in words.iter().enumerate() {
        if let Some(sentence) = sentences.last_mut() {
            sentence.push(*word);
        }
        let next = words.get(at + 1).and_then(|next| next.chars().next());
        if ends_sentence(word) && next.is_some_and(|next| !next.is_lowercase()) {
            sentences.push(Vec::new());
        }
    }
    sentences
}

fn ends_sentence(word: &str) -> bool {
    const ABBREVIATIONS: &[&str] = &["e.g.", "i.e.", "vol.", "sec.", "vs.", "cf.", "No."];
    let bare = word.trim_end_matches([')', '*', '"', '”', ']', '_']);
    bare.ends_with(['.', '?', '!', '…']) && !ABBREVIATIONS.contains(&bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let page = Page::parse("docs/a.md".into(), text);
        let found = check_documents(&[page]);
        found.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn plain_prose_is_fine() {
        let text = "The lock is biased to a thread (IBTA vol. 1). Why? A store is cheap.\n\n- What now?\n- It waits.\n";
        assert_eq!(findings(text), [""; 0]);
        let table = format!("| a |\n|---|\n| {} |\n", "word ".repeat(40));
        assert_eq!(findings(&table), [""; 0]);
    }

    #[test]
    fn long_sentences_are_found() {
        let long = "word ".repeat(31);
        assert_eq!(findings(&format!("Short. {long}.")).len(), 1);
        assert_eq!(findings(&format!("- {long}\n- short\n")).len(), 1);
        let two = format!("{}end. Next {}", "word ".repeat(29), "word ".repeat(29));
        assert_eq!(findings(&two), [""; 0]);
        assert_eq!(findings(&format!("`{long}`")), [""; 0]);
    }

    #[test]
    fn riddles_are_found() {
        for text in [
            "Who finds nothing for long rests.",
            "What is its own is the dress.",
            "After eight favours it leans no more.",
            "The numbers are\nanybody's say.",
        ] {
            assert!(!findings(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn documents_that_grow_are_found() {
        let page = Page::parse("README.md".into(), &"a\n\n".repeat(80));
        assert_eq!(check_documents(&[page]).len(), 1);
    }
}
