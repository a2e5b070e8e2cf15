//! Takes `sslmode` and the related words out of a connection string, in both of its forms.

use std::path::PathBuf;

/// The words that were taken out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Words {
    pub(super) mode: Option<String>,
    pub(super) root: Option<PathBuf>,
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

impl Words {
    /// Keeps the word if it is about TLS; answers whether it is.
    fn takes(&mut self, key: &str, value: &str) -> bool {
        match key {
            "sslmode" => self.mode = Some(value.to_owned()),
            "sslrootcert" => self.root = Some(value.into()),
            "sslcert" => self.cert = Some(value.into()),
            "sslkey" => self.key = Some(value.into()),
            _ => return false,
        }
        true
    }
}

/// Splits the string into the rest and the words about TLS. A string that cannot be parsed is left as it is: the client
/// library then reports the error.
pub(super) fn take(config: &str) -> (String, Words) {
    let mut words = Words::default();
    let is_url = config.starts_with("postgres://") || config.starts_with("postgresql://");
    let rest = if is_url { take_from_url(config, &mut words) } else { take_from_words(config, &mut words) };
    (rest, words)
}

fn take_from_url(config: &str, words: &mut Words) -> String {
    let Some((place, query)) = config.split_once('?') else { return config.to_owned() };
    let is_left = |part: &&str| part.split_once('=').is_none_or(|(key, value)| !words.takes(key, &decoded(value)));
    let left: Vec<&str> = query.split('&').filter(is_left).collect();
    if left.is_empty() { place.to_owned() } else { format!("{place}?{}", left.join("&")) }
}

/// Decodes percent-encoding: `%2F` is `/`.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&first, others)) = rest.split_first() {
        let hex = (first == b'%').then(|| others.get(..2)).flatten();
        let byte = hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &others[2..] } else { others };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn take_from_words(config: &str, words: &mut Words) -> String {
    let (mut left, mut rest) = (Vec::new(), config.trim_start());
    while !rest.is_empty() {
        let Some((key, value, after)) = word(rest) else {
            left.push(rest);
            break;
        };
        if !words.takes(key, &value) {
            left.push(rest[..rest.len() - after.len()].trim_end());
        }
        rest = after.trim_start();
    }
    left.join(" ")
}

/// The first `key = value`, and the rest of the string. Values with blanks stand in single quotes; a backslash escapes
/// the next character.
fn word(text: &str) -> Option<(&str, String, &str)> {
    let (key, rest) = text.split_once('=')?;
    let rest = rest.trim_start();
    let (is_quoted, rest) = rest.strip_prefix('\'').map_or((false, rest), |rest| (true, rest));
    let mut value = String::new();
    let mut characters = rest.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => value.push(characters.next()?.1),
            '\'' if is_quoted => return Some((key.trim(), value, &rest[at + 1..])),
            blank if blank.is_whitespace() && !is_quoted => return Some((key.trim(), value, &rest[at..])),
            other => value.push(other),
        }
    }
    // A value without quotes ends at the latest with the string.
    (!is_quoted).then(|| (key.trim(), value, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_about_tls_are_taken_and_all_others_left() {
        let files =
            |mode: &str, root: &str| Words { mode: Some(mode.to_owned()), root: Some(root.into()), ..Words::default() };
        for (config, left, words) in [
            ("host=a  user=b", "host=a user=b", Words::default()),
            (
                r"host=a password='a \' sslmode=disable' user=b",
                r"host=a password='a \' sslmode=disable' user=b",
                Words::default(),
            ),
            (
                "sslmode = 'verify-ca' sslrootcert = '/with blank/ca' host = a",
                "host = a",
                files("verify-ca", "/with blank/ca"),
            ),
            (
                "postgresql://u:p@h/d?sslmode=verify-full&application_name=x&sslrootcert=%2Fx%2Fca",
                "postgresql://u:p@h/d?application_name=x",
                files("verify-full", "/x/ca"),
            ),
            (
                "postgres://h?sslmode=require",
                "postgres://h",
                Words { mode: Some("require".to_owned()), ..Words::default() },
            ),
            ("password='never closed sslmode=disable", "password='never closed sslmode=disable", Words::default()),
            ("nonsense", "nonsense", Words::default()),
        ] {
            assert_eq!(take(config), (left.to_owned(), words), "{config}");
        }
    }
}
