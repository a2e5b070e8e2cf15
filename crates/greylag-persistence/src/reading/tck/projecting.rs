//! A projection driven by hand, under a clock of the kit.

use std::time::Instant;

use super::streams::{ALL, QUIET, settings};
use crate::contract::driver::offset_store::OffsetStore;
use crate::contract::driver::query_store::EventQueries;
use crate::contract::offset::{OwnedSlices, Processed};
use crate::contract::tck::harness::{Checked, Stop, ensure, equal, must};
use crate::reading::projection::{
    Guarantee, Projection, ProjectionAnswer, ProjectionEffect, ProjectionEnd, ProjectionId, ProjectionInput,
    ProjectionSettings,
};
use crate::reading::query::envelope::Envelope;

/// Bound on answers, far more than any case needs.
const ENDLESS: usize = 20_000;

/// Successive runs of one projection over all slices, and the envelopes that its handler got.
pub(super) struct Projecting<'a> {
    queries: &'a dyn EventQueries,
    offsets: &'a dyn OffsetStore,
    entity_type: &'a str,
    guarantee: Guarantee,
    now: Instant,
    pub(super) handled: Vec<Envelope>,
}

impl<'a> Projecting<'a> {
    pub(super) fn new(
        queries: &'a dyn EventQueries,
        offsets: &'a dyn OffsetStore,
        entity_type: &'a str,
        guarantee: Guarantee,
    ) -> Self {
        Self { queries, offsets, entity_type, guarantee, now: Instant::now(), handled: Vec::new() }
    }

    /// Runs until the handler has got `enough` envelopes in all, or there are no more, and stops the projection.
    pub(super) async fn run(&mut self, enough: usize) -> Checked {
        let id = ProjectionId {
            name: format!("{}-{:?}", self.entity_type, self.guarantee),
            entity_type: self.entity_type.to_owned(),
            slices: ALL,
        };
        let settings = (settings(5), ProjectionSettings { share_reader: false, ..ProjectionSettings::default() });
        let (caps, mut out) = (self.queries.caps(), Vec::new());
        let started = Projection::start(id, self.guarantee, caps, settings.0, settings.1, [7; 32], &mut out);
        let (mut projection, mut quiet, mut answered) = (must("a projection", started)?, 0, 0);
        loop {
            ensure(answered <= ENDLESS, || "a projection asks without end".to_owned())?;
            let Some(effect) = (!out.is_empty()).then(|| out.remove(0)) else {
                quiet += 1;
                self.now = projection.next_deadline().map_or(self.now, |deadline| deadline.max(self.now));
                let stop = quiet > QUIET || self.handled.len() >= enough;
                let input = if stop { ProjectionInput::Stop } else { ProjectionInput::Tick };
                projection.handle(self.now, input, &mut out);
                continue;
            };
            if let ProjectionEffect::Ended(end) = effect {
                return equal("how it ended", end, ProjectionEnd::Stopped);
            }
            let handled = self.handled.len();
            if let Some(answer) = self.answer(effect).await? {
                answered += 1;
                projection.handle(self.now, ProjectionInput::Answer(projection.run(), answer), &mut out);
            }
            quiet = if self.handled.len() > handled { 0 } else { quiet };
        }
    }

    async fn answer(&mut self, effect: ProjectionEffect) -> Checked<Option<ProjectionAnswer>> {
        let name = format!("{}-{:?}", self.entity_type, self.guarantee);
        Ok(Some(match effect {
            ProjectionEffect::Claim(_) => ProjectionAnswer::Claimed(self.offsets.claim(&name, ALL).await),
            ProjectionEffect::Load(_) => ProjectionAnswer::Loaded(self.offsets.load(&name, ALL).await),
            ProjectionEffect::Query(_, query) => ProjectionAnswer::Page(self.queries.events(&query).await),
            ProjectionEffect::Read(_, id, range) => ProjectionAnswer::Read(self.queries.read(&id, range).await),
            ProjectionEffect::Save(_, owned, rows) => ProjectionAnswer::Saved(self.offsets.save(&owned, &rows).await),
            ProjectionEffect::Handle(_, group) => {
                self.handled.extend(group);
                ProjectionAnswer::Handled(Ok(()))
            }
            ProjectionEffect::Commit(_, group, owned, rows) => {
                self.commit(&owned, &rows).await?;
                self.handled.extend(group);
                ProjectionAnswer::Handled(Ok(()))
            }
            ProjectionEffect::Forget(owned, before) => {
                must("forget", self.offsets.forget_before(&owned, before).await)?;
                return Ok(None);
            }
            other => return Err(Stop::Failed(format!("the kit gave no reason for {other:?}"))),
        }))
    }

    async fn commit(&self, owned: &OwnedSlices, rows: &[Processed]) -> Checked {
        must("save", self.offsets.save(owned, rows).await)
    }
}
