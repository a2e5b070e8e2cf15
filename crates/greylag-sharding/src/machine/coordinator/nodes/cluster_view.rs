//! The cluster as the coordinator's node sees it, and whether it can trust its own view.

use std::sync::Arc;

use crate::machine::coordinator::protocol::Input;
use crate::machine::membership::Members;
use crate::machine::message::AgreementOutcome;

/// See the module's description.
#[derive(Debug)]
pub(in crate::machine::coordinator) struct ClusterView {
    pub(in crate::machine::coordinator) members: Arc<Members>,
    /// How this node's role for the type compares with the claims of the other members.
    pub(in crate::machine::coordinator) outcome: AgreementOutcome,
    pub(in crate::machine::coordinator) suspect: bool,
    /// Inputs that came while this node could not trust its view.
    pub(in crate::machine::coordinator) held: Vec<Input>,
}

impl Default for ClusterView {
    fn default() -> Self {
        Self { members: Arc::default(), outcome: AgreementOutcome::Asking, suspect: false, held: Vec::new() }
    }
}

impl ClusterView {
    /// Keeps an input until the view is trusted again. Inputs that their sender repeats are dropped.
    pub(in crate::machine::coordinator) fn hold(&mut self, input: Input) {
        if !matches!(input, Input::FromRegion { .. } | Input::Tick) {
            self.held.push(input);
        }
    }

    /// Trusts the view again, and returns the inputs kept meanwhile.
    pub(in crate::machine::coordinator) fn trust(&mut self) -> Vec<Input> {
        self.suspect = false;
        std::mem::take(&mut self.held)
    }
}
