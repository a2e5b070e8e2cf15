//! The commands of an entity until they are handled: those that arrived, those put aside, and those that the entity
//! begins itself by timers, work and messages.
//!
//! A stop that is requested waits here for the commands before it. Source: persistence §2.4, §2.6.

use std::num::NonZeroUsize;
use std::time::Instant;

use greylag_core::{DeadLetterReason, EntityError, answer_dropped};

use super::input::{Action, DroppedCommand, Incarnation};
use super::stash::{Stash, Stashed};
use crate::entities::behavior::chain::{Chain, ChainRequest, guard};
use crate::entities::behavior::failure::Failure;
use crate::entities::context::background_work::{BackgroundWork, Request, Work, WorkNo};
use crate::entities::settings::StashOverflow;

/// The waiting commands of one entity, and the work of its incarnation.
pub(crate) struct Mailbox<C> {
    stash: Stash<C>,
    stash_overflow: StashOverflow,
    unstash_budget: NonZeroUsize,
    background: BackgroundWork<C>,
    /// Set while stashed commands wait only for the entity's next turn, after `unstash_budget` ran out.
    drain_at: Option<Instant>,
    stop_requested: bool,
    /// Set by `then_stop` while its chain runs.
    stop_after_chain: bool,
}

impl<C: 'static> Mailbox<C> {
    pub(crate) fn new(
        stash_capacity: NonZeroUsize,
        stash_overflow: StashOverflow,
        unstash_budget: NonZeroUsize,
        now: Instant,
    ) -> Self {
        Self {
            stash: Stash::new(stash_capacity),
            stash_overflow,
            unstash_budget,
            background: BackgroundWork::new(now),
            drain_at: None,
            stop_requested: false,
            stop_after_chain: false,
        }
    }

    /// Begins a turn of the entity.
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        self.background.observe(now);
    }

    /// Ends a turn. The receive timeout does not run while the entity takes no commands.
    pub(crate) fn end_turn(&mut self, now: Instant, takes_commands: bool) {
        self.background.takes_commands(now, takes_commands);
        self.stash.check_invariants();
        debug_assert!(self.drain_at.is_none() || takes_commands, "only a running entity drains its stash");
        let waits = takes_commands && !self.stash.is_idle();
        debug_assert!(
            !waits || self.drain_at.is_some(),
            "a command that can be handled is handled in this turn or the next"
        );
        debug_assert!(!takes_commands || !self.stop_after_chain, "an entity stops after the chain that asks for it");
    }

    /// The time of the present turn.
    pub(crate) fn now(&self) -> Instant {
        self.background.now()
    }

    // ---- Arrivals -------------------------------------------------------------------------------

    /// Queues a command behind earlier ones.
    ///
    /// # Errors
    /// Too many wait, and the command is dropped; the value says what follows.
    pub(crate) fn on_command<Call>(&mut self, command: C, out: &mut Vec<Action<C, Call>>) -> Result<(), StashOverflow> {
        self.stash.push(command).map_err(|command| self.overflow(command, out))
    }

    /// Puts a command aside until an unstash-all.
    ///
    /// # Errors
    /// Too many are put aside, and the command is dropped; the value says what follows.
    pub(crate) fn put_aside<Call>(&mut self, command: C, out: &mut Vec<Action<C, Call>>) -> Result<(), StashOverflow> {
        self.stash.put_aside(command).map_err(|command| self.overflow(command, out))
    }

    fn overflow<Call>(&self, command: C, out: &mut Vec<Action<C, Call>>) -> StashOverflow {
        let (reason, answer) = (DeadLetterReason::StashFull, EntityError::StashFull);
        out.push(Action::DeadLetter(DroppedCommand { command, reason, answer }));
        self.stash_overflow
    }

    /// Queues the result of work behind the waiting commands; returns whether there is one.
    pub(crate) fn on_worked<Call>(&mut self, work: WorkNo, command: Option<C>, out: &mut Vec<Action<C, Call>>) -> bool {
        let Some(command) = self.background.finish(work, command) else { return false };
        if self.stop_requested {
            out.push(stopped(command));
            return false;
        }
        self.stash.push_own(Stashed::Own(command));
        true
    }

    /// Queues the commands of due timers, while the entity runs; returns whether commands wait for this turn.
    pub(crate) fn on_tick(&mut self, now: Instant, runs: bool) -> bool {
        let mut has_work = self.drain_at.is_some_and(|at| at <= now);
        if runs {
            for timer in self.background.due(now) {
                self.stash.push_own(Stashed::Timer(timer));
                has_work = true;
            }
            if let Some(timeout) = self.background.receive_timeout_due(now) {
                self.stash.push_own(Stashed::ReceiveTimeout(timeout));
                has_work = true;
            }
        }
        has_work
    }

    /// Carries out the requests that a handler made of its context.
    pub(crate) fn carry_out<Call>(
        &mut self,
        incarnation: Incarnation,
        requests: Vec<Request<C>>,
        out: &mut Vec<Action<C, Call>>,
    ) {
        out.extend(self.background.take(requests).into_iter().map(|task| Action::of_host_task(incarnation, task)));
    }

    /// Takes the work that [`Action::Work`] asks for; `None` the second time.
    pub(crate) fn take_work(&mut self, no: WorkNo) -> Option<Work<C>> {
        self.background.take_work(no)
    }

    // ---- Handling -------------------------------------------------------------------------------

    /// Begins to drain; returns how many commands to handle in one go.
    pub(crate) fn begin_drain(&mut self) -> usize {
        self.drain_at = None;
        self.unstash_budget.get()
    }

    /// Pauses the drain until the entity's next turn.
    pub(crate) fn pause_drain(&mut self, now: Instant) {
        self.drain_at = Some(now);
    }

    /// Takes the next entry, those of an unstash-all first: its command, or none if a timer was cancelled meanwhile.
    /// `None` if no entry waits.
    ///
    /// # Errors
    /// The closure that makes the command of a repeating timer or a receive timeout is user code, and panicked.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Result<Option<C>, Failure>> {
        let made = match self.stash.next()? {
            Stashed::Command(command) => {
                self.background.restart_receive_timeout(now);
                return Some(Ok(Some(command)));
            }
            Stashed::Own(command) => return Some(Ok(Some(command))),
            Stashed::Timer(timer) => guard(|| self.background.fire(now, timer)),
            Stashed::ReceiveTimeout(timeout) => guard(|| self.background.fire_receive_timeout(now, timeout)),
        };
        Some(made.map_err(|message| Failure::Handler { handler: "timer", message }))
    }

    /// Runs side effects in order with the state and its number.
    ///
    /// # Errors
    /// A side effect panicked.
    pub(crate) fn run_chain<S, Call>(
        &mut self,
        chain: Chain<S>,
        state: &S,
        number: u64,
        out: &mut Vec<Action<C, Call>>,
    ) -> Result<(), Failure> {
        chain.run(state, number, |asked| match asked {
            ChainRequest::UnstashAll => self.stash.unstash_all(),
            ChainRequest::Passivate => out.push(Action::Passivate),
            ChainRequest::Stop => self.stop_after_chain = true,
        })
    }

    /// Whether a chain that ran asked to stop after it.
    pub(crate) fn stops_after_chain(&self) -> bool {
        self.stop_after_chain
    }

    // ---- Stop and end ---------------------------------------------------------------------------

    /// Requests a stop after the commands that wait now.
    pub(crate) fn request_stop(&mut self) {
        self.stop_requested = true;
    }

    /// Queues the commands that the entity told itself, which are handled before a stop that comes after them.
    pub(crate) fn queue_self_commands(&mut self) {
        self.background.take_self_commands().for_each(|command| self.stash.push_own(Stashed::Own(command)));
    }

    pub(crate) fn stop_is_requested(&self) -> bool {
        self.stop_requested
    }

    /// Whether a stop was requested and all commands before it are handled.
    pub(crate) fn stop_is_due(&self) -> bool {
        self.stop_requested && self.stash.is_idle()
    }

    /// Whether a stop is due, and no later turn will carry it out: for the checks of invariants.
    pub(crate) fn stop_is_overlooked(&self) -> bool {
        self.stop_is_due() && self.drain_at.is_none()
    }

    /// Ends what the incarnation began; reply tokens inside are answered `error`. Commands from outside stay.
    pub(crate) fn end_incarnation(&mut self, error: EntityError) {
        self.drain_at = None;
        self.stop_after_chain = false;
        self.background.end(&error);
        answer_dropped(error, || self.stash.drop_own());
    }

    /// Drops the commands put aside, because of a state that is now lost; commands that merely wait stay.
    pub(crate) fn drop_aside<Call>(&mut self, out: &mut Vec<Action<C, Call>>) {
        out.extend(self.stash.take_aside().into_iter().map(stopped));
    }

    /// Drops all commands.
    pub(crate) fn drop_all<Call>(&mut self, out: &mut Vec<Action<C, Call>>) {
        out.extend(self.stash.take_all().into_iter().map(stopped));
    }

    /// Takes all commands from outside, oldest first: those put aside, then those not yet handled.
    pub(crate) fn take_all(&mut self) -> Vec<C> {
        self.stash.take_all()
    }

    // ---- Facts ----------------------------------------------------------------------------------

    /// Whether no command waits to be handled; commands put aside do not count.
    pub(crate) fn is_idle(&self) -> bool {
        self.stash.is_idle()
    }

    /// Number of commands put aside.
    pub(crate) fn aside_count(&self) -> usize {
        self.stash.aside_count()
    }

    /// How many commands wait, put aside or not yet handled.
    pub(crate) fn waiting_count(&self) -> usize {
        self.stash.len()
    }

    /// When the drain goes on.
    pub(crate) fn drain_at(&self) -> Option<Instant> {
        self.drain_at
    }

    /// When a timer or the receive timeout next queues its command.
    pub(crate) fn timers_due_at(&self) -> Option<Instant> {
        self.background.next_deadline()
    }
}

/// The dead letter of a command that its entity will not handle, since the entity stops or has lost its state.
pub(crate) fn stopped<C, Call>(command: C) -> Action<C, Call> {
    let (reason, answer) = (DeadLetterReason::EntityStopped, EntityError::Stopped);
    Action::DeadLetter(DroppedCommand { command, reason, answer })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::entities::context::background_work::Message;

    type Out = Vec<Action<u32, ()>>;

    const SECOND: Duration = Duration::from_secs(1);

    fn mailbox(capacity: usize, now: Instant) -> Mailbox<u32> {
        let size = |size| NonZeroUsize::new(size).unwrap();
        Mailbox::new(size(capacity), StashOverflow::Fail, size(2), now)
    }

    fn next(mailbox: &mut Mailbox<u32>, now: Instant) -> Option<Option<u32>> {
        mailbox.next(now).map(|made| made.unwrap())
    }

    #[test]
    fn a_command_that_finds_no_place_is_a_dead_letter() {
        let (now, mut out) = (Instant::now(), Out::new());
        let mut mailbox = mailbox(1, now);
        assert_eq!(mailbox.on_command(1, &mut out), Ok(()));
        assert_eq!(mailbox.on_command(2, &mut out), Err(StashOverflow::Fail));
        assert_eq!(mailbox.put_aside(3, &mut out), Ok(()), "the two stashes have a capacity each");
        assert_eq!(mailbox.put_aside(4, &mut out), Err(StashOverflow::Fail));
        let dropped: Vec<_> = out
            .iter()
            .map(|action| if let Action::DeadLetter(dropped) = action { dropped.command } else { 0 })
            .collect();
        assert_eq!((dropped, mailbox.waiting_count()), (vec![2, 4], 2));
        assert_eq!(mailbox.take_all(), [3, 1], "oldest first");
    }

    #[test]
    fn a_stop_is_due_when_the_commands_before_it_are_handled() {
        let (now, mut out) = (Instant::now(), Out::new());
        let mut mailbox = mailbox(4, now);
        mailbox.carry_out(Incarnation { start: 1, restart: 1 }, vec![Request::ToSelf(2)], &mut out);
        let [Action::ToSelf { work, .. }] = out[..] else { panic!("one turn: {out:?}") };
        assert_eq!(mailbox.on_command(1, &mut out), Ok(()));
        mailbox.request_stop();
        mailbox.queue_self_commands();
        assert!(mailbox.stop_is_requested() && !mailbox.stop_is_due());
        assert_eq!([next(&mut mailbox, now), next(&mut mailbox, now)], [Some(Some(1)), Some(Some(2))]);
        assert!(mailbox.stop_is_due() && !mailbox.on_worked(work, None, &mut out), "its command came before the stop");
    }

    #[test]
    fn the_end_of_an_incarnation_keeps_only_the_commands_from_outside() {
        let (now, mut out) = (Instant::now(), Out::new());
        let mut mailbox = mailbox(4, now);
        let timer = Request::Set { key: "a".into(), after: SECOND, message: Message::Once(9), influences: true };
        mailbox.carry_out(Incarnation { start: 1, restart: 1 }, vec![timer], &mut out);
        assert_eq!(mailbox.on_command(1, &mut out), Ok(()));
        let due = now + SECOND;
        assert_eq!(mailbox.timers_due_at(), Some(due));
        assert!(!mailbox.on_tick(due, false) && mailbox.on_tick(due, true), "timers wait until the entity runs");
        mailbox.end_incarnation(EntityError::Stopped);
        assert_eq!([next(&mut mailbox, due), next(&mut mailbox, due)], [Some(Some(1)), None]);
    }

    #[test]
    fn a_drain_pauses_until_the_next_turn() {
        let now = Instant::now();
        let mut mailbox = mailbox(4, now);
        assert_eq!((mailbox.begin_drain(), mailbox.drain_at()), (2, None));
        mailbox.pause_drain(now);
        assert!(mailbox.drain_at() == Some(now) && mailbox.on_tick(now, true));
        mailbox.begin_drain();
        assert!(!mailbox.on_tick(now, true));
    }
}
