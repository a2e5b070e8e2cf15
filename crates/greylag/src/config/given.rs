//! The values that a config file or the environment gives, and how they become settings.

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::time::Duration;

use greylag_cluster::AppVersion;
use greylag_core::{NodeAddress, parse_duration, show_duration};

use crate::settings::Secret;

/// A value as given.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Given {
    /// Text in a file.
    Text(String),
    /// A word from the environment, where everything is text.
    Word(String),
    /// A number without a point.
    Integer(i64),
    /// A number with one.
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// A list in a file.
    List(Vec<Given>),
}

impl Given {
    /// The value for messages.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Text(text) => format!("{text:?}"),
            Self::Word(word) => word.clone(),
            Self::Integer(number) => number.to_string(),
            Self::Float(number) => number.to_string(),
            Self::Bool(value) => value.to_string(),
            Self::List(items) => format!("[{}]", items.iter().map(Self::shown).collect::<Vec<_>>().join(", ")),
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Word(text) => Some(text),
            _ => None,
        }
    }

    /// Items of a list: a list in a file, words separated by commas in the environment.
    fn items(&self) -> Option<Vec<String>> {
        match self {
            Self::List(items) => items.iter().map(|item| item.text().map(ToOwned::to_owned)).collect(),
            Self::Word(word) if word.trim().is_empty() => Some(Vec::new()),
            Self::Word(word) => Some(word.split(',').map(|item| item.trim().to_owned()).collect()),
            _ => None,
        }
    }
}

/// A type of values of settings: its name, how it is read, and how it is shown.
pub(super) trait Value: Sized {
    /// Description of valid values, for the documentation and for messages.
    fn expected() -> String;
    /// Reads a value.
    ///
    /// # Errors
    /// A reason, if there is more to say than that the value is not as expected.
    fn read(given: &Given) -> Result<Self, Option<String>>;
    /// The value as in a config file.
    fn show(&self) -> String;
}

impl Value for Duration {
    fn expected() -> String {
        "duration".to_owned()
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        let text = given
            .text()
            .ok_or_else(|| Some("write a duration with its unit, such as \"5s\" or \"100ms\"".to_owned()))?;
        parse_duration(text).map_err(|error| Some(error.to_string()))
    }

    fn show(&self) -> String {
        format!("{:?}", show_duration(*self))
    }
}

/// `off`, or a value.
impl<T: Value> Value for Option<T> {
    fn expected() -> String {
        format!("{} or \"off\"", T::expected())
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        if given.text() == Some("off") || *given == Given::Bool(false) {
            return Ok(None);
        }
        T::read(given).map(Some)
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "\"off\"".to_owned(), T::show)
    }
}

impl Value for bool {
    fn expected() -> String {
        "true or false".to_owned()
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        match given {
            Given::Bool(value) => Ok(*value),
            Given::Word(word) => word.parse().map_err(|_| None),
            _ => Err(None),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for f64 {
    fn expected() -> String {
        "number".to_owned()
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        match given {
            Given::Float(number) => Ok(*number),
            Given::Integer(number) => Ok(*number as Self),
            Given::Word(word) => word.parse().map_err(|_| None),
            _ => Err(None),
        }
    }

    fn show(&self) -> String {
        format!("{self:?}")
    }
}

macro_rules! whole_numbers {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn expected() -> String {
                "whole number".to_owned()
            }

            fn read(given: &Given) -> Result<Self, Option<String>> {
                let out_of_range = |_| Some(format!("must lie between {} and {}", Self::MIN, Self::MAX));
                match given {
                    Given::Integer(number) => Self::try_from(*number).map_err(out_of_range),
                    Given::Word(word) => word.parse().map_err(|_| None),
                    _ => Err(None),
                }
            }

            fn show(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

whole_numbers!(u16, u32, u64, usize);

macro_rules! positive_numbers {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn expected() -> String {
                "whole number from 1".to_owned()
            }

            fn read(given: &Given) -> Result<Self, Option<String>> {
                match given {
                    Given::Integer(number) => number.to_string().parse().map_err(|_| None),
                    Given::Word(word) => word.parse().map_err(|_| None),
                    _ => Err(None),
                }
            }

            fn show(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

positive_numbers!(NonZeroU32, NonZeroU64, NonZeroUsize);

impl Value for String {
    fn expected() -> String {
        "text".to_owned()
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        given.text().map(ToOwned::to_owned).ok_or(None)
    }

    fn show(&self) -> String {
        format!("{self:?}")
    }
}

/// A secret is never shown, not even in the message of an error.
impl Value for Secret {
    fn expected() -> String {
        "text".to_owned()
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        given.text().map(Self::new).ok_or_else(|| Some("it must be text".to_owned()))
    }

    fn show(&self) -> String {
        if self.is_empty() { "\"\"".to_owned() } else { "\"…\"".to_owned() }
    }
}

impl Value for std::path::PathBuf {
    fn expected() -> String {
        "path".to_owned()
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        given.text().map(Into::into).ok_or(None)
    }

    fn show(&self) -> String {
        format!("{self:?}")
    }
}

impl Value for Vec<String> {
    fn expected() -> String {
        "list of texts".to_owned()
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        given.items().ok_or(None)
    }

    fn show(&self) -> String {
        format!("{self:?}")
    }
}

impl Value for BTreeSet<String> {
    fn expected() -> String {
        "list of texts".to_owned()
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        given.items().map(Self::from_iter).ok_or(None)
    }

    fn show(&self) -> String {
        format!("{:?}", self.iter().collect::<Vec<_>>())
    }
}

/// Patterns with a duration each, such as `"session-*=30m"`.
impl Value for BTreeMap<String, Duration> {
    fn expected() -> String {
        "list of \"pattern=duration\"".to_owned()
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        let entry = |item: String| match item.rsplit_once('=') {
            Some((pattern, duration)) => {
                let duration = parse_duration(duration.trim()).map_err(|error| Some(format!("{item:?}: {error}")))?;
                Ok((pattern.trim().to_owned(), duration))
            }
            None => Err(Some(format!("{item:?} must be a pattern and a duration, such as \"session-*=30m\""))),
        };
        given.items().ok_or(None)?.into_iter().map(entry).collect()
    }

    fn show(&self) -> String {
        let entries = self.iter().map(|(pattern, duration)| format!("{pattern}={}", show_duration(*duration)));
        format!("{:?}", entries.collect::<Vec<_>>())
    }
}

impl Value for Vec<NodeAddress> {
    fn expected() -> String {
        "list of host:port".to_owned()
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        let items = given.items().ok_or(None)?;
        items.iter().map(|item| item.parse().map_err(|error| Some(format!("{error}")))).collect()
    }

    fn show(&self) -> String {
        format!("{:?}", self.iter().map(ToString::to_string).collect::<Vec<_>>())
    }
}

impl Value for AppVersion {
    fn expected() -> String {
        "version".to_owned()
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        given.text().ok_or(None)?.parse().map_err(|error| Some(format!("{error}")))
    }

    fn show(&self) -> String {
        format!("{:?}", self.as_str())
    }
}

/// A number of bytes: a whole number, or text with a unit, such as `256KiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) usize);

const BYTE_UNITS: &[(&str, usize)] = &[("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl Value for Bytes {
    fn expected() -> String {
        "bytes".to_owned()
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        let hint = || Some("write a number of bytes, or a number with a unit such as \"256KiB\"".to_owned());
        if let Given::Integer(number) = given {
            return usize::try_from(*number).map(Self).map_err(|_| hint());
        }
        let text = given.text().ok_or_else(hint)?.trim();
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let unit = if unit.trim().is_empty() { "B" } else { unit.trim() };
        let (_, size) = BYTE_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(hint)?;
        let number: usize = number.parse().map_err(|_| hint())?;
        number.checked_mul(*size).map(Self).ok_or_else(hint)
    }

    fn show(&self) -> String {
        let Self(bytes) = *self;
        let (unit, size) =
            BYTE_UNITS.iter().find(|(_, size)| bytes != 0 && bytes.is_multiple_of(*size)).unwrap_or(&("B", 1));
        if *size == 1 { bytes.to_string() } else { format!("\"{}{unit}\"", bytes / size) }
    }
}

/// Implements `Value` for a type with a few values, each named by a word.
macro_rules! words {
    ($type:ty { $($word:literal => $value:expr),+ $(,)? }) => {
        impl $crate::config::given::Value for $type {
            fn expected() -> String {
                [$(concat!("\"", $word, "\"")),+].join(", ")
            }

            fn read(given: &$crate::config::given::Given) -> Result<Self, Option<String>> {
                match given {
                    $($crate::config::given::Given::Text(text) | $crate::config::given::Given::Word(text)
                        if text == $word => Ok($value),)+
                    _ => Err(None),
                }
            }

            fn show(&self) -> String {
                $(if *self == $value {
                    return concat!("\"", $word, "\"").to_owned();
                })+
                format!("{self:?}")
            }
        }
    };
}
pub(super) use words;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Given {
        Given::Text(text.to_owned())
    }

    #[test]
    fn durations_and_sizes_need_units_where_a_number_would_be_ambiguous() {
        assert_eq!(Duration::read(&text("100ms")), Ok(Duration::from_millis(100)));
        assert!(Duration::read(&Given::Integer(5)).is_err());
        assert_eq!(Option::<Duration>::read(&text("off")), Ok(None));
        assert_eq!(Bytes::read(&text("256KiB")), Ok(Bytes(256 * 1024)));
        assert_eq!(Bytes::read(&Given::Integer(7)), Ok(Bytes(7)));
        assert!(Bytes::read(&text("256KB")).is_err() && Bytes::read(&Given::Integer(-1)).is_err());
        assert_eq!(Bytes(2 << 20).show(), "\"2MiB\"");
    }

    #[test]
    fn patterns_are_read_with_their_durations() {
        let read = |items: &[&str]| {
            BTreeMap::<String, Duration>::read(&Given::List(items.iter().map(|item| text(item)).collect()))
        };
        let wanted = BTreeMap::from([("a=b*".to_owned(), Duration::from_secs(5))]);
        assert_eq!(read(&["a=b* = 5s"]), Ok(wanted.clone()));
        assert_eq!(wanted.show(), r#"["a=b*=5s"]"#);
        assert!(read(&["a*"]).is_err() && read(&["a*=5"]).is_err());
    }

    #[test]
    fn environment_values_are_read_as_the_type_of_the_setting() {
        let word = |word: &str| Given::Word(word.to_owned());
        assert_eq!(bool::read(&word("true")), Ok(true));
        assert_eq!(u16::read(&word("17355")), Ok(17355));
        assert_eq!(Vec::<String>::read(&word("a, b")), Ok(vec!["a".to_owned(), "b".to_owned()]));
        // Values of a file have types, which must match.
        assert!(bool::read(&text("true")).is_err() && u16::read(&text("1")).is_err());
        assert!(u16::read(&Given::Integer(70_000)).unwrap_err().unwrap().contains("65535"));
    }
}
