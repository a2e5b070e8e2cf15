//! What an entity begins beside its commands: timers, futures, blocking work, messages to itself.
//!
//! A handler asks its context; the machine keeps the requests, and the host runs what the machine cannot. A result
//! is a command like any other: it waits in the stash while the entity persists. All work ends with the
//! incarnation that began it, and a result for an earlier incarnation is never handled.
//!
//! ```text
//! cx.once("refill", 1 s, Refill) --> Timers (a deadline of the machine) -- Tick --> stash --> on_command
//! cx.set_receive_timeout(60 s, || Idle) --> IdleTimer (likewise, put off by commands) -- Tick --> stash --> on_command
//! cx.tell_self(Refill) --> self_commands; Action::ToSelf --> host's queue --> Input::Worked --> stash --> on_command
//! cx.spawn(future, map) --> Action::Work --> host: take_work().run() --> Input::Worked --> stash --> on_command
//! ```
//! Source: persistence 77; sharding §4.3, §4.4.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::future::{AbortHandle, Abortable};
use greylag_core::{EntityError, ReplyTo, TimerKey, answer_dropped};

use super::idle_timer::IdleTimer;

/// Number of one piece of work of a machine; never used twice by the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkNo(u64);

/// Work that a machine leaves to its host; its result is a command, if any.
pub enum Work<C> {
    /// Runs on the runtime, and ends early when the incarnation does.
    Future(Pin<Box<dyn Future<Output = Option<C>> + Send>>),
    /// Runs where it may block. It cannot be aborted; a result after the incarnation's end is dropped.
    Blocking(Box<dyn FnOnce() -> Option<C> + Send>),
}

impl<C> fmt::Debug for Work<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Future(_) => "Future",
            Self::Blocking(_) => "Blocking",
        })
    }
}

/// A request that a handler made of its context; the runtime of the entity carries it out.
pub enum Request<C> {
    /// Sets a timer, in place of any other of its key.
    Set {
        /// The timer's name.
        key: TimerKey,
        /// Delay until the timer is due first.
        after: Duration,
        /// The message that the timer sends.
        message: Message<C>,
        /// Whether the message restarts the receive timeout.
        influences: bool,
    },
    /// Cancels the timer of this key.
    Cancel(TimerKey),
    /// Sets the receive timeout, in place of an earlier one: the entity is sent a message whenever it has handled no
    /// message for so long.
    ReceiveTimeout {
        /// Longest time without a message.
        after: Duration,
        /// Makes one message.
        make: Box<dyn FnMut() -> C + Send>,
    },
    /// Cancels the receive timeout.
    CancelReceiveTimeout,
    /// Work beside the entity.
    Work(Work<C>),
    /// A message to the entity itself.
    ToSelf(C),
    /// Holds back all messages to the entity until this future is done. Never requested by an entity that persists.
    Suspend(Pin<Box<dyn Future<Output = C> + Send>>),
}

/// A timer's message, and whether it repeats.
pub enum Message<C> {
    /// One message.
    Once(C),
    /// Repeated messages.
    Every {
        /// Time between two messages.
        period: Duration,
        /// Start of the period.
        pace: Pace,
        /// Makes one message.
        make: Box<dyn FnMut() -> C + Send>,
    },
}

/// The time from which a repeating timer counts its next period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// The handling of the last message.
    Delay,
    /// The due time of the last message; missed times are left out.
    Rate,
}

/// Shortest period: a timer with a period of zero would always be due and leave no turn to other commands.
pub(crate) const SHORTEST_PERIOD: Duration = Duration::from_millis(1);

pub(crate) fn answer_when<C, R: Send + 'static>(
    to: ReplyTo<R>,
    future: impl Future<Output = R> + Send + 'static,
) -> Work<C> {
    Work::Future(Box::pin(async move {
        to.reply(future.await);
        None
    }))
}

/// A due timer whose command is queued; void once the timer is cancelled or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DueTimer {
    key: TimerKey,
    serial: u64,
}

/// Number of a receive timeout that has run out and is queued; void once the timeout is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DueReceiveTimeout(u64);

struct Timer<C> {
    /// Distinguishes timers of the same key; a later one has a larger number.
    serial: u64,
    due_at: Instant,
    message: Message<C>,
    influences: bool,
    /// Whether the timer's command waits in the stash.
    is_queued: bool,
}

struct ReceiveTimeout<C> {
    /// Distinguishes receive timeouts; a later one has a larger number.
    serial: u64,
    idle: IdleTimer,
    make: Box<dyn FnMut() -> C + Send>,
    /// Whether the timeout's command waits in the stash.
    is_queued: bool,
}

/// Work that the host took or is about to take.
struct StartedWork<C> {
    work: Option<Work<C>>,
    abort: Option<WorkAbort>,
}

/// How to abort a future that the host runs.
struct WorkAbort {
    handle: AbortHandle,
    /// The answer for askers whose reply tokens the aborted future drops.
    answer: Arc<OnceLock<EntityError>>,
}

/// A future that its incarnation may abort. Dropping it, by whatever code, answers the askers that wait for the future,
/// since no other code would answer them.
struct AbortableWork<C> {
    /// `Some` until the drop.
    future: Option<Abortable<Pin<Box<dyn Future<Output = Option<C>> + Send>>>>,
    answer: Arc<OnceLock<EntityError>>,
}

impl<C> Future for AbortableWork<C> {
    type Output = Option<C>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<C>> {
        match &mut self.future {
            Some(future) => Pin::new(future).poll(cx).map(|done| done.ok().flatten()),
            None => Poll::Ready(None),
        }
    }
}

impl<C> Drop for AbortableWork<C> {
    fn drop(&mut self) {
        // Unset: the host dropped the future, so the host has stopped.
        let answer = self.answer.get().cloned().unwrap_or(EntityError::Stopped);
        answer_dropped(answer, || drop(self.future.take()));
    }
}

/// The timers and the work of one incarnation, beside its commands.
pub(crate) struct BackgroundWork<C> {
    /// Time of the present turn, since contexts have no clock.
    now: Instant,
    /// `None` until the entity begins something; most entities never do, and this keeps them small.
    list: Option<Box<List<C>>>,
}

struct List<C> {
    timers: BTreeMap<TimerKey, Timer<C>>,
    receive_timeout: Option<ReceiveTimeout<C>>,
    started: BTreeMap<WorkNo, StartedWork<C>>,
    /// Commands that the entity told itself, oldest first; the host gives one turn for each.
    self_commands: VecDeque<C>,
    last_no: u64,
}

/// A task for the host: work to run, or a turn to queue.
pub(crate) enum HostTask {
    Work(WorkNo),
    ToSelf(WorkNo),
}

impl<C> BackgroundWork<C> {
    pub(crate) fn new(now: Instant) -> Self {
        Self { now, list: None }
    }

    pub(crate) fn observe(&mut self, now: Instant) {
        self.now = now;
    }

    /// The time of the present turn.
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// Carries out the requests of a handler in order; returns those that only the host can carry out.
    pub(crate) fn take(&mut self, requests: Vec<Request<C>>) -> Vec<HostTask>
    where
        C: 'static,
    {
        if requests.is_empty() {
            return Vec::new();
        }
        let now = self.now;
        let list = self.list.get_or_insert_with(|| Box::new(List::new()));
        requests.into_iter().filter_map(|request| list.take(now, request)).collect()
    }

    /// Takes the work of this number for the host; `None` the second time.
    pub(crate) fn take_work(&mut self, no: WorkNo) -> Option<Work<C>> {
        self.list.as_mut()?.started.get_mut(&no)?.work.take()
    }

    /// The command to handle now that work of this incarnation has ended with `command`. If the number is a turn for
    /// commands that the entity told itself, returns the oldest of those, so no host can change their order.
    pub(crate) fn finish(&mut self, no: WorkNo, command: Option<C>) -> Option<C> {
        let Some(list) = &mut self.list else {
            // The incarnation ended before the work was done; the work may have stored something.
            answer_dropped(EntityError::OutcomeUnknown, || drop(command));
            return None;
        };
        if list.started.remove(&no).is_some() {
            return command;
        }
        list.self_commands.pop_front()
    }

    /// Takes the commands that the entity told itself and whose turns have not come, oldest first.
    pub(crate) fn take_self_commands(&mut self) -> impl Iterator<Item = C> + use<C> {
        let commands = self.list.as_mut().map(|list| std::mem::take(&mut list.self_commands));
        commands.into_iter().flatten()
    }

    /// When a timer or the receive timeout next queues its command.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let list = self.list.as_ref()?;
        let timers = list.timers.values().filter(|timer| !timer.is_queued).map(|timer| timer.due_at);
        let receive = list.receive_timeout.iter().filter(|receive| !receive.is_queued);
        timers.chain(receive.filter_map(|receive| receive.idle.due_at())).min()
    }

    /// Restarts the receive timeout, since a command that counts is about to be handled.
    pub(crate) fn restart_receive_timeout(&mut self, now: Instant) {
        if let Some(receive) = self.receive_timeout() {
            receive.idle.restart(now);
        }
    }

    /// Notes whether the entity takes commands; the receive timeout does not run while it does not.
    pub(crate) fn takes_commands(&mut self, now: Instant, takes: bool) {
        if let Some(receive) = self.receive_timeout() {
            if takes { receive.idle.resume(now) } else { receive.idle.pause(now) }
        }
    }

    fn receive_timeout(&mut self) -> Option<&mut ReceiveTimeout<C>> {
        self.list.as_mut()?.receive_timeout.as_mut()
    }

    /// Whether the receive timeout has run out; if so, its command counts as queued from now on.
    pub(crate) fn receive_timeout_due(&mut self, now: Instant) -> Option<DueReceiveTimeout> {
        let receive = self.receive_timeout().filter(|receive| !receive.is_queued && receive.idle.is_due(now))?;
        receive.is_queued = true;
        Some(DueReceiveTimeout(receive.serial))
    }

    /// Makes the command of a receive timeout that has run out. `None` if the timeout was changed, or a command was
    /// handled meanwhile; the timeout runs on in both cases.
    pub(crate) fn fire_receive_timeout(&mut self, now: Instant, due: DueReceiveTimeout) -> Option<C> {
        let receive = self.receive_timeout().filter(|receive| receive.serial == due.0)?;
        receive.is_queued = false;
        if !receive.idle.is_due(now) {
            return None;
        }
        receive.idle.restart(now);
        Some((receive.make)())
    }

    /// The timers that are due, in the order of their times; their commands count as queued from now on.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<DueTimer> {
        let timers = self.list.iter_mut().flat_map(|list| list.timers.iter_mut());
        let mut due: Vec<_> = timers
            .filter(|(_, timer)| !timer.is_queued && timer.due_at <= now)
            .map(|(key, timer)| {
                timer.is_queued = true;
                (timer.due_at, timer.serial, *key)
            })
            .collect();
        due.sort_unstable();
        due.into_iter().map(|(_, serial, key)| DueTimer { key, serial }).collect()
    }

    /// The command of a queued timer; `None` if the timer was cancelled or replaced meanwhile.
    pub(crate) fn fire(&mut self, now: Instant, due: DueTimer) -> Option<C> {
        let (command, influences) = self.list.as_mut()?.fire(now, due)?;
        if influences {
            self.restart_receive_timeout(now);
        }
        Some(command)
    }

    /// Ends all timers and work; reply tokens inside are answered `error`.
    pub(crate) fn end(&mut self, error: &EntityError) {
        let Some(mut list) = self.list.take() else { return };
        for StartedWork { work, abort } in std::mem::take(&mut list.started).into_values() {
            if let Some(WorkAbort { handle, answer }) = abort {
                // Set once: an ended future is forgotten, so no later call sets another answer.
                answer.get_or_init(|| error.clone());
                handle.abort();
            }
            answer_dropped(error.clone(), || drop(work));
        }
        answer_dropped(error.clone(), || drop(list));
    }
}

impl<C> List<C> {
    fn new() -> Self {
        Self {
            timers: BTreeMap::new(),
            receive_timeout: None,
            started: BTreeMap::new(),
            self_commands: VecDeque::new(),
            last_no: 0,
        }
    }

    fn take(&mut self, now: Instant, request: Request<C>) -> Option<HostTask>
    where
        C: 'static,
    {
        self.last_no += 1;
        match request {
            Request::Set { key, after, message, influences } => {
                self.timers.remove(&key);
                // A due time beyond the range of `Instant` never comes: set no timer.
                if let Some(due_at) = now.checked_add(after) {
                    let timer = Timer { serial: self.last_no, due_at, message, influences, is_queued: false };
                    self.timers.insert(key, timer);
                }
                None
            }
            Request::Cancel(key) => {
                self.timers.remove(&key);
                None
            }
            Request::ReceiveTimeout { after, make } => {
                let (serial, idle) = (self.last_no, IdleTimer::new(after, now));
                self.receive_timeout = Some(ReceiveTimeout { serial, idle, make, is_queued: false });
                None
            }
            Request::CancelReceiveTimeout => {
                self.receive_timeout = None;
                None
            }
            Request::Work(work) => Some(HostTask::Work(self.begin(work))),
            Request::ToSelf(command) => {
                self.self_commands.push_back(command);
                Some(HostTask::ToSelf(WorkNo(self.last_no)))
            }
            // `Ctx::suspend` refuses entities that persist, so this does not come.
            Request::Suspend(_) => None,
        }
    }

    fn begin(&mut self, work: Work<C>) -> WorkNo
    where
        C: 'static,
    {
        let no = WorkNo(self.last_no);
        let started = match work {
            Work::Future(future) => {
                let (handle, registration) = AbortHandle::new_pair();
                let answer = Arc::new(OnceLock::new());
                let future = Some(Abortable::new(future, registration));
                let work = Work::Future(Box::pin(AbortableWork { future, answer: answer.clone() }));
                StartedWork { work: Some(work), abort: Some(WorkAbort { handle, answer }) }
            }
            blocking @ Work::Blocking(_) => StartedWork { work: Some(blocking), abort: None },
        };
        self.started.insert(no, started);
        no
    }

    /// The timer's command, and whether it restarts the receive timeout.
    fn fire(&mut self, now: Instant, due: DueTimer) -> Option<(C, bool)> {
        let mut timer = self.timers.remove(&due.key)?;
        if timer.serial != due.serial {
            self.timers.insert(due.key, timer);
            return None;
        }
        let (command, due_at) = match &mut timer.message {
            Message::Once(_) => {
                let Message::Once(command) = timer.message else { return None };
                return Some((command, timer.influences));
            }
            Message::Every { period, pace, make } => (make(), next_due(timer.due_at, now, *period, *pace)),
        };
        let influences = timer.influences;
        if let Some(due_at) = due_at {
            self.timers.insert(due.key, Timer { due_at, is_queued: false, ..timer });
        }
        Some((command, influences))
    }
}

impl<C> Drop for BackgroundWork<C> {
    /// Ends the work of a dropped machine, too.
    fn drop(&mut self) {
        self.end(&EntityError::Stopped);
    }
}

fn next_due(last: Instant, now: Instant, period: Duration, pace: Pace) -> Option<Instant> {
    match pace {
        Pace::Delay => now.checked_add(period),
        Pace::Rate => {
            let missed = now.saturating_duration_since(last).as_nanos() / period.as_nanos().max(1);
            let steps = u32::try_from(missed.saturating_add(1)).unwrap_or(u32::MAX);
            last.checked_add(period.checked_mul(steps)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn set(key: &'static str, after: Duration, message: Message<u32>) -> Request<u32> {
        Request::Set { key: key.into(), after, message, influences: true }
    }

    fn timeout_after(after: Duration) -> Request<u32> {
        Request::ReceiveTimeout { after, make: Box::new(|| 9) }
    }

    fn every(pace: Pace) -> Message<u32> {
        Message::Every { period: SECOND, pace, make: Box::new(|| 7) }
    }

    #[test]
    fn a_replaced_or_cancelled_timer_sends_nothing_even_if_it_is_queued() {
        let start = Instant::now();
        let mut background = BackgroundWork::new(start);
        background.take(vec![set("a", SECOND, Message::Once(1)), set("b", SECOND, Message::Once(2))]);
        assert_eq!(background.next_deadline(), Some(start + SECOND));
        let due = background.due(start + SECOND);
        assert_eq!((due.len(), background.next_deadline()), (2, None), "a queued timer is not due again");
        background.take(vec![Request::Cancel("a".into()), set("b", SECOND, Message::Once(3))]);
        assert_eq!(due.map_fire(&mut background, start), [None, None]);
        let due = background.due(start + SECOND);
        assert_eq!(due.map_fire(&mut background, start), [Some(3)]);
    }

    trait MapFire {
        fn map_fire(self, background: &mut BackgroundWork<u32>, now: Instant) -> Vec<Option<u32>>;
    }

    impl MapFire for Vec<DueTimer> {
        fn map_fire(self, background: &mut BackgroundWork<u32>, now: Instant) -> Vec<Option<u32>> {
            self.into_iter().map(|due| background.fire(now, due)).collect()
        }
    }

    #[test]
    fn missed_times_of_a_rate_are_one_and_a_delay_counts_from_its_handling() {
        let start = Instant::now();
        for (pace, next) in [(Pace::Rate, SECOND * 5), (Pace::Delay, SECOND * 9 / 2 + SECOND)] {
            let mut background = BackgroundWork::new(start);
            background.take(vec![set("tick", SECOND, every(pace))]);
            let late = start + SECOND * 9 / 2;
            assert_eq!(background.due(late).map_fire(&mut background, late), [Some(7)], "{pace:?}");
            assert_eq!(background.next_deadline(), Some(start + next), "{pace:?}");
        }
    }

    #[test]
    fn the_receive_timeout_repeats_until_it_is_cancelled() {
        let start = Instant::now();
        let at = |seconds: u32| start + SECOND * seconds;
        let mut background = BackgroundWork::new(start);
        background.take(vec![timeout_after(SECOND * 10)]);
        assert_eq!(background.next_deadline(), Some(at(10)));
        background.restart_receive_timeout(at(4));
        assert_eq!((background.receive_timeout_due(at(10)), background.next_deadline()), (None, Some(at(14))));
        let due = background.receive_timeout_due(at(14)).unwrap();
        assert_eq!((background.receive_timeout_due(at(14)), background.next_deadline()), (None, None), "queued once");
        assert_eq!(background.fire_receive_timeout(at(15), due), Some(9));
        assert_eq!(background.next_deadline(), Some(at(25)), "again");
        let due = background.receive_timeout_due(at(25)).unwrap();
        background.restart_receive_timeout(at(25));
        assert_eq!(background.fire_receive_timeout(at(26), due), None, "a command was handled before it");
        assert_eq!(background.next_deadline(), Some(at(35)));
        let due = background.receive_timeout_due(at(35)).unwrap();
        background.take(vec![timeout_after(SECOND * 20)]);
        assert_eq!(background.fire_receive_timeout(at(35), due), None, "replaced while it was queued");
        background.take(vec![Request::CancelReceiveTimeout]);
        assert_eq!(background.next_deadline(), None);
    }

    #[test]
    fn only_influencing_timers_restart_the_receive_timeout_and_pauses_do_not_count() {
        let start = Instant::now();
        let at = |seconds: u32| start + SECOND * seconds;
        for (influences, due) in [(true, at(13)), (false, at(10))] {
            let mut background = BackgroundWork::new(start);
            let message = Message::Once(1);
            let timer = Request::Set { key: "a".into(), after: SECOND * 3, message, influences };
            background.take(vec![timeout_after(SECOND * 10), timer]);
            assert_eq!(background.due(at(3)).map_fire(&mut background, at(3)), [Some(1)]);
            assert_eq!(background.next_deadline(), Some(due), "influences: {influences}");
            background.takes_commands(at(5), false);
            assert_eq!(background.next_deadline(), None);
            background.takes_commands(at(9), true);
            assert_eq!(background.next_deadline(), Some(due + SECOND * 4));
        }
    }

    #[test]
    fn work_of_an_ended_incarnation_is_aborted_and_unknown() {
        let mut background = BackgroundWork::<u32>::new(Instant::now());
        let work = Request::Work(Work::Future(Box::pin(std::future::pending())));
        let [HostTask::Work(no)] = background.take(vec![work])[..] else { panic!("one task") };
        let Some(Work::Future(future)) = background.take_work(no) else { panic!("work") };
        assert!(background.take_work(no).is_none(), "taken once");
        background.end(&EntityError::Stopped);
        assert_eq!(future.now_or_never(), Some(None));
        assert_eq!(background.finish(no, Some(1)), None);
    }

    #[test]
    fn self_commands_keep_their_order_whatever_turn_comes_first() {
        let mut background = BackgroundWork::new(Instant::now());
        let tasks = background.take((1..=3).map(Request::ToSelf).collect());
        let [HostTask::ToSelf(first), HostTask::ToSelf(second), HostTask::ToSelf(third)] = tasks[..] else {
            panic!("three turns")
        };
        let handled = [third, first, second].map(|turn| background.finish(turn, None));
        assert_eq!(handled, [Some(1), Some(2), Some(3)], "whatever turn the host gives first");
        assert_eq!(background.finish(second, None), None, "nothing twice");
    }

    #[test]
    fn finished_work_without_a_result_is_removed() {
        let mut background = BackgroundWork::<u32>::new(Instant::now());
        let [HostTask::Work(no)] = background.take(vec![Request::Work(Work::Blocking(Box::new(|| None)))])[..] else {
            panic!("one task")
        };
        assert_eq!(background.finish(no, None), None);
        assert!(background.list.as_ref().is_some_and(|list| list.started.is_empty()));
    }
}
