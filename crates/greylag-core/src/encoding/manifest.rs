//! The name of a message type on wire and disk.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// The stable name of a message type on wire and disk: 1 to 255 bytes, chosen by people.
///
/// A manifest that stands in the code costs nothing to copy; a manifest that arrived is shared by all messages that
/// carry it. The source of a manifest makes no difference to equality, order or hash.
///
/// ```
/// use greylag_core::Manifest;
///
/// const ADDED: Manifest = Manifest::from_static("cart.added");
/// assert_eq!(ADDED, Manifest::from("cart.added".to_owned()));
/// assert!(ADDED.starts_with("cart."));
/// ```
#[derive(Clone)]
pub struct Manifest(Text);

#[derive(Clone)]
enum Text {
    Static(&'static str),
    Shared(Arc<str>),
}

impl Manifest {
    /// Makes a manifest from a text in the code, without allocating.
    pub const fn from_static(name: &'static str) -> Self {
        Self(Text::Static(name))
    }

    /// The name itself.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Static(name) => name,
            Text::Shared(name) => name,
        }
    }
}

impl Default for Manifest {
    /// The empty name, which no type has.
    fn default() -> Self {
        Self::from_static("")
    }
}

impl Deref for Manifest {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Manifest {
    fn as_ref(&self) -> &str {
        self
    }
}

impl Borrow<str> for Manifest {
    fn borrow(&self) -> &str {
        self
    }
}

impl From<&'static str> for Manifest {
    fn from(name: &'static str) -> Self {
        Self::from_static(name)
    }
}

impl From<String> for Manifest {
    fn from(name: String) -> Self {
        Self(Text::Shared(name.into()))
    }
}

impl From<Arc<str>> for Manifest {
    fn from(name: Arc<str>) -> Self {
        Self(Text::Shared(name))
    }
}

impl From<Manifest> for String {
    fn from(manifest: Manifest) -> Self {
        manifest.as_str().to_owned()
    }
}

impl PartialEq for Manifest {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Manifest {}

impl PartialEq<str> for Manifest {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Manifest {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialOrd for Manifest {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Manifest {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other)
    }
}

impl Hash for Manifest {
    // Hash as `str` does, so that a map with manifests as keys can be searched by `&str`.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

impl fmt::Debug for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn static_and_shared_manifests_are_equal() {
        let (fixed, shared) = (Manifest::from_static("cart.added"), Manifest::from("cart.added".to_owned()));
        assert_eq!(fixed, shared);
        assert_eq!(fixed.cmp(&shared), Ordering::Equal);
        let (a, b) = (Manifest::from("a"), Manifest::from(Arc::from("b")));
        assert!(a < b);
        let table = HashMap::from([(shared, 1)]);
        assert_eq!(table.get(&fixed), Some(&1));
        assert_eq!(table.get("cart.added"), Some(&1));
        assert_eq!(format!("{fixed} {fixed:?}"), "cart.added \"cart.added\"");
    }
}
