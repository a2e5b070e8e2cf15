//! Requests of users to the coordinator, repeated until they are answered or time out.
//!
//! ```text
//! Request(number) --StopShards, GetCurrentRegions--> coordinator --ShardsStopped ..., CurrentRegions--> Answer(number)
//! ```
//! A coordinator that takes over gets every open request as soon as it has taken the region. Source: sharding §2.11,
//! §6.1.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::config::RegionState;
use super::protocol::Effect;
use super::report::{Answer, Request, RequestEnd};
use super::routing::Router;
use crate::ids::{RegionId, ShardId};
use crate::machine::message::RegionMessage;
use crate::parcel::FAR;
use crate::timetable::Timetable;

/// A request that is not answered, or not in full.
#[derive(Debug)]
struct Open {
    /// The part of the request that is not answered yet.
    request: Request,
    deadline: Instant,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Requests {
    open: BTreeMap<u64, Open>,
    due: Timetable<u64>,
}

impl Requests {
    /// When the next request is repeated, or ends.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.next()
    }

    /// Source: sharding §2.11.
    pub(super) fn check_invariants(&self) {
        debug_assert_eq!(self.due.len(), self.open.len(), "each open request is repeated, or ends");
    }

    fn end(&mut self, number: u64, why: RequestEnd, out: &mut Vec<Effect>) {
        self.due.remove(&number);
        if self.open.remove(&number).is_some() {
            out.push(Effect::Answer { number, answer: Answer::Ended(why) });
        }
    }

    pub(super) fn on_request(
        &mut self,
        now: Instant,
        number: u64,
        request: Request,
        timeout: Duration,
        router: &Router,
        out: &mut Vec<Effect>,
    ) {
        if let Some(why) = refusal(&request, router) {
            return out.push(Effect::Answer { number, answer: Answer::Ended(why) });
        }
        let deadline = now.checked_add(timeout).unwrap_or(now + FAR);
        self.open.insert(number, Open { request, deadline });
        self.send_request(now, number, router, out);
    }

    /// Sends the request to the coordinator, if one is known, and schedules its repetition.
    fn send_request(&mut self, now: Instant, number: u64, router: &Router, out: &mut Vec<Effect>) {
        let Some(open) = self.open.get(&number) else { return };
        let again = now + router.config.settings.retry_interval;
        self.due.set(&number, again.min(open.deadline));
        let region = router.config.id.clone();
        let message = match &open.request {
            Request::StopShards(shards) => {
                RegionMessage::StopShards { region, request: number, shards: shards.iter().cloned().collect() }
            }
            Request::CurrentRegions => RegionMessage::GetCurrentRegions { region, request: number },
        };
        router.send_to_coordinator(message, out);
    }

    pub(super) fn on_tick(&mut self, now: Instant, router: &Router, out: &mut Vec<Effect>) {
        for number in self.due.due(now) {
            match self.open.get(&number) {
                Some(open) if open.deadline > now => self.send_request(now, number, router, out),
                _ => self.end(number, RequestEnd::TimedOut, out),
            }
        }
    }

    /// Sends all open requests to a coordinator that has taken this region.
    pub(super) fn repeat(&mut self, now: Instant, router: &Router, out: &mut Vec<Effect>) {
        for number in self.open.keys().copied().collect::<Vec<_>>() {
            self.send_request(now, number, router, out);
        }
    }

    /// Ends all open requests, since this region has stopped.
    pub(super) fn end_all(&mut self, out: &mut Vec<Effect>) {
        for number in self.open.keys().copied().collect::<Vec<_>>() {
            self.end(number, RequestEnd::RegionStopped, out);
        }
    }

    pub(super) fn on_shards_stopped(&mut self, number: u64, shards: Vec<ShardId>, out: &mut Vec<Effect>) {
        let Some(Open { request: Request::StopShards(waiting), .. }) = self.open.get_mut(&number) else {
            return;
        };
        // The answer to a repetition also names shards that were reported before.
        let stopped: Vec<_> = shards.into_iter().filter(|shard| waiting.remove(shard)).collect();
        let is_complete = waiting.is_empty();
        if !stopped.is_empty() {
            out.push(Effect::Answer { number, answer: Answer::ShardsStopped(stopped) });
        }
        if is_complete {
            self.end(number, RequestEnd::Complete, out);
        }
    }

    pub(super) fn on_stop_shards_refused(&mut self, number: u64, out: &mut Vec<Effect>) {
        if matches!(self.open.get(&number), Some(Open { request: Request::StopShards(_), .. })) {
            self.end(number, RequestEnd::NotAllowedWithRememberEntities, out);
        }
    }

    pub(super) fn on_current_regions(&mut self, number: u64, regions: Vec<RegionId>, out: &mut Vec<Effect>) {
        if matches!(self.open.get(&number), Some(Open { request: Request::CurrentRegions, .. })) {
            out.push(Effect::Answer { number, answer: Answer::CurrentRegions(regions) });
            self.end(number, RequestEnd::Complete, out);
        }
    }
}

/// Why a request is answered without the coordinator, if so.
fn refusal(request: &Request, router: &Router) -> Option<RequestEnd> {
    match (router.state, request) {
        (RegionState::Stopping | RegionState::Stopped, _) => Some(RequestEnd::RegionStopped),
        (RegionState::Refused, _) => Some(RequestEnd::Refused),
        (_, Request::StopShards(_)) if router.config.fingerprint.remember_entities => {
            Some(RequestEnd::NotAllowedWithRememberEntities)
        }
        (_, Request::StopShards(shards)) => shards.is_empty().then_some(RequestEnd::Complete),
        (_, Request::CurrentRegions) => {
            router.registration.coordinator().is_none().then_some(RequestEnd::NoCoordinator)
        }
    }
}
