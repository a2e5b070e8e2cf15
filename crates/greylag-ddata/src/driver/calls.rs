//! The callers that wait for their answers, and how long answers take.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::api::effect::Reply;
use crate::api::metrics::{Latency, LevelName};

/// When a caller made a request, and at which level.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    at: Instant,
    level: LevelName,
}

impl Call {
    /// A call made now.
    pub(super) fn now(level: impl Into<LevelName>) -> Self {
        Self { at: Instant::now(), level: level.into() }
    }
}

/// A caller that waits for its answer.
struct PendingCall {
    call: Call,
    answer: Box<dyn FnOnce(Reply) + Send>,
}

/// All callers that wait.
#[derive(Default)]
pub(super) struct Calls {
    waiting: BTreeMap<u64, PendingCall>,
    latency: BTreeMap<LevelName, Latency>,
    last_id: u64,
}

impl Calls {
    /// A number for a request.
    pub(super) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Keeps the caller of a request until the machine answers.
    pub(super) fn wait_for(&mut self, id: u64, call: Call, answer: impl FnOnce(Reply) + Send + 'static) {
        self.waiting.insert(id, PendingCall { call, answer: Box::new(answer) });
    }

    /// Answers the caller of a request.
    pub(super) fn on_reply(&mut self, id: u64, reply: Reply) {
        if let Some(PendingCall { call, answer }) = self.waiting.remove(&id) {
            self.latency.entry(call.level).or_default().observe(call.at.elapsed());
            answer(reply);
        }
    }

    /// How long answers took, by level.
    pub(super) fn latency(&self) -> &BTreeMap<LevelName, Latency> {
        &self.latency
    }
}
