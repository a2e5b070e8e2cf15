//! What can go wrong when an entity type is set up.

/// A name that no entity type may have. Nothing was started; choose another one.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid entity type name {name:?}: {why}")]
pub struct InvalidTypeName {
    /// The name as it was given.
    pub name: String,
    /// What is wrong with it.
    pub why: &'static str,
}

greylag_core::debug_is_sentence!(InvalidTypeName);

/// A setting that makes no sense. Nothing was started. Source: sharding §7.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("setting sharding.{key} = {value} is invalid: {reason}")]
pub struct InvalidSetting {
    /// The key below `sharding`.
    pub key: &'static str,
    /// The value as it was given.
    pub value: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

greylag_core::debug_is_sentence!(InvalidSetting);
