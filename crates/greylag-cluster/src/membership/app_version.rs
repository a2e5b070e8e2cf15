//! The version of the application, which members tell each other.
//!
//! Rolling updates prefer nodes that run the newest version, so versions need a total order that follows what people
//! mean by them. Source: cluster M31.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A version such as `1.2.0`, `1.2-M1`, `1.0.0+3-x`, or a single word.
///
/// Ordered by the numbers, then the commits after the tag, then the rest, where no text comes after any text.
#[derive(Debug, Clone)]
pub struct AppVersion {
    /// Shared by the members of one build.
    text: Arc<str>,
    /// Major, minor, patch, commits after the tag.
    numbers: [u64; 4],
    /// The length in bytes of the part at the end of the text that is not parsed into numbers.
    rest: usize,
}

impl Default for AppVersion {
    /// `0.0.0`.
    fn default() -> Self {
        Self { text: "0.0.0".into(), numbers: [0; 4], rest: 0 }
    }
}

/// Why a text is not an application version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid application version {text:?}: write one to three numbers separated by dots, then optionally - or + and a suffix"
)]
pub struct InvalidAppVersion {
    /// The text as it was given.
    pub text: String,
}

impl FromStr for AppVersion {
    type Err = InvalidAppVersion;

    fn from_str(text: &str) -> Result<Self, InvalidAppVersion> {
        let invalid = || InvalidAppVersion { text: text.to_owned() };
        if text.is_empty() || text.len() > 255 {
            return Err(invalid());
        }
        let (head, suffix) = match text.find(['-', '+']) {
            Some(at) => (&text[..at], &text[at + 1..]),
            None => (text, ""),
        };
        let parts: Vec<&str> = head.split('.').collect();
        if parts.len() == 1 && (parts[0].parse::<u64>().is_err() || !suffix.is_empty()) {
            return Ok(Self { text: text.into(), numbers: [0; 4], rest: text.len() });
        }
        if parts.len() > 3 {
            return Err(invalid());
        }
        let mut numbers = [0; 4];
        for (number, part) in numbers.iter_mut().zip(&parts) {
            *number = part.parse().map_err(|_| invalid())?;
        }
        let mut rest = suffix;
        if let Some((commits, tail)) = suffix.split_once('-')
            && let Ok(commits) = commits.parse()
        {
            numbers[3] = commits;
            rest = tail;
        }
        Ok(Self { text: text.into(), numbers, rest: rest.len() })
    }
}

impl AppVersion {
    /// The version as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    fn key(&self) -> ([u64; 4], bool, &str) {
        (self.numbers, self.rest == 0, &self.text[self.text.len() - self.rest..])
    }
}

impl PartialEq for AppVersion {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for AppVersion {}

impl PartialOrd for AppVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for AppVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl fmt::Display for AppVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cluster M31.
    #[test]
    fn versions_sort_as_people_mean_them() {
        let version = |text: &str| text.parse::<AppVersion>().unwrap();
        for (older, newer) in [
            ("1.2-M1", "1.2.0"),
            ("1.0.0", "1.0.0+3-x"),
            ("1.0.0+3-x", "1.0.0+10-y"),
            ("1.0.0+10-y", "1.0.1"),
            ("foo", "1.2.3"),
            ("1.9", "1.10"),
        ] {
            assert!(version(older) < version(newer), "{older} < {newer}");
        }
        assert_eq!(version("1.2"), version("1.2.0"));
        for refused in ["1.2.3.4", "1.x", "", "1.2.x-3"] {
            assert!(refused.parse::<AppVersion>().is_err(), "{refused}");
        }
    }
}
