//! Senders of producers without entities: the request of each sender, and its answers.
//!
//! I8: each sender gets one answer, and one confirmation, after its message was accepted.

use std::collections::BTreeMap;

/// The request of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SenderRequest {
    /// To send this message.
    Message(u64),
    /// A permit for this message.
    Permit(u64),
    /// A permit that is never used.
    Room,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// The sender has a permit.
    Permitted,
    Accepted,
    Confirmed,
    /// The sender was refused, or has returned its permit.
    Over,
    /// The sender went away without knowing the outcome of its message.
    Gone,
}

#[derive(Debug)]
struct Sender {
    producer: u64,
    request: SenderRequest,
    state: State,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Senders {
    all: BTreeMap<u64, Sender>,
    next: u64,
    permits: u64,
}

impl Senders {
    /// Adds a sender of this producer, with the next ticket.
    pub(crate) fn ticket(&mut self, producer: u64, request: SenderRequest) -> u64 {
        self.next += 1;
        self.all.insert(self.next, Sender { producer, request, state: State::Waiting });
        self.next
    }

    /// Whether a sender has no answer, or a permit that it may use.
    pub(crate) fn are_waiting(&self) -> bool {
        self.all.values().any(|sender| {
            matches!(sender.state, State::Waiting)
                || (sender.state == State::Permitted && sender.request != SenderRequest::Room)
        })
    }

    /// Number of permits granted.
    pub(crate) fn permits(&self) -> u64 {
        self.permits
    }

    pub(crate) fn permitted(&mut self, ticket: u64) {
        self.permits += 1;
        if let Some(Sender { state: state @ State::Waiting, .. }) = self.all.get_mut(&ticket) {
            *state = State::Permitted;
        }
    }

    /// Takes the permit of a sender: returns its producer and its message. The caller decides what to do.
    pub(crate) fn take_permit(&mut self, ticket: u64) -> Option<(u64, u64)> {
        match self.all.get_mut(&ticket)? {
            Sender { producer, request: SenderRequest::Permit(content), state: state @ State::Permitted } => {
                *state = State::Over;
                Some((*producer, *content))
            }
            _ => None,
        }
    }

    /// The sender sends its message with its permit.
    pub(crate) fn uses_permit(&mut self, ticket: u64, content: u64) {
        if let Some(sender) = self.all.get_mut(&ticket) {
            (sender.request, sender.state) = (SenderRequest::Message(content), State::Waiting);
        }
    }

    /// A sender without an answer goes away. Returns its producer, and its message.
    pub(crate) fn give_up(&mut self, ticket: u64) -> Option<(u64, u64)> {
        match self.all.get_mut(&ticket)? {
            Sender { producer, request: SenderRequest::Message(content), state: state @ State::Waiting } => {
                *state = State::Gone;
                Some((*producer, *content))
            }
            _ => None,
        }
    }

    pub(crate) fn accepted_as(&mut self, ticket: u64) -> Result<u64, String> {
        match self.all.get_mut(&ticket) {
            Some(Sender { request: SenderRequest::Message(content), state: State::Gone, .. }) => Ok(*content),
            Some(Sender { request: SenderRequest::Message(content), state: state @ State::Waiting, .. }) => {
                *state = State::Accepted;
                Ok(*content)
            }
            other => Err(format!("I8: ticket {ticket} was accepted as {other:?}")),
        }
    }

    pub(crate) fn confirmed_as(&mut self, ticket: u64, content: u64) -> Result<(), String> {
        match self.all.get_mut(&ticket) {
            Some(Sender { state: State::Gone, .. }) => Ok(()),
            Some(Sender { request, state: state @ State::Accepted, .. })
                if *request == SenderRequest::Message(content) =>
            {
                *state = State::Confirmed;
                Ok(())
            }
            other => Err(format!("I8: ticket {ticket} was told that {content} is confirmed, as {other:?}")),
        }
    }

    /// A sender is refused, or its outcome is unknown. Returns its request.
    pub(crate) fn refused(&mut self, ticket: u64) -> Result<SenderRequest, String> {
        match self.all.get_mut(&ticket) {
            Some(Sender { request, state: State::Gone, .. }) => Ok(*request),
            Some(Sender { request, state: state @ State::Waiting, .. }) => {
                *state = State::Over;
                Ok(*request)
            }
            other => Err(format!("I8: ticket {ticket} was refused as {other:?}")),
        }
    }

    /// A sender is told that this producer will not deliver its message.
    pub(crate) fn undelivered(&mut self, ticket: u64) -> Result<(), String> {
        match self.all.get_mut(&ticket) {
            Some(Sender { state: State::Gone, .. }) => Ok(()),
            Some(Sender { state: state @ State::Accepted, .. }) => {
                *state = State::Over;
                Ok(())
            }
            other => Err(format!("I8: ticket {ticket} was told that it is not delivered, as {other:?}")),
        }
    }

    /// Every sender of a producer without a final answer goes away with it; messages that wait for a permit are not
    /// sent.
    pub(crate) fn producer_died(&mut self, producer: u64) {
        self.leave(producer, &[State::Waiting, State::Permitted, State::Accepted]);
    }

    /// Senders whose messages a producer had accepted and stored get no further answer when it ends.
    pub(crate) fn producer_ended(&mut self, producer: u64) {
        self.leave(producer, &[State::Accepted]);
    }

    fn leave(&mut self, producer: u64, states: &[State]) {
        let of_it = self.all.values_mut().filter(|sender| sender.producer == producer);
        of_it.filter(|sender| states.contains(&sender.state)).for_each(|sender| sender.state = State::Gone);
    }

    /// Accepted messages of senders that have not gone away.
    pub(crate) fn accepted(&self) -> Vec<u64> {
        let content = |sender: &Sender| match (sender.request, sender.state) {
            (SenderRequest::Message(content), State::Accepted | State::Confirmed) => Some(content),
            _ => None,
        };
        self.all.values().filter_map(content).collect()
    }

    /// Checks that at the end every sender has its final answer.
    pub(crate) fn check(&self) -> Result<(), String> {
        let is_open = |sender: &Sender| matches!(sender.state, State::Waiting | State::Accepted);
        match self.all.iter().find(|(_, sender)| is_open(sender)) {
            Some((ticket, sender)) => Err(format!("I8: ticket {ticket} is {sender:?} for ever")),
            None => Ok(()),
        }
    }
}
