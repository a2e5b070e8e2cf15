//! A register that counts its writes.
//!
//! The count makes a check cheap (each answer says how many writes came before it) and sharp: a write that took effect
//! twice, or that no caller made, shows in the next answer. If every value is written only once, a value names its
//! write.

use super::model::Model;

/// The model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Register;

/// A call to a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// Sets the value.
    Write(u64),
    /// Reads the value.
    Read,
}

/// An answer of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The value was set.
    Written {
        /// Count of writes, this one included.
        version: u64,
    },
    /// The value was read.
    Read {
        /// Count of writes so far.
        version: u64,
        /// The last written value; 0 before the first write.
        value: u64,
    },
}

/// The state of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Held {
    /// Count of writes so far.
    pub version: u64,
    /// The last written value; 0 before the first write.
    pub value: u64,
}

impl Model for Register {
    type Input = Call;
    type Output = Reply;
    type State = Held;

    fn start(&self) -> Held {
        Held::default()
    }

    fn step(&self, state: &Held, input: &Call, output: Option<&Reply>) -> Option<Held> {
        let (after, says) = match *input {
            Call::Write(value) => {
                let version = state.version.saturating_add(1);
                (Held { version, value }, Reply::Written { version })
            }
            Call::Read => (*state, Reply::Read { version: state.version, value: state.value }),
        };
        output.is_none_or(|output| *output == says).then_some(after)
    }

    fn is_read(&self, call: &Call) -> bool {
        matches!(call, Call::Read)
    }

    fn can_still_answer(&self, state: &Held, _: &Call, output: &Reply) -> bool {
        match *output {
            Reply::Written { version } => state.version < version,
            Reply::Read { version, value } => state.version < version || *state == Held { version, value },
        }
    }
}
