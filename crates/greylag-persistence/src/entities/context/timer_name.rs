//! Names of timers.

use greylag_core::TimerKey;

/// The name of a timer, and whether its messages restart the receive timeout of its entity. Text and numbers are names
/// of timers whose messages restart it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimerName {
    pub(crate) key: TimerKey,
    pub(crate) influences: bool,
}

/// Names a timer whose messages do not restart the receive timeout of its entity. Source: sharding §4.4.
///
/// ```
/// use std::time::Duration;
///
/// use greylag_persistence::{Ctx, NotInfluence};
///
/// enum Message {
///     Refill,
///     Idle,
/// }
///
/// fn on_start(cx: &mut Ctx<'_, Message>) {
///     cx.fixed_rate(NotInfluence("refill"), Duration::from_secs(1), || Message::Refill);
///     // Comes although the timer goes on, once nothing else was sent for a minute.
///     cx.set_receive_timeout(Duration::from_secs(60), || Message::Idle);
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotInfluence<K>(pub K);

impl<K: Into<TimerKey>> From<NotInfluence<K>> for TimerName {
    fn from(name: NotInfluence<K>) -> Self {
        Self { key: name.0.into(), influences: false }
    }
}

impl From<TimerKey> for TimerName {
    fn from(key: TimerKey) -> Self {
        Self { key, influences: true }
    }
}

impl From<&'static str> for TimerName {
    fn from(name: &'static str) -> Self {
        TimerKey::from(name).into()
    }
}

impl From<u64> for TimerName {
    fn from(number: u64) -> Self {
        TimerKey::from(number).into()
    }
}
