//! The claim under which an event-sourced entity writes, and what another claim in the journal means.
//!
//! Every append names the epoch of the claim, so a later claim of another writer fences the entity.
//! Source: persistence §2.5, §10.

use greylag_core::Generation;

use crate::contract::head::{Claim, Head, Under};
use crate::contract::records::event::{WriterEpoch, WriterUuid};
use crate::entities::behavior::failure::FencedBy;
use crate::entities::lifecycle::writers::{Owner, Writers};

/// The claim of one machine, across its incarnations.
pub(super) struct Fence {
    generation: Option<Generation>,
    writers: Writers,
    epoch: WriterEpoch,
    /// Whether a claim of any incarnation was ever answered.
    claim_answered: bool,
}

impl Fence {
    /// `generation`: that of the entity's shard; without one, epochs alone fence.
    pub(super) fn new(generation: Option<Generation>) -> Self {
        Self { generation, writers: Writers::default(), epoch: WriterEpoch::NONE, claim_answered: false }
    }

    /// Begins an incarnation, which has claimed nothing yet.
    pub(super) fn begin(&mut self, writer: WriterUuid) {
        self.writers.begin(writer);
        self.epoch = WriterEpoch::NONE;
    }

    /// The epoch of the claim.
    pub(super) fn epoch(&self) -> WriterEpoch {
        self.epoch
    }

    /// The writer of this incarnation.
    pub(super) fn writer_uuid(&self) -> WriterUuid {
        self.writers.current()
    }

    /// The right to claim without a look at the head, if the entity has a generation.
    pub(super) fn right(&self) -> Option<Under> {
        self.generation.map(Under::Generation)
    }

    /// The right to claim over this head.
    ///
    /// # Errors
    /// A restarted machine that finds another writer's claim must not fence that rightful successor.
    pub(super) fn right_over(&self, head: Head) -> Result<Under, FencedBy> {
        if self.claim_answered && !self.writers.is_own(head.writer_uuid) {
            return Err(FencedBy::Head(head));
        }
        Ok(Under::Seen(head.epoch))
    }

    /// A claim is sent; returns its writer.
    pub(super) fn on_claim_sent(&mut self) -> WriterUuid {
        self.writers.on_sent()
    }

    pub(super) fn on_claimed(&mut self, claim: &Claim) {
        self.claim_answered = true;
        self.epoch = claim.epoch;
    }

    /// The claim was refused, as another writer claimed. Without a generation another writer may have claimed between
    /// our read of the head and our claim: read the head again, and decide again.
    ///
    /// # Errors
    /// The other writer has a greater generation.
    pub(super) fn on_claim_refused(&self, current: Head) -> Result<(), FencedBy> {
        if self.generation.is_none() { Ok(()) } else { Err(FencedBy::Head(current)) }
    }

    /// Whose claim this head shows.
    pub(super) fn owner_of(&self, head: &Head) -> Owner {
        if head.epoch == self.epoch && head.writer_uuid == self.writers.current() {
            Owner::Current
        } else {
            self.owner_after_refusal(head)
        }
    }

    /// Whose claim refused an append.
    pub(super) fn owner_after_refusal(&self, head: &Head) -> Owner {
        if self.writers.is_own(head.writer_uuid) { Owner::Own } else { Owner::Other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::records::event::SeqNr;

    fn head(writer: u128, epoch: u64) -> Head {
        let head = Head::default();
        Head { writer_uuid: WriterUuid::from_u128(writer), epoch: WriterEpoch::from_u64(epoch), ..head }
    }

    fn claimed(fence: &mut Fence, writer: u128, epoch: u64) {
        fence.begin(WriterUuid::from_u128(writer));
        fence.on_claim_sent();
        let epoch = WriterEpoch::from_u64(epoch);
        fence.on_claimed(&Claim { highest: SeqNr::ZERO, deleted_to: SeqNr::ZERO, epoch });
    }

    #[test]
    fn a_first_start_claims_over_any_head_and_a_restarted_one_over_its_own() {
        let mut fence = Fence::new(None);
        fence.begin(WriterUuid::from_u128(1));
        assert_eq!(fence.right_over(head(9, 4)), Ok(Under::Seen(WriterEpoch::from_u64(4))));
        claimed(&mut fence, 1, 5);
        fence.begin(WriterUuid::from_u128(2));
        assert_eq!(fence.right_over(head(1, 5)), Ok(Under::Seen(WriterEpoch::from_u64(5))));
        assert_eq!(fence.right_over(head(9, 6)), Err(FencedBy::Head(head(9, 6))));
    }

    #[test]
    fn a_head_shows_whose_claim_is_the_newest() {
        let mut fence = Fence::new(None);
        claimed(&mut fence, 1, 5);
        claimed(&mut fence, 2, 6);
        let owners = [head(2, 6), head(2, 7), head(1, 5), head(9, 6)].map(|head| fence.owner_of(&head));
        assert_eq!(owners, [Owner::Current, Owner::Own, Owner::Own, Owner::Other]);
    }
}
