//! The user's settings of automatic passivation.

use std::time::Duration;

use super::policy::{AdmissionWindow, Aging, FrequencySketch, HillClimbing, ReplacementPolicy, Segments};

/// An option without the option that it belongs to: its key, its value, and the fault.
pub(super) type Misplaced = (&'static str, &'static str, &'static str);

/// When a shard ends entities by itself.
///
/// Two rules that may be combined: a time without use, and a limit of active entities. The limit counts per region,
/// that is per node, and is divided evenly between the region's shards.
///
/// ```
/// use std::time::Duration;
///
/// use greylag_sharding::Passivation;
///
/// let idle = Passivation::idle_after(Duration::from_secs(300));
/// let hour = Duration::from_secs(3600);
/// let levels = Passivation::least_recently_used(50_000).segmented(2, &[0.2, 0.8]).with_idle(hour);
/// let adaptive = Passivation::recommended().with_limit(20_000);
/// for settings in [idle, levels, adaptive] {
///     assert_eq!(settings.validate(), Ok(()));
/// }
/// ```
///
/// An entity that vetoes its passivation is passed over. Default: idle after 120 s, no limit. Source: sharding §4.10.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "it is given to an entity type or to the settings"]
pub struct Passivation {
    pub(super) idle_timeout: Option<Duration>,
    pub(super) idle_interval: Option<Duration>,
    pub(super) limit: Option<usize>,
    pub(super) policy: ReplacementPolicy,
    pub(super) window: Option<AdmissionWindow>,
    pub(super) filter: Option<FrequencySketch>,
    /// The first option that was given without the option that it belongs to.
    pub(super) misplaced: Option<Misplaced>,
}

impl Default for Passivation {
    fn default() -> Self {
        Self::idle_after(Duration::from_secs(120))
    }
}

impl Passivation {
    const fn of(idle_timeout: Option<Duration>, limit: Option<usize>, policy: ReplacementPolicy) -> Self {
        Self { idle_timeout, idle_interval: None, limit, policy, window: None, filter: None, misplaced: None }
    }

    /// Ends no entity.
    pub const fn none() -> Self {
        Self::of(None, None, ReplacementPolicy::least_recently_used())
    }

    /// Ends an entity without messages for this long. Zero ends none.
    pub const fn idle_after(idle: Duration) -> Self {
        Self::of(if idle.is_zero() { None } else { Some(idle) }, None, ReplacementPolicy::least_recently_used())
    }

    /// Keeps `limit` entities of a region active, and ends others by a policy.
    pub const fn limited(limit: usize, policy: ReplacementPolicy) -> Self {
        Self::of(None, Some(limit), policy)
    }

    /// Keeps `limit` entities of a region active, and ends the entity not used for longest. See
    /// [`Passivation::segmented`].
    pub const fn least_recently_used(limit: usize) -> Self {
        Self::limited(limit, ReplacementPolicy::least_recently_used())
    }

    /// Keeps `limit` entities of a region active, and ends the entity used last before the new one. Suits uses that
    /// cycle through many entities.
    pub const fn most_recently_used(limit: usize) -> Self {
        Self::limited(limit, ReplacementPolicy::most_recently_used())
    }

    /// Keeps `limit` entities of a region active, and ends the entity with the fewest uses since its start. A new
    /// entity gets a place nevertheless. See [`Passivation::dynamic_aging`].
    pub const fn least_frequently_used(limit: usize) -> Self {
        Self::limited(limit, ReplacementPolicy::least_frequently_used())
    }

    /// A limit that suits most uses: 100,000 entities of a region; a window of 1 % for new entities, which adapts; a
    /// frequency sketch between the window and the main area, of two levels with 20 % and 80 %.
    pub fn recommended() -> Self {
        Self::least_recently_used(100_000)
            .segmented(2, &[0.2, 0.8])
            .admission_window(ReplacementPolicy::least_recently_used(), 0.01)
            .hill_climbing(HillClimbing::default())
            .frequency_sketch(FrequencySketch::default())
    }

    /// Sets another limit per region.
    pub fn with_limit(mut self, limit: usize) -> Self {
        if self.limit.is_none() {
            self.misplace("passivation.<s>.active_entity_limit", "given", "it needs a replacement policy");
        }
        self.limit = Some(limit);
        self
    }

    /// Divides the entities of a least-recently-used policy into levels, so that entities used once do not displace
    /// entities used often. `proportions` are the levels' parts of the limit, from the lowest, which also has the rest;
    /// empty for even levels.
    pub fn segmented(mut self, levels: u16, proportions: &[f64]) -> Self {
        match &mut self.policy {
            ReplacementPolicy::LeastRecentlyUsed(segments) if self.limit.is_some() => {
                *segments = Some(Segments { levels, proportions: proportions.to_vec() });
            }
            _ => self.misplace(
                "passivation.<s>.replacement.least_recently_used.segmented",
                "given",
                "only least_recently_used has levels",
            ),
        }
        self
    }

    /// Makes entities that were popular once fall behind in a least-frequently-used policy.
    pub fn dynamic_aging(mut self) -> Self {
        match &mut self.policy {
            ReplacementPolicy::LeastFrequentlyUsed(aging) => *aging = Aging::Dynamic,
            _ => self.misplace(
                "passivation.<s>.replacement.least_frequently_used.dynamic_aging",
                "on",
                "only least_frequently_used can age",
            ),
        }
        self
    }

    /// Also ends an entity without messages for this long. Zero ends none that way.
    pub fn with_idle(mut self, timeout: Duration) -> Self {
        self.idle_timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
        self
    }

    /// Sets how often idle entities are looked for. Default: a twentieth of the time after which they end.
    pub fn idle_interval(mut self, interval: Duration) -> Self {
        self.idle_interval = Some(interval);
        self
    }

    /// Adds a window for new entities, with this part of the limit, from 0 to 1, rounded down. Entities that leave it
    /// by its policy go on to the main area, or end.
    pub fn admission_window(mut self, policy: ReplacementPolicy, proportion: f64) -> Self {
        if self.limit.is_none() {
            self.misplace(
                "passivation.<s>.admission.window.policy",
                "given",
                "it needs a replacement policy with a limit",
            );
        }
        self.window = Some(AdmissionWindow { policy, proportion, ..AdmissionWindow::default() });
        self
    }

    /// Sets the bounds of the window's proportion under hill climbing. Default 0.01 and 1.0.
    pub fn window_bounds(mut self, minimum: f64, maximum: f64) -> Self {
        match &mut self.window {
            Some(window) => (window.minimum_proportion, window.maximum_proportion) = (minimum, maximum),
            None => self.misplace(
                "passivation.<s>.admission.window.minimum_proportion",
                "given",
                "it needs an admission window",
            ),
        }
        self
    }

    /// Makes the window's proportion adapt to the uses.
    pub fn hill_climbing(mut self, hill_climbing: HillClimbing) -> Self {
        match &mut self.window {
            Some(window) => window.optimizer = Some(hill_climbing),
            None => self.misplace(
                "passivation.<s>.admission.window.optimizer",
                "hill_climbing",
                "it needs an admission window",
            ),
        }
        self
    }

    /// Admits a new entity to a full main area only if it was used more often than the entity that would go for it.
    pub fn frequency_sketch(mut self, sketch: FrequencySketch) -> Self {
        if self.limit.is_none() {
            self.misplace(
                "passivation.<s>.admission.filter",
                "frequency_sketch",
                "it needs a replacement policy with a limit",
            );
        }
        self.filter = Some(sketch);
        self
    }

    fn misplace(&mut self, key: &'static str, value: &'static str, reason: &'static str) {
        self.misplaced.get_or_insert((key, value, reason));
    }
}

impl Passivation {
    /// Whether these settings never end an entity.
    pub fn is_none(&self) -> bool {
        self.idle_timeout.is_none() && self.limit.is_none()
    }

    /// The time without use after which an entity ends; `None`: never.
    pub fn idle_timeout(&self) -> Option<Duration> {
        self.idle_timeout
    }

    /// How often idle entities are looked for; `None`: never.
    pub fn idle_check_interval(&self) -> Option<Duration> {
        let timeout = self.idle_timeout?;
        // A check without a pause would keep a shard busy for ever.
        Some(self.idle_interval.unwrap_or(timeout / 20).max(Duration::from_millis(1)))
    }

    /// The most active entities of a region; `None`: no limit.
    pub fn active_entity_limit(&self) -> Option<usize> {
        self.limit
    }

    /// One shard's part of a region's limit: at least one entity, however many shards there are.
    pub fn per_shard_limit(limit: usize, active_shards: usize) -> usize {
        (limit / active_shards.max(1)).max(1)
    }
}
