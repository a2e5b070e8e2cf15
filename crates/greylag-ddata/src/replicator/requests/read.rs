//! One read that waits for answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use greylag_core::UniqueAddress;
use greylag_crdt::Digest;

use super::early::Early;
use super::quorum::Quorum;
use crate::api::key::KeyId;
use crate::data::envelope::Envelope;
use crate::messages::message::Message;

/// A read that waits for answers.
#[derive(Debug)]
pub(super) struct ReadRequest {
    pub(super) id: u64,
    pub(super) key: KeyId,
    pub(super) tag: Arc<str>,
    pub(super) quorum: Quorum,
    /// The own digest that was sent with the read.
    pub(super) asked: Option<Digest>,
    /// The answers so far; `None` for a replica whose data have the digest `asked`.
    pub(super) answers: BTreeMap<UniqueAddress, Option<Envelope>>,
    /// Whether enough replicas answered, and the joined answers are being stored.
    pub(super) awaits_store: bool,
    pub(super) early: Option<Early>,
}

impl ReadRequest {
    /// The question that replicas are asked in the request with this number.
    pub(super) fn question(&self, request: u64) -> Message {
        Message::Read { request, key: self.key.clone(), tag: self.tag.clone(), digest: self.asked }
    }

    /// Whether a replica that answered holds less than the result, as far as its answer shows. `changed` says whether
    /// the result differs from what this replica held when it asked.
    pub(super) fn lacks(&self, peer: &UniqueAddress, result: &Envelope, changed: bool) -> bool {
        match self.answers.get(peer) {
            None => true,
            Some(None) => changed,
            Some(Some(envelope)) => envelope.content != result.content,
        }
    }
}
