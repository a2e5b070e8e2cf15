//! A key names an entity type, together with the type of its messages.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// Names an entity type with messages of type `M`. Usually a constant shared by the whole program:
///
/// ```
/// use greylag_sharding::EntityKey;
///
/// enum Command { Increment }
///
/// const COUNTER: EntityKey<Command> = EntityKey::new("Counter");
/// assert_eq!(COUNTER.name(), "Counter");
/// ```
///
/// Source: sharding §1.2.
pub struct EntityKey<M> {
    name: Cow<'static, str>,
    message: PhantomData<fn(M)>,
}

impl<M> EntityKey<M> {
    /// A key with this name, which is checked when the type is set up.
    pub const fn new(name: &'static str) -> Self {
        Self { name: Cow::Borrowed(name), message: PhantomData }
    }

    /// A key with a name that is made at run time.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: Cow::Owned(name.into()), message: PhantomData }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl<M> Clone for EntityKey<M> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), message: PhantomData }
    }
}

impl<M> fmt::Debug for EntityKey<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EntityKey({})", self.name)
    }
}

impl<M> fmt::Display for EntityKey<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
