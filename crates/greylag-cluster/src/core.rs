//! The membership machine of one node.

use greylag_core::UniqueAddress;

/// What a user asks of the membership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Ask this member to leave.
    Leave(UniqueAddress),
    /// Declare this member dead.
    Down(UniqueAddress),
}
