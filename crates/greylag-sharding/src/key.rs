//! A key names an entity type once, with what its entities are sent.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use crate::entity_type::{EntityType, Proxy};

/// Names an entity type whose entities are sent `M`s. Usually a constant that all of a program shares:
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
    /// A key by this name, which is checked where the type is set up.
    pub const fn new(name: &'static str) -> Self {
        Self { name: Cow::Borrowed(name), message: PhantomData }
    }

    /// A key by a name that is made at run time.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: Cow::Owned(name.into()), message: PhantomData }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl<M: Send + 'static> EntityKey<M> {
    /// The type as a node sees it that only sends to its entities and hosts none.
    pub fn proxy(self) -> EntityType<M, Proxy> {
        EntityType::proxy(self)
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
