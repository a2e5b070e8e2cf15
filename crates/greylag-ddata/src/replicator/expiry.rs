//! Expiry: an entry past its deadline counts as absent, and is removed without a trace.
//!
//! Every input first gives the entries the time: from its deadline on no request finds an entry. Expired entries are
//! removed some at a time, so that a million entries that expire at once keep no request waiting. Source: ddata E1, E2,
//! R5.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::ReplicatorCore;
use crate::delta_log::{Record, RecordContent};
use crate::effect::Effect;
use crate::entries::RemovedEntry;
use crate::key::KeyId;

/// The most entries that one input removes, or puts back because they were used.
const STEP: usize = 1_000;
/// The pause between two steps.
const PAUSE: Duration = Duration::from_millis(1);

impl ReplicatorCore {
    /// Gives the entries the time, and removes some of the expired ones.
    pub(super) fn tell_time(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.entries.set_now(self.wall_ms(now));
        let removed = self.entries.expire(STEP);
        self.note_removed(now, &removed, out);
    }

    /// Removes this entry if it has expired and was not removed yet.
    pub(super) fn free(&mut self, now: Instant, key: &KeyId, out: &mut Vec<Effect>) {
        if let Some(removed) = self.entries.forget_overdue(key) {
            self.note_removed(now, &[removed], out);
        }
    }

    /// Removes an entry as if it had expired: for simulations, whose histories are shorter than lifetimes. Source:
    /// ddata E1, scenario 86.
    #[doc(hidden)]
    pub fn expire_now(&mut self, now: Instant, key: &KeyId, out: &mut Vec<Effect>) {
        self.tell_time(now, out);
        if self.entries.get(key).is_some() {
            self.entries.forget(key);
            self.note_removed(now, &[RemovedEntry { key: key.clone(), aged: None }], out);
        }
        self.finish_input(now, out);
    }

    fn note_removed(&mut self, now: Instant, all: &[RemovedEntry], out: &mut Vec<Effect>) {
        for removed in all {
            self.log.forget(&removed.key);
            self.abort_draft(now, &removed.key, out);
            self.stats.expired += 1;
            if let Some(deleted_at) = removed.aged {
                // Raise the horizon: a replica that was away since before the deletion would bring the entry back.
                self.raise_horizon(deleted_at);
            }
        }
        self.give_up_writes(&all.iter().map(|removed| removed.key.clone()).collect::<BTreeSet<_>>(), out);
    }

    /// Notes that a caller used an entry. Peers are told only of uses that matter.
    pub(super) fn touch(&mut self, key: &KeyId, out: &mut Vec<Effect>) {
        if self.entries.touch(key) {
            self.append(
                Record { key: key.clone(), tag: "".into(), prev: 0, version: 0, content: RecordContent::Touch },
                out,
            );
        }
    }

    /// Plans the next look at expired entries: at the next deadline, but at the earliest a gossip interval after the
    /// last look, so that entries that expire one by one do not each wake the machine.
    pub(super) fn plan_expiry(&mut self, now: Instant) {
        if self.expire_at.is_some_and(|at| at <= now) {
            self.expire_after = now + self.settings.gossip_interval;
        }
        let wall_ms = self.wall_ms(now);
        self.expire_at = self.entries.next_deadline_ms().map(|deadline_ms| {
            match u64::try_from(deadline_ms.saturating_sub(wall_ms)) {
                Err(_) | Ok(0) => now + PAUSE,
                Ok(wait) => {
                    now.checked_add(Duration::from_millis(wait)).unwrap_or(self.expire_after).max(self.expire_after)
                }
            }
        });
    }
}
