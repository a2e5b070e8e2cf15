//! The stable name of a replicated type.

use std::fmt;

/// A name with its parameters, such as `gl.orset/1<str>`: stable text that includes a version and travels with every
/// value. Source: ddata §2, A5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeTag {
    name: &'static str,
    parameters: &'static [&'static Self],
}

impl TypeTag {
    /// The tag of a type without parameters.
    pub const fn new(name: &'static str) -> Self {
        Self { name, parameters: &[] }
    }

    /// The tag of a type with parameters.
    pub const fn with(name: &'static str, parameters: &'static [&'static Self]) -> Self {
        Self { name, parameters }
    }
}

impl fmt::Display for TypeTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        for (index, parameter) in self.parameters.iter().enumerate() {
            f.write_str(if index == 0 { "<" } else { "," })?;
            fmt::Display::fmt(parameter, f)?;
        }
        if self.parameters.is_empty() { Ok(()) } else { f.write_str(">") }
    }
}
