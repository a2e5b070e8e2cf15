//! A register that counts what is written to it.
//!
//! The count makes a check cheap (each answer says after how many writes it was given) and sharp: a write that took effect
//! twice, or of which no caller knows, shows in the next answer. Where every value is written once only, a value names its write.

use super::Model;

/// The model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Register;

/// What a register is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// Holds this value from now on.
    Write(u64),
    /// Tells what it holds.
    Read,
}

/// What a register answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The value is held.
    Written {
        /// How many writes there have been, this one among them.
        version: u64,
    },
    /// What is held.
    Read {
        /// How many writes there have been.
        version: u64,
        /// The value of the last one; 0 before the first.
        value: u64,
    },
}

/// What a register holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Held {
    /// How many writes there have been.
    pub version: u64,
    /// The value of the last one; 0 before the first.
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
