//! A permit: room for one message, reserved before the message exists.

use super::command_sender::OnDrop;
use crate::driver::sending::command::{Address, Command, Granted};

/// Reserved room for one message; if dropped unused, the next sender gets it.
pub(crate) struct Permit<T, A: Address> {
    pub(crate) granted: Granted<A>,
    pub(super) release: OnDrop<Command<T, A>>,
}
