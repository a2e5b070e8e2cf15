//! One projection with its simulated offset rows and handler, and its place at the shared reader.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use greylag_persistence::{
    ConsumerId, Envelope, Guarantee, PersistenceId, Processed, Projection, ProjectionEffect, ProjectionId,
    ProjectionSettings, QueryCaps, QuerySettings,
};

use super::seen::Seen;

pub(crate) struct Instance {
    pub(crate) id: ProjectionId,
    pub(crate) machine: Projection,
    pub(crate) place: Option<Place>,
    pub(crate) seen: Seen,
    rows: BTreeMap<PersistenceId, Processed>,
}

/// The shared reader that a projection has joined, and the run of the projection that joined.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) reader: u64,
    pub(crate) consumer: ConsumerId,
    pub(crate) run: u64,
}

impl Instance {
    /// The first two have halves of the slices, the others have all. Every second projection is exactly-once.
    pub(crate) fn start(
        number: usize,
        group: usize,
        caps: QueryCaps,
        query: QuerySettings,
        out: &mut Vec<ProjectionEffect>,
    ) -> Self {
        let slices = [0..=511, 512..=1023].get(number).cloned().unwrap_or(0..=1023);
        let guarantee = [Guarantee::ExactlyOnce, Guarantee::AtLeastOnce][number % 2];
        let id = ProjectionId { name: number.to_string(), entity_type: "Cart".to_owned(), slices };
        let settings = ProjectionSettings {
            group: NonZeroUsize::new(group).expect("a group has one at least"),
            share_reader: true,
            // Failures here are random, so no event is poison.
            max_retries: 100,
            ..ProjectionSettings::default()
        };
        let seed = [u8::try_from(number).expect("there are few"); 32];
        let seen = Seen::new(guarantee, caps.shows);
        let machine = Projection::start(id.clone(), guarantee, caps, query, settings, seed, out).unwrap();
        Self { id, machine, place: None, seen, rows: BTreeMap::new() }
    }

    /// The saved rows, for a run that begins.
    pub(crate) fn load(&mut self) -> Vec<Processed> {
        self.seen.resume(self.rows.values().filter(|row| !row.is_mark()));
        self.rows.values().cloned().collect()
    }

    pub(crate) fn handle(&mut self, envelopes: &[Envelope], counts: bool) {
        self.seen.see(envelopes, counts);
    }

    /// Saves rows; a row with a later number stays.
    pub(crate) fn save(&mut self, rows: Vec<Processed>) {
        for row in rows {
            let kept = self.rows.entry(row.id.clone()).or_insert_with(|| row.clone());
            if kept.seq_nr <= row.seq_nr {
                *kept = row;
            }
        }
    }

    /// Handles and saves in one step.
    pub(crate) fn commit(&mut self, envelopes: &[Envelope], rows: Vec<Processed>) {
        self.seen.see(envelopes, true);
        self.save(rows);
    }

    /// Deletes all rows but starts, which tell the slices that were reset.
    pub(crate) fn reset(&mut self) {
        self.rows.retain(|_, row| row.is_start());
        self.seen.reset();
    }
}
