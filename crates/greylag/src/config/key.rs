//! One key of the configuration: its name, its meaning, and the field that it sets.

use super::draft::Draft;
use super::given::{Bytes, Given, Value};

type Set = Box<dyn Fn(&mut Draft, &Given) -> Result<(), Option<String>> + Send + Sync>;
type Show = Box<dyn Fn(&mut Draft) -> String + Send + Sync>;

/// A key.
pub(super) struct Key {
    /// Name of the key with its section.
    pub(super) name: String,
    /// Description of valid values.
    pub(super) expected: String,
    /// The rule of the specification; empty for a setting of our own.
    pub(super) source: &'static str,
    /// Description in one line.
    pub(super) meaning: &'static str,
    set: Set,
    show: Show,
}

/// A field that holds a number of bytes.
pub(super) trait Size: Copy + 'static {
    fn of(bytes: usize) -> Self;
    fn bytes(self) -> usize;
}

impl Size for usize {
    fn of(bytes: usize) -> Self {
        bytes
    }

    fn bytes(self) -> usize {
        self
    }
}

impl Size for u64 {
    fn of(bytes: usize) -> Self {
        bytes as Self
    }

    fn bytes(self) -> usize {
        usize::try_from(self).unwrap_or(usize::MAX)
    }
}

impl Key {
    /// A key whose field's type determines how it is read.
    pub(super) fn new<T: Value + 'static>(
        name: impl Into<String>,
        source: &'static str,
        meaning: &'static str,
        field: impl Fn(&mut Draft) -> &mut T + Copy + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            expected: T::expected(),
            source,
            meaning,
            set: Box::new(move |draft, given| T::read(given).map(|value| *field(draft) = value)),
            show: Box::new(move |draft| field(draft).show()),
        }
    }

    /// A key of an optional field; [`Key::default_is`] says what its absence means.
    pub(super) fn some<T: Value + 'static>(
        name: impl Into<String>,
        source: &'static str,
        meaning: &'static str,
        field: impl Fn(&mut Draft) -> &mut Option<T> + Copy + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            expected: T::expected(),
            source,
            meaning,
            set: Box::new(move |draft, given| T::read(given).map(|value| *field(draft) = Some(value))),
            show: Box::new(|_| String::new()),
        }
    }

    /// A key for a number of bytes.
    pub(super) fn bytes<T: Size>(
        name: impl Into<String>,
        source: &'static str,
        meaning: &'static str,
        field: impl Fn(&mut Draft) -> &mut T + Copy + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            expected: Bytes::expected(),
            source,
            meaning,
            set: Box::new(move |draft, given| Bytes::read(given).map(|Bytes(bytes)| *field(draft) = T::of(bytes))),
            show: Box::new(move |draft| Bytes(field(draft).bytes()).show()),
        }
    }

    /// Replaces the shown default, for a key that must be given, or whose default is derived.
    pub(super) fn default_is(self, text: &'static str) -> Self {
        Self { show: Box::new(move |_| text.to_owned()), ..self }
    }

    /// Sets the value.
    ///
    /// # Errors
    /// The problem of the value.
    pub(super) fn set(&self, draft: &mut Draft, given: &Given) -> Result<(), String> {
        (self.set)(draft, given).map_err(|why| {
            why.unwrap_or_else(|| format!("{} is not valid; expected: {}", given.shown(), self.expected))
        })
    }

    /// The default as in a config file.
    pub(super) fn default(&self) -> String {
        (self.show)(&mut Draft::default())
    }
}

/// The known name that is nearest to an unknown one, if any is near enough.
pub(super) fn nearest<'a>(unknown: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let score = |name: &str| {
        // A name with a wrong section but the right last part counts as nearer.
        let tails = unknown.rsplit('.').next() == name.rsplit('.').next();
        strsim::jaro_winkler(unknown, name) + if tails { 0.2 } else { 0.0 }
    };
    let best = names.into_iter().map(|name| (score(name), name)).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > 0.8).then_some(best.1)
}
