//! The nouns of membership: a member and its stages, what nodes say to each other, and what they show to their users.

pub(crate) mod app_version;
pub(crate) mod event;
pub(crate) mod health;
pub(crate) mod holders;
pub(crate) mod member;
pub(crate) mod member_subset;
pub(crate) mod members;
pub(crate) mod message;
pub(crate) mod places;
pub(crate) mod shutdown;
pub(crate) mod view;
