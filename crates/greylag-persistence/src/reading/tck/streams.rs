//! Streams of events, driven by the pure [`Feed`] under a clock of the kit, so that cases wait only
//! for the store.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::contract::driver::query_store::EventQueries;
use crate::contract::offset::Offset;
use crate::contract::query::EventsOf;
use crate::contract::records::persistence_id::{PersistenceId, SLICES};
use crate::contract::tck::harness::{Checked, Stop, ensure, must};
use crate::reading::query::envelope::Envelope;
use crate::reading::query::feed::{Feed, FeedEffect, FeedInput};
use crate::reading::query::settings::{BacktrackingSettings, QuerySettings};

pub(super) const ALL: RangeInclusive<u16> = 0..=SLICES - 1;

/// Number of empty queries in a row after which a stream counts as quiet.
pub(super) const QUIET: u32 = 12;

/// Bound on envelopes, far more than any case writes.
const ENDLESS: usize = 5000;

pub(super) fn settings(page: usize) -> QuerySettings {
    let backtracking = BacktrackingSettings { window: Duration::from_secs(120), behind: Duration::from_millis(1) };
    let page = NonZeroUsize::new(page).expect("a page of something");
    QuerySettings { refresh_interval: Duration::from_secs(3), page, backtracking, ..QuerySettings::default() }
}

pub(super) fn slices(entity_type: &str, slices: RangeInclusive<u16>) -> EventsOf {
    EventsOf::Slices { entity_type: entity_type.to_owned(), slices }
}

pub(super) type EventKey = (PersistenceId, u64);

pub(super) fn places(envelopes: &[Envelope]) -> Vec<EventKey> {
    envelopes.iter().map(|envelope| (envelope.id.clone(), envelope.seq_nr.as_u64())).collect()
}

/// The numbers of each id, in the order of the envelopes.
pub(super) fn by_id(envelopes: &[Envelope]) -> BTreeMap<PersistenceId, Vec<u64>> {
    let mut numbers: BTreeMap<_, Vec<u64>> = BTreeMap::new();
    for (id, number) in places(envelopes) {
        numbers.entry(id).or_default().push(number);
    }
    numbers
}

/// Reads streams over these queries.
pub(super) struct Streams {
    pub(super) queries: Arc<dyn EventQueries>,
}

impl Streams {
    pub(super) fn live(&self, of: EventsOf, offset: &Offset, page: usize, now: Instant) -> Checked<Feed> {
        must("a live stream", Feed::live(of, offset, self.queries.caps().kind, settings(page), now))
    }

    pub(super) async fn current(&self, of: EventsOf, offset: &Offset, page: usize) -> Checked<Vec<Envelope>> {
        let until = must("newest", self.queries.newest().await)?;
        let (kind, mut now) = (self.queries.caps().kind, Instant::now());
        let feed = Feed::current(of, offset, kind, until, settings(page), now);
        let mut feed = must("a current stream", feed)?;
        self.run(&mut feed, &mut now, |_| false).await
    }

    /// The envelopes that the feed delivers until it ends, is quiet, or `enough` returns `true`.
    pub(super) async fn run(
        &self,
        feed: &mut Feed,
        now: &mut Instant,
        enough: impl Fn(&[Envelope]) -> bool,
    ) -> Checked<Vec<Envelope>> {
        let (mut delivered, mut quiet, mut out) = (Vec::new(), 0, Vec::new());
        while quiet < QUIET && !enough(&delivered) {
            ensure(delivered.len() <= ENDLESS, || "a stream delivers the same without end".to_owned())?;
            feed.handle(*now, FeedInput::Demand, &mut out);
            while let Some(effect) = out.pop() {
                match effect {
                    FeedEffect::Query(query) => {
                        let page = must("a page", self.queries.events(&query).await)?;
                        ensure(page.events.len() <= query.limit, || {
                            format!("{} events of one page", page.events.len())
                        })?;
                        ensure(!page.more || page.next != query.after, || format!("a page leads nowhere: {query:?}"))?;
                        feed.handle(*now, FeedInput::Page(Ok(page)), &mut out);
                    }
                    FeedEffect::Deliver(envelopes) => {
                        quiet = 0;
                        delivered.extend(envelopes);
                    }
                    FeedEffect::Failed(error) => return Err(Stop::Failed(error.to_string())),
                    FeedEffect::Ended => return Ok(delivered),
                }
            }
            if let Some(deadline) = feed.next_deadline() {
                quiet += 1;
                *now = (*now).max(deadline);
            }
        }
        Ok(delivered)
    }
}
