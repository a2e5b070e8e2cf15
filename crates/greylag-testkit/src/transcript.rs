//! Data-driven protocol tests: inputs and the effects that they led to, as plain text.
//!
//! A transcript is a file of cases separated by blank lines. A case is a line with a command, optional further lines of
//! input, `----`, and the recorded output. Lines that begin with `#` are comments; a file opens with a description of
//! the situation.
//!
//! ```text
//! # A silent peer is reported once.
//!
//! advance 3.5s
//! ----
//! 3.00s report Unreachable
//! ```
//!
//! The files are re-recorded with `cargo xtask bless` (or `GREYLAG_BLESS=1`); read the difference
//! before you accept it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// One case of a transcript, as handed to the test's closure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case<'a> {
    /// The first word of the case.
    pub command: &'a str,
    /// The lines between the command and `----`, without the trailing line break.
    pub input: &'a str,
    /// The line number of the command in the file, from 1.
    pub line: usize,
    words: Vec<&'a str>,
}

impl<'a> Case<'a> {
    /// The value of `key=value`, if the command line has it.
    pub fn arg(&self, key: &str) -> Option<&'a str> {
        self.words.iter().find_map(|word| word.split_once('=').filter(|(name, _)| *name == key).map(|(_, value)| value))
    }

    /// The value of `key=value`, read as a `T`.
    ///
    /// # Panics
    /// If the value is there but is not a `T`; the message names the line.
    pub fn parse<T: FromStr>(&self, key: &str) -> Option<T> {
        self.arg(key)
            .map(|text| text.parse().unwrap_or_else(|_| panic!("line {}: {key}={text} cannot be read", self.line)))
    }

    /// The value of `key=value`, read as a duration such as `250ms`, `1.5s`, `2m`.
    ///
    /// # Panics
    /// If the value is there but is not a duration.
    pub fn duration(&self, key: &str) -> Option<Duration> {
        self.arg(key).map(|text| {
            duration(text).unwrap_or_else(|| panic!("line {}: {key}={text} is not a duration such as 1.5s", self.line))
        })
    }

    /// The word with this index among those after the command that have no `=`.
    pub fn positional(&self, index: usize) -> Option<&'a str> {
        self.words.iter().copied().filter(|word| !word.contains('=')).nth(index)
    }

    /// Whether the word stands on the command line.
    pub fn flag(&self, word: &str) -> bool {
        self.words.contains(&word)
    }
}

/// Reads `250ms`, `1.5s`, `2m` or `1h`; `None` for anything else.
pub fn duration(text: &str) -> Option<Duration> {
    let unit = text.find(|c: char| c.is_ascii_alphabetic())?;
    let seconds = match &text[unit..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let number: f64 = text[..unit].parse().ok()?;
    Duration::try_from_secs_f64(number * seconds).ok()
}

/// An invalid transcript.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct MalformedTranscript {
    /// The line number, from 1.
    pub line: usize,
    /// Description of the error.
    pub why: &'static str,
}

/// Runs a transcript and returns it with the outputs of `run`.
///
/// # Errors
/// [`MalformedTranscript`] if a case has no `----`.
pub fn record(text: &str, mut run: impl FnMut(&Case<'_>) -> String) -> Result<String, MalformedTranscript> {
    let mut recorded = String::with_capacity(text.len());
    let mut lines = text.lines().enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        if line.trim().is_empty() || line.starts_with('#') {
            recorded.push_str(line);
            recorded.push('\n');
            continue;
        }
        let mut words = line.split_whitespace();
        let command = words.next().expect("a line that is not blank has a word");
        recorded.push_str(line);
        recorded.push('\n');
        let mut input = Vec::new();
        loop {
            let (_, line) = lines.next().ok_or(MalformedTranscript { line: index + 1, why: "the case has no ----" })?;
            recorded.push_str(line);
            recorded.push('\n');
            if line == "----" {
                break;
            }
            input.push(line);
        }
        while lines.next_if(|(_, line)| !line.trim().is_empty()).is_some() {}
        let input = input.join("\n");
        let output = run(&Case { command, input: &input, line: index + 1, words: words.collect() });
        for line in output.lines() {
            // A blank line would end the case, so it is shown as a dot.
            let _ = writeln!(recorded, "{}", if line.trim().is_empty() { "." } else { line.trim_end() });
        }
    }
    Ok(recorded)
}

/// Runs every `*.txt` of a directory, each with a fresh closure from `make`, in the order of names.
///
/// # Panics
/// If an output differs from the recorded one, with the difference; if a file is malformed; if the
/// directory has no transcript, since a check that cannot fail proves nothing.
pub fn run_dir<F>(directory: impl AsRef<Path>, mut make: impl FnMut() -> F)
where
    F: FnMut(&Case<'_>) -> String,
{
    let directory = directory.as_ref();
    let files = transcripts(directory);
    assert!(!files.is_empty(), "no transcript in {}", directory.display());
    let bless = std::env::var_os("GREYLAG_BLESS").is_some();
    let mut differences = String::new();
    for file in files {
        let expected = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("cannot read {}: {e}", file.display()));
        let actual = record(&expected, make()).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        if actual == expected {
            continue;
        }
        if bless {
            std::fs::write(&file, &actual).unwrap_or_else(|e| panic!("cannot write {}: {e}", file.display()));
        } else {
            let _ = writeln!(differences, "{}:\n{}", file.display(), difference(&expected, &actual));
        }
    }
    assert!(differences.is_empty(), "{differences}\nIf this is right, record it with `cargo xtask bless`.");
}

fn transcripts(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|e| panic!("cannot list {}: {e}", directory.display()));
    let mut files: Vec<_> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    files.sort();
    files
}

/// The lines that differ, with two lines of context before the first of each run.
fn difference(expected: &str, actual: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (expected.lines().collect(), actual.lines().collect());
    // Longest common subsequence, quadratic: transcripts are short and failures rare.
    let mut length = vec![vec![0_u32; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            length[i][j] =
                if old[i] == new[j] { length[i + 1][j + 1] + 1 } else { length[i + 1][j].max(length[i][j + 1]) };
        }
    }
    let (mut i, mut j, mut shown) = (0, 0, 0);
    let mut text = String::new();
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j) = (i + 1, j + 1);
            continue;
        }
        let first = i.saturating_sub(2).max(shown);
        for (context, line) in old.iter().enumerate().take(i).skip(first) {
            let _ = writeln!(text, "  {:4}   {line}", context + 1);
        }
        if j == new.len() || (i < old.len() && length[i + 1][j] >= length[i][j + 1]) {
            let _ = writeln!(text, "  {:4} - {}", i + 1, old[i]);
            i += 1;
        } else {
            let _ = writeln!(text, "       + {}", new[j]);
            j += 1;
        }
        shown = i;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "# Words for the reader.\n\necho a k=1 loud\nbody\nmore\n----\nold\n\necho b\n----\nb\n";

    #[test]
    fn a_case_has_its_words_and_its_body() {
        let mut seen = Vec::new();
        let recorded = record(SCRIPT, |case| {
            seen.push((case.line, case.positional(0).unwrap().to_owned(), case.parse::<u8>("k"), case.flag("loud")));
            format!("{}{}", case.input, if case.input.is_empty() { "b" } else { "\n\nend" })
        })
        .unwrap();
        assert_eq!(seen, [(3, "a".to_owned(), Some(1), true), (9, "b".to_owned(), None, false)]);
        assert_eq!(recorded, SCRIPT.replace("old", "body\nmore\n.\nend"));
    }

    #[test]
    fn a_case_without_dashes_is_named() {
        assert_eq!(
            record("go\nwhere\n", |_| String::new()),
            Err(MalformedTranscript { line: 1, why: "the case has no ----" })
        );
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(duration("1.5s"), Some(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Some(Duration::from_secs(120)));
        for wrong in ["5", "s", "-1s", "1 s", "1x"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_difference_shows_removed_and_added_lines() {
        let text = difference("a\nb\nc\nd\n", "a\nb\nx\nd\n");
        assert_eq!(text, "     1   a\n     2   b\n     3 - c\n       + x\n");
    }
}
