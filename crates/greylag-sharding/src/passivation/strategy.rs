//! The machine of one shard: keeps the number of its active entities within a limit.

use super::composite::Composite;
use super::order::{Entries, SlotState, order};
use super::plain::Plain;
use super::settings::Passivation;

#[derive(Debug)]
enum Kind {
    Plain(Plain),
    Composite(Box<Composite>),
}

#[derive(Debug)]
struct Limited {
    limit: usize,
    entries: Entries,
    kind: Kind,
}

/// Chooses the entities that a shard passivates to keep a limit. Without a limit it holds no slots and chooses none.
///
/// Entities are the shard's slots. A slot is *live* here from its first touch until it ends or is chosen; only live
/// slots count. Victims are appended to `out`; they are no longer live, so that a touch makes a victim live again as
/// new.
///
/// A plain policy never chooses the slot just touched. A composite policy may, if its window has no room for one
/// entity: the shard must then handle the message first.
#[derive(Debug)]
pub struct Strategy {
    limited: Option<Box<Limited>>,
}

impl Strategy {
    /// Chooses by `settings`, with `limit` entities for this shard; see [`Passivation::per_shard_limit`].
    pub fn new(settings: &Passivation, limit: usize) -> Self {
        let limit = limit.max(1);
        let limited = settings.limit.map(|_| {
            let mut entries = Entries::default();
            let (window, filter) = (settings.window.as_ref(), settings.filter);
            let kind = if window.is_some() || filter.is_some() {
                Kind::Composite(Box::new(Composite::new(&settings.policy, window, filter, &mut entries, limit)))
            } else {
                Kind::Plain(Plain::new(order(&settings.policy), &mut entries, limit))
            };
            Box::new(Limited { limit, entries, kind })
        });
        Self { limited }
    }

    /// Notes that an entity is about to get a message that counts as activity. `hash` is the hash of its id, always the
    /// same.
    pub fn touched(&mut self, slot: u32, hash: u64, out: &mut Vec<u32>) {
        let Some(limited) = &mut self.limited else { return };
        match &mut limited.kind {
            Kind::Plain(plain) => plain.touched(&mut limited.entries, slot, out),
            Kind::Composite(composite) => composite.touched(&mut limited.entries, slot, hash, out),
        }
    }

    /// Notes that an entity has ended. Its veto ends too, and its slot may become another entity's.
    pub fn terminated(&mut self, slot: u32) {
        let Some(limited) = &mut self.limited else { return };
        if limited.entries.is_live(slot) {
            match &mut limited.kind {
                Kind::Plain(plain) => plain.remove(&mut limited.entries, slot),
                Kind::Composite(composite) => composite.remove(&mut limited.entries, slot),
            }
        }
        if limited.entries.get(slot).veto {
            limited.entries.get_mut(slot).veto = false;
        }
    }

    /// Changes the shard's part of the limit: the region's limit has changed, or the number of its shards. Chooses the
    /// slots beyond the limit at once.
    pub fn set_limit(&mut self, limit: usize, out: &mut Vec<u32>) {
        let Some(limited) = &mut self.limited else { return };
        let limit = limit.max(1);
        // An unchanged limit must not reset a filter's counts.
        if limit != limited.limit {
            limited.limit = limit;
            match &mut limited.kind {
                Kind::Plain(plain) => plain.set_limit(&mut limited.entries, limit),
                Kind::Composite(composite) => composite.set_limit(&mut limited.entries, limit),
            }
        }
        limited.enforce_limit(out);
    }

    /// Notes that an entity vetoes its passivation, or no longer does. An entity under a veto is not chosen: the next
    /// one is, or the limit is exceeded. When a veto is lifted, slots beyond the limit are chosen.
    pub fn set_veto(&mut self, slot: u32, veto: bool, out: &mut Vec<u32>) {
        let Some(limited) = &mut self.limited else { return };
        let entry = limited.entries.get(slot);
        if entry.veto == veto {
            return;
        }
        limited.entries.get_mut(slot).veto = veto;
        if veto || entry.state == SlotState::Out {
            return;
        }
        if entry.state == SlotState::Parked {
            match &mut limited.kind {
                Kind::Plain(plain) => plain.readmit(&mut limited.entries, slot),
                Kind::Composite(composite) => composite.readmit(&mut limited.entries, slot),
            }
        }
        limited.enforce_limit(out);
    }

    /// Number of live slots.
    pub fn live_count(&self) -> usize {
        self.limited.as_ref().map_or(0, |limited| match &limited.kind {
            Kind::Plain(plain) => plain.len(),
            Kind::Composite(composite) => composite.len(),
        })
    }
}

impl Limited {
    fn enforce_limit(&mut self, out: &mut Vec<u32>) {
        match &mut self.kind {
            Kind::Plain(plain) => plain.enforce_limit(&mut self.entries, out),
            Kind::Composite(composite) => composite.enforce_limit(&mut self.entries, out),
        }
    }
}
