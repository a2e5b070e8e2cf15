//! Senders of a producer outside of sharding: what each of them asked for, and what it was told.
//!
//! I8: each is answered once, and told once that its message is confirmed, after it was accepted.

use std::collections::BTreeMap;

/// What a sender asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// To send this message.
    Message(u64),
    /// A permit, for this message.
    Permit(u64),
    /// A permit that is never used.
    Room,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// It has a permit.
    Permitted,
    Accepted,
    Confirmed,
    /// It was told no, or went away by itself before it had an answer.
    Over,
    /// It went away, and does not know what became of its message.
    Gone,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Senders {
    all: BTreeMap<u64, (Wish, State)>,
    next: u64,
    permits: u64,
}

impl Senders {
    /// A sender with the next ticket.
    pub(crate) fn ticket(&mut self, wish: Wish) -> u64 {
        self.next += 1;
        self.all.insert(self.next, (wish, State::Waiting));
        self.next
    }

    /// Whether any is without an answer, or has a permit that it may use.
    pub(crate) fn are_waiting(&self) -> bool {
        self.all.values().any(|(wish, state)| {
            matches!(state, State::Waiting) || (matches!(state, State::Permitted) && *wish != Wish::Room)
        })
    }

    /// Permits that were given.
    pub(crate) fn permits(&self) -> u64 {
        self.permits
    }

    pub(crate) fn permitted(&mut self, ticket: u64) {
        self.permits += 1;
        if let Some((_, state @ State::Waiting)) = self.all.get_mut(&ticket) {
            *state = State::Permitted;
        }
    }

    /// The message for which a sender has a permit that is still good, as far as it knows.
    pub(crate) fn take_permit(&mut self, ticket: u64) -> Option<u64> {
        let (wish, state) = self.all.get_mut(&ticket)?;
        match (*wish, *state) {
            (Wish::Permit(content), State::Permitted) => {
                *state = State::Over;
                Some(content)
            }
            _ => None,
        }
    }

    /// The sender sends its message with its permit.
    pub(crate) fn uses_permit(&mut self, ticket: u64, content: u64) {
        self.all.insert(ticket, (Wish::Message(content), State::Waiting));
    }

    /// A sender that has no answer yet goes away. Its message.
    pub(crate) fn give_up(&mut self, ticket: u64) -> Option<u64> {
        match self.all.get_mut(&ticket)? {
            (Wish::Message(content), state @ State::Waiting) => {
                *state = State::Gone;
                Some(*content)
            }
            _ => None,
        }
    }

    pub(crate) fn accepted_as(&mut self, ticket: u64) -> Result<u64, String> {
        match self.all.get_mut(&ticket) {
            Some((Wish::Message(content), State::Gone)) => Ok(*content),
            Some((Wish::Message(content), state @ State::Waiting)) => {
                *state = State::Accepted;
                Ok(*content)
            }
            other => Err(format!("I8: ticket {ticket} was accepted as {other:?}")),
        }
    }

    pub(crate) fn confirmed_as(&mut self, ticket: u64, content: u64) -> Result<(), String> {
        match self.all.get_mut(&ticket) {
            Some((_, State::Gone)) => Ok(()),
            Some((wish, state @ State::Accepted)) if *wish == Wish::Message(content) => {
                *state = State::Confirmed;
                Ok(())
            }
            other => Err(format!("I8: ticket {ticket} was told that {content} is confirmed, as {other:?}")),
        }
    }

    /// A sender is told no, or that nobody knows. What it had asked for.
    pub(crate) fn refused(&mut self, ticket: u64) -> Result<Wish, String> {
        match self.all.get_mut(&ticket) {
            Some((wish, State::Gone)) => Ok(*wish),
            Some((wish, state @ State::Waiting)) => {
                *state = State::Over;
                Ok(*wish)
            }
            other => Err(format!("I8: ticket {ticket} was refused as {other:?}")),
        }
    }

    /// All that have no last answer go away with their producer; what they asked permits for is not sent.
    pub(crate) fn producer_died(&mut self) {
        for (_, state) in self.all.values_mut() {
            if matches!(state, State::Waiting | State::Permitted | State::Accepted) {
                *state = State::Gone;
            }
        }
    }

    /// Messages that were accepted, of senders that are still there.
    pub(crate) fn accepted(&self) -> Vec<u64> {
        let accepted = self.all.values().filter(|(_, state)| matches!(state, State::Accepted | State::Confirmed));
        accepted.filter_map(|(wish, _)| if let Wish::Message(content) = wish { Some(*content) } else { None }).collect()
    }

    /// Everybody knows in the end.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.all.iter().find(|(_, (_, state))| matches!(state, State::Waiting | State::Accepted)) {
            Some((ticket, (wish, state))) => Err(format!("I8: {wish:?} of ticket {ticket} is {state:?} for ever")),
            None => Ok(()),
        }
    }
}
