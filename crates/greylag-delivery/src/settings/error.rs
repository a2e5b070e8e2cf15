//! The error of all settings of the crate.

/// A setting is invalid, or contradicts another one. Nothing was started.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("delivery.{field}: {why}")]
pub struct SettingsError {
    /// The name of the setting.
    pub field: &'static str,
    /// What is wrong with its value.
    pub why: &'static str,
}

greylag_core::debug_is_sentence!(SettingsError);
