//! Finds the citations of the specification in a text: `cluster T8, T9 and T12`, `sharding §2.9`, `ddata scenarios 4 to 7`,
//! `persistence journal 24`.
//!
//! The grammar is strict, since the name of a document is an ordinary word as well. A rule or a section after the name is
//! always a citation; a bare number is one only at places where prose has no number (see [`announces`]). A list continues
//! after a comma, a semicolon, a slash, `and` and `or`, a range after `to` or a dash.

use std::collections::BTreeSet;

/// The separators of two members of a list, and whether the separator makes a range. A separator precedes its own
/// prefixes.
const SEPARATORS: &[(&str, bool)] = &[
    (", and ", false),
    (", or ", false),
    (", ", false),
    ("; ", false),
    ("/", false),
    (" and ", false),
    (" or ", false),
    (" to ", true),
    (" – ", true),
    ("–", true),
    ("-", true),
];

/// The longest range; a longer one is two unrelated numbers.
const LONGEST_RANGE: u32 = 200;

/// The names that can be cited.
#[derive(Debug, Default)]
pub(crate) struct Vocabulary {
    /// The names of the documents.
    pub(crate) documents: BTreeSet<String>,
    /// The kits of the conformance suite, whose cases are cited as `persistence journal 24`.
    pub(crate) kits: BTreeSet<String>,
}

/// One id that a text cites.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Citation {
    /// Number of its line.
    pub(crate) line: usize,
    /// The document, such as `cluster`.
    pub(crate) document: String,
    /// The anchor in it, such as `T8`, `s2.9`, `n31` or `journal-24`.
    pub(crate) anchor: String,
}

/// The citations of a text, and the lines where a number after the name of a document is not a citation.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) citations: Vec<Citation>,
    pub(crate) prose: Vec<usize>,
}

/// The citations of a file. The extension in its path tells the form of its comments.
pub(crate) fn citations(path: &str, text: &str, words: &Vocabulary) -> Found {
    let text = Joined::new(path, text);
    let mut found = Found::default();
    for document in &words.documents {
        for (at, _) in text.joined.match_indices(document.as_str()) {
            let (before, after) = (&text.joined[..at], &text.joined[at + document.len()..]);
            if before.ends_with(|c: char| c.is_alphanumeric() || "_-/.:#&@$".contains(c)) {
                continue; // The name is the end of another word or of a path.
            }
            let line = text.line(at);
            let anchors = words.cited(document, before, after);
            if anchors.is_empty() && after.strip_prefix(' ').is_some_and(starts_with_digit) {
                found.prose.push(line);
            }
            let of_document = |anchor| Citation { line, document: document.clone(), anchor };
            found.citations.extend(anchors.into_iter().map(of_document));
        }
    }
    found.citations.sort();
    found
}

/// An anchor as texts cite it: `cluster T8`, `sharding §2.9`, `ddata 31`, `persistence journal 24`.
pub(crate) fn shown(document: &str, anchor: &str) -> String {
    let numbered = |prefix| anchor.strip_prefix(prefix).filter(|rest: &&str| starts_with_digit(rest));
    if let Some(section) = numbered("s") {
        return format!("{document} §{section}");
    }
    let bare = numbered("n").or_else(|| numbered("settled-"));
    format!("{document} {}", bare.unwrap_or(anchor).replace('-', " "))
}

/// The prefix of the anchor that a bare number of this document means.
fn numbers_of(document: &str) -> &'static str {
    if document == "README" { "settled-" } else { "n" }
}

/// Whether a bare number after the name of a document is a citation, if the name follows this text: at the beginning of a
/// paragraph or of a cell, after punctuation (`(cluster 31)`, `Source: cluster 31`, `cluster M17; sharding 12`), and after `Scenario`.
fn announces(before: &str) -> bool {
    let before = before.trim_end_matches(' ');
    let punctuation = before.is_empty() || before.ends_with(|c| "\n.:;,(|*-/`\"'".contains(c));
    let word = before.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    punctuation || ["scenario", "scenarios", "Scenario", "Scenarios", "Of"].contains(&word)
}

impl Vocabulary {
    /// The anchors that the name of a document cites between these two texts.
    fn cited(&self, document: &str, before: &str, after: &str) -> Vec<String> {
        let after = after.strip_prefix(".md").unwrap_or(after);
        let behind = after.strip_prefix(' ').map(|rest| self.list(rest, numbers_of(document), announces(before)).0);
        let mut anchors = behind.unwrap_or_default();
        // `scenarios 61 and 62 of cluster.md`
        if let Some(before) = before.strip_suffix(" of ")
            && let Some(at) = before.rfind("scenario")
            && let Some((numbers, members)) = self.keyword(&before[at..])
            && let (scenarios, "") = self.list(members, &numbers, true)
        {
            anchors.extend(scenarios);
        }
        anchors
    }

    /// The anchors of a list, and the text after it. A bare number begins the list only if `announced`.
    fn list<'a>(&self, text: &'a str, numbers: &str, announced: bool) -> (Vec<String>, &'a str) {
        let mut anchors: Vec<String> = Vec::new();
        let mut numbers = numbers.to_owned();
        let (mut rest, mut end) = (text, text);
        let (mut by_keyword, mut is_range) = (false, false);
        loop {
            if let Some((kind, members)) = self.keyword(rest) {
                (numbers, rest, by_keyword) = (kind, members, true);
            }
            let Some((anchor, after)) = member(rest, &numbers) else { break };
            let after = without_remark(after);
            let expected = if anchors.is_empty() { announced } else { is_range || ends_member(after) };
            if starts_with_digit(rest) && !by_keyword && !expected {
                break;
            }
            if is_range && let Some(first) = anchors.last() {
                anchors.extend(between(first, &anchor));
            }
            anchors.push(anchor);
            end = after;
            let Some((behind, range)) = separated(after) else { break };
            (rest, is_range) = (behind, range);
        }
        (anchors, end)
    }

    /// `scenarios 31` and `journal 24`: the prefix of the anchors that the numbers after the word mean, and the numbers.
    fn keyword<'a>(&self, text: &'a str) -> Option<(String, &'a str)> {
        let (word, rest) = text.split_once(' ')?;
        let begin = match word {
            "scenario" | "scenarios" => "n".to_owned(),
            kit if self.kits.contains(kit) => format!("{kit}-"),
            _ => return None,
        };
        starts_with_digit(rest).then_some((begin, rest))
    }
}

/// The anchor of the first member of a list, and the text after it.
fn member<'a>(text: &'a str, numbers: &str) -> Option<(String, &'a str)> {
    if let Some(section) = text.strip_prefix('§') {
        let (number, rest) = numbered(section, |c| c.is_ascii_digit() || c == '.')?;
        return Some((format!("s{number}"), rest));
    }
    let prefix = text.chars().next()?;
    if prefix.is_ascii_uppercase() {
        let (number, rest) = numbered(&text[1..], |c| c.is_ascii_digit())?;
        return Some((format!("{prefix}{number}"), rest));
    }
    let (number, rest) = numbered(text, |c| c.is_ascii_digit())?;
    // No document has a thousand scenarios.
    (number.len() < 4 && !is_partial_number(rest)).then(|| (format!("{numbers}{number}"), rest))
}

/// Whether a number is only the first part of `1,000`, `1.5`, `3 000` or `2-node`.
fn is_partial_number(rest: &str) -> bool {
    let mut rest = rest.chars();
    match (rest.next(), rest.next()) {
        (Some(',' | '.' | ' '), Some(next)) => next.is_ascii_digit(),
        (Some('-'), Some(next)) => next.is_alphabetic(),
        _ => false,
    }
}

/// A number, with the letter after it if there is one, and the rest of the text.
fn numbered(text: &str, of_number: fn(char) -> bool) -> Option<(&str, &str)> {
    let digits = text.find(|c| !of_number(c)).unwrap_or(text.len());
    let digits = text[..digits].trim_end_matches('.').len();
    let letter = usize::from(text[digits..].starts_with(|c: char| c.is_ascii_lowercase()));
    let (number, rest) = text.split_at(digits + letter);
    (digits > 0 && !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_')).then_some((number, rest))
}

/// The text without the letter or the remark in parentheses that names a part: `cluster T15 (c)`, `ddata 90 b`.
fn without_remark(text: &str) -> &str {
    let letter = text.strip_prefix(' ').and_then(|rest| rest.strip_prefix(|c: char| c.is_ascii_lowercase()));
    let text = letter.filter(|rest| ends_member(rest)).unwrap_or(text);
    let remark = text.strip_prefix(" (").and_then(|rest| rest.split_once(')'));
    remark.filter(|(inside, _)| !inside.contains(['(', '\n'])).map_or(text, |(_, rest)| rest)
}

/// Whether a sentence, a cell or a member of a list ends here, so that the number before was not a count.
fn ends_member(text: &str) -> bool {
    text.is_empty()
        || text.starts_with(|c| ".,:;)|\n\"`*/".contains(c))
        || separated(text).is_some_and(|(rest, _)| starts_with_digit(rest))
}

/// The text after a separator, and whether the separator makes a range.
fn separated(text: &str) -> Option<(&str, bool)> {
    SEPARATORS.iter().find_map(|(separator, is_range)| Some((text.strip_prefix(separator)?, *is_range)))
}

/// The anchors between the ends of a range such as `T5` and `T9`.
fn between(first: &str, last: &str) -> Vec<String> {
    let split = |anchor: &str| {
        let stem = anchor.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        Some((anchor[..stem].to_owned(), anchor[stem..].parse::<u32>().ok()?))
    };
    match (split(first), split(last)) {
        (Some((stem, from)), Some((same, to))) if stem == same && to.saturating_sub(from) <= LONGEST_RANGE => {
            (from + 1..to).map(|number| format!("{stem}{number}")).collect()
        }
        _ => Vec::new(),
    }
}

fn starts_with_digit(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

/// A text in which the lines of a paragraph are joined and comment marks are removed, so that citations may wrap.
struct Joined {
    joined: String,
    /// Position at which each line begins.
    lines: Vec<usize>,
}

impl Joined {
    fn new(path: &str, text: &str) -> Self {
        let marks: &[&str] = match path.rsplit('.').next().unwrap_or_default() {
            "rs" | "proto" => &["///", "//!", "//"],
            "toml" | "txt" => &["#"],
            "sql" => &["--"],
            // The whole file is prose.
            _ => &[""],
        };
        let (mut joined, mut lines, mut last) = (String::new(), Vec::new(), None);
        for line in text.lines().map(str::trim) {
            let mark = marks.iter().find(|mark| line.starts_with(**mark));
            let prose = line[mark.map_or(0, |mark| mark.len())..].trim_start();
            let begins = prose.is_empty() || prose.starts_with(['|', '#', '<']) || prose.starts_with("- ");
            joined.push(if mark.is_some() && mark == last && !begins { ' ' } else { '\n' });
            lines.push(joined.len());
            joined.push_str(prose);
            // A blank line ends a paragraph.
            last = mark.filter(|_| !prose.is_empty());
        }
        Self { joined, lines }
    }

    /// The number of the line at this position.
    fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Documents that do not exist, so that these texts are not checked as citations.
    pub(crate) fn words() -> Vocabulary {
        let set = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Vocabulary { documents: set(&["alpha", "beta", "README"]), kits: set(&["journal", "states"]) }
    }

    fn ids(text: &str) -> Vec<String> {
        let found = citations("a.rs", text, &words()).citations;
        found.iter().map(|found| shown(&found.document, &found.anchor)).collect()
    }

    #[test]
    fn rules_sections_scenarios_and_cases_are_cited_alone_and_in_lists() {
        assert_eq!(ids("// as alpha T8, T9 and M25a say"), ["alpha M25a", "alpha T8", "alpha T9"]);
        assert_eq!(ids("// alpha §2.9, §2.12; beta §4.4a"), ["alpha §2.12", "alpha §2.9", "beta §4.4a"]);
        assert_eq!(
            ids("// the alpha scenario 97, and alpha scenarios 4 to 6"),
            ["alpha 4", "alpha 5", "alpha 6", "alpha 97"]
        );
        assert_eq!(ids("//! Source: alpha T5–T7."), ["alpha T5", "alpha T6", "alpha T7"]);
        assert_eq!(ids("// beta journal 24, states 3 or 4"), ["beta journal 24", "beta states 3", "beta states 4"]);
        assert_eq!(ids("// alpha T15 (c), §2 (a remark), M3"), ["alpha M3", "alpha T15", "alpha §2"]);
        assert_eq!(
            ids("//! scenarios 14 to 16, 19 of alpha.md; alpha.md §2"),
            ["alpha 14", "alpha 15", "alpha 16", "alpha 19", "alpha §2"]
        );
        assert_eq!(ids("// settled by README 7"), Vec::<String>::new());
        assert_eq!(ids("// settled (README 7)"), ["README 7"]);
    }

    #[test]
    fn bare_numbers_are_scenarios_only_where_prose_puts_none() {
        for cited in [
            "/// alpha 31.",
            "// (alpha 31)",
            "// Scenario alpha 31: x",
            "// Source: alpha 31.",
            "// --- alpha 31 ---",
            "| alpha 31 | test |",
        ] {
            assert_eq!(ids(cited), ["alpha 31"], "{cited}");
        }
        assert_eq!(ids("/// alpha 31, 33 b and 35: x"), ["alpha 31", "alpha 33", "alpha 35"]);
        assert_eq!(ids("/// alpha T9, 3 seconds"), ["alpha T9"]);
        for prose in [
            "// (alpha 1,000 shards)",
            "// an alpha 2 nodes wide",
            "// greylag-alpha 31",
            "(alpha 2-node)",
            "// alphabet 3",
            "// alpha §4.4, 23505: x",
        ] {
            assert!(!ids(prose).iter().any(|id| !id.contains('§')), "{prose}");
        }
        assert_eq!(citations("a.md", "one\nof an alpha 2 nodes wide", &words()).prose, [2]);
    }

    #[test]
    fn a_citation_may_wrap_within_a_paragraph_and_keeps_its_line() {
        let found = citations("a.rs", "x\n    /// As in alpha\n    /// T8, T9,\n\n    /// T10", &words()).citations;
        let at = |line, anchor: &str| Citation { line, document: "alpha".to_owned(), anchor: anchor.to_owned() };
        assert_eq!(found, [at(2, "T8"), at(2, "T9")]);
        assert!(ids("/// in alpha\nT8").is_empty(), "code is no prose");
        assert_eq!(citations("a.md", "- in alpha\n  §3", &words()).citations.len(), 1);
    }
}
